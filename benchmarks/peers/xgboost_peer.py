"""Vertical XGBoost: a server and a process a party, over gRPC with mutual TLS; xgboost_app.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flare_peer import told
from inputs import SETTINGS, Inputs
from place import Roles
from proxy import Proxy, free_port
from written import code_lines

REQUIREMENTS = ("xgboost==3.2.0", "scikit-learn==1.9.1")
VARIANTS = {"trees, labels stay": "float32"}
APP = Path(__file__).with_name("xgboost_app.py")


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """Train once."""
    place.mkdir(parents=True, exist_ok=True)
    made = ["certs", str(place / "certs"), "--server", "127.0.0.1", "--server", "localhost"]
    made += [word for name in inputs.names for word in ("--party", name)]
    subprocess.run([sys.executable, "-m", "cvfl.cli", *made], check=True, stdout=subprocess.DEVNULL)
    settings, out, port, began = place / "told.json", place / "found.json", free_port(), time.time()
    more = {"certificates": str((place / "certs").absolute()), "trees": SETTINGS["trees"]}
    settings.write_text(json.dumps(told(inputs, "Collab API, float32", out) | more), encoding="utf-8")
    with Roles(place, python) as roles, Proxy(port) as proxy:
        roles.start("server", [str(APP), str(settings), "server", str(port)])
        time.sleep(3.0)
        for name in inputs.names:
            roles.start(name, [str(APP), str(settings), name, str(proxy.port)])
        roles.wait(inputs.names, patience=400)
        sent = proxy.total
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    written = {"lines": code_lines(APP) + 1 + len(inputs.names), "tls": "mutual TLS"}
    return found | written | {"seconds_in_all": time.time() - began, "bytes": sent}
