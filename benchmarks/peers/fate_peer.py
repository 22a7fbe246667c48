"""FATE: its HeteroNN in its own standalone mode, a process a party; fate_app.py.

Messages are files there, so there are no connections to count. Its cluster mode needs Eggroll, a Java service.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flare_peer import told
from inputs import Inputs
from place import Roles
from written import code_lines

REQUIREMENTS = ("pyfate==2.2.0",)
VARIANTS = {"HeteroNN": "float32"}
TASKS = ("credit",)
"""It joins a guest and one host."""
APP = Path(__file__).with_name("fate_app.py")


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """Train once."""
    place.mkdir(parents=True, exist_ok=True)
    settings, out, began = place / "told.json", place / "found.json", time.time()
    settings.write_text(json.dumps(told(inputs, "Collab API, float32", out)), encoding="utf-8")
    with Roles(place, python) as roles:
        parties = ["--parties", "guest:9999", "host:10000"]
        roles.start("fate", [str(APP), *parties, "--log_level", "WARNING", "--told", str(settings)])
        roles.wait(["fate"], patience=400)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found | {"seconds_in_all": time.time() - began, "lines": code_lines(APP) + 1, "tls": "files, no network"}
