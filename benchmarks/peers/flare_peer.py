"""NVIDIA FLARE: a provisioned federation with mutual TLS, a process for the server and each site; flare_app.py."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from inputs import SETTINGS, Inputs
from place import Roles
from proxy import Proxy, free_port
from written import code_lines

REQUIREMENTS = ("nvflare==2.9.0", "scikit-learn==1.9.1")
VARIANTS = {"Collab API, float32": "float32", "Collab API, float16": "float16"}
ADMIN = "admin@example.org"
APP = Path(__file__).with_name("flare_app.py")
PAUSE = 15.0
"""Seconds until all sites have come: a job that is submitted before fails. They are in no figure."""
PARTS = "nvflare.lighter.impl"
BUILDERS: list[dict[str, Any]] = [
    {"path": f"{PARTS}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
    {"path": f"{PARTS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
    {"path": f"{PARTS}.cert.CertBuilder"},
    {"path": f"{PARTS}.signature.SignatureBuilder"},
]


def told(inputs: Inputs, variant: str, out: Path) -> dict[str, Any]:
    """What flare_app.py needs to know."""
    kept = {key: SETTINGS[key] for key in ("seed", "epochs", "batch_size", "optimizer", "step_size", "hidden", "width")}
    return kept | {
        "names": inputs.names,
        "folder": str(inputs.folder.absolute()),
        "wire": VARIANTS[variant],
        "out": str(out.absolute()),
    }


def project(inputs: Inputs, port: int, proxy: int) -> dict[str, Any]:
    """project.yml: every site connects to the proxy."""
    to = {"connect_to": {"host": "localhost", "port": proxy}}
    people = [
        {"name": "localhost", "type": "server", "org": "o", "fed_learn_port": port},
        *({"name": name, "type": "client", "org": "o", **to} for name in inputs.names),
        {"name": ADMIN, "type": "admin", "org": "o", "role": "project_admin"},
    ]
    return {"api_version": 3, "name": "peers", "participants": people, "builders": BUILDERS}


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """Train once."""
    place.mkdir(parents=True, exist_ok=True)
    settings, out, port = place / "told.json", place / "found.json", free_port()
    settings.write_text(json.dumps(told(inputs, variant, out)), encoding="utf-8")
    with Roles(place, python) as roles, Proxy(port) as proxy:
        (place / "project.yml").write_text(json.dumps(project(inputs, port, proxy.port)), encoding="utf-8")  # is YAML
        provision = ["-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "kits", "--force"]
        subprocess.run([python, *provision], cwd=place, check=True, capture_output=True)
        began, kits = time.time(), place / "kits" / "peers" / "prod_00"
        for name in ("localhost", *inputs.names):
            kind = "server" if name == "localhost" else "client"
            more = [] if kind == "server" else [f"uid={name}"]
            arguments = ["-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(kits / name)]
            arguments += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *more, "org=o"]
            arguments.append("config_folder=config")
            (kits / name / "transfer").mkdir(exist_ok=True)
            roles.start(name, arguments)
        time.sleep(PAUSE)
        roles.start("job", [str(APP), str(settings), str(kits / ADMIN)])
        until = time.monotonic() + 2400
        while not out.exists() and roles.children["job"].poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1.0)
        ended, sent = time.time(), proxy.total
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found | {
        "seconds_in_all": ended - began - PAUSE,
        "bytes": sent,
        "lines": lines(inputs),
        "tls": "mutual TLS",
    }


def lines(inputs: Inputs) -> int:
    """Those of flare_app.py, a name a line of project.yml, and the commands that start all."""
    return code_lines(APP) + 2 + len(inputs.names) + 2 + len(inputs.names) + 2
