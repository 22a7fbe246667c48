"""Flower: a SuperLink and a SuperNode a party, with TLS; flower_app.py.

A round takes many seconds, since every message starts a process. A few rounds are measured, and the rest computed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flare_peer import told
from inputs import Inputs
from place import Roles
from proxy import Proxy, free_port
from written import code_lines

REQUIREMENTS = ("flwr==1.41.0",)
VARIANTS = {"ClientApp and ServerApp": "float32"}
APP = Path(__file__).with_name("flower_app.py")
ROUNDS = 8
PROJECT = """[project]
name = "split"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "peers"
[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"
[tool.flwr.app.config]
told = "{told}"
"""
LINK = """[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:{port}"
root-certificates = "{ca}"
"""


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """A few rounds, and what all would take at that pace."""
    app, home, settings, out = (place / name for name in ("app", "home", "told.json", "found.json"))
    app.mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    made = ["certs", str(place / "certs"), "--server", "127.0.0.1", "--server", "localhost"]
    subprocess.run([sys.executable, "-m", "cvfl.cli", *made], check=True, stdout=subprocess.DEVNULL)
    settings.write_text(json.dumps(told(inputs, "Collab API, float32", out) | {"rounds": ROUNDS}), encoding="utf-8")
    shutil.copy(APP, app)
    (app / "pyproject.toml").write_text(PROJECT.format(told=settings.absolute()), encoding="utf-8")
    ca, key, own = (str(place / "certs" / file) for file in ("ca.crt", "server.key", "server.crt"))
    port, *ports = (free_port() for _ in range(1 + len(inputs.names)))
    (home / "config.toml").write_text(LINK.format(port=port, ca=ca), encoding="utf-8")
    also = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    also |= {"PATH": f"{python.parent}:/usr/bin:/bin"}
    with Roles(place, python) as roles, Proxy(port) as proxy:
        tls = ["--ssl-certfile", own, "--ssl-keyfile", key, "--ssl-ca-certfile", ca]
        link = [*tls, "--host", "127.0.0.1", "--port", str(port)]
        roles.start("superlink", link, python.parent / "flower-superlink", also)
        time.sleep(8.0)
        for name, own_port in zip(inputs.names, ports, strict=True):
            node = ["--root-certificates", ca, "--superlink", f"127.0.0.1:{proxy.port}", "--port", str(own_port)]
            node += ["--node-config", f'name="{name}"']
            roles.start(name, node, python.parent / "flower-supernode", also)
        time.sleep(5.0)
        before = proxy.total
        roles.start("run", ["run", str(app), "here"], python.parent / "flwr", also)
        until = time.monotonic() + 240
        while (each := _each(out)) is None or (len(each) < ROUNDS and time.monotonic() < until):
            time.sleep(0.2)
            if time.monotonic() > until and not each:
                raise SystemExit("no round of Flower has ended")
        sent = proxy.total - before
    later = each[1:] or each
    return {
        "rounds": inputs.rounds,
        "rounds_measured": len(each),
        "seconds_a_round": statistics.median(later),
        "seconds": inputs.rounds * statistics.median(later),
        "bytes": round(sent / len(each) * inputs.rounds),
        "computed": "seconds and bytes, from those of the rounds that were measured",
        "lines": code_lines(APP) + len(PROJECT.splitlines()) + len(LINK.splitlines()) + 2 + len(inputs.names),
        "tls": "TLS",
    }


def _each(out: Path) -> list[float] | None:
    try:
        found: list[float] = json.loads(out.read_text(encoding="utf-8"))["each"]
    except (OSError, ValueError):
        return None
    return found
