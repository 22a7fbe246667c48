"""FedTree: its Python package simulates all parties in one process, so there are no bytes; fedtree_app.py.

The wheel needs libntl44, libgf2x3 and libgmp10, which Debian has and PyPI has not.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flare_peer import told
from inputs import SETTINGS, Inputs
from place import Roles
from written import code_lines

REQUIREMENTS = ("fedtree==1.0.5",)
VARIANTS = {"trees, simulated": "float32"}
APP = Path(__file__).with_name("fedtree_app.py")


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """Train once."""
    place.mkdir(parents=True, exist_ok=True)
    settings, out, began = place / "told.json", place / "found.json", time.time()
    content = told(inputs, "Collab API, float32", out) | {"trees": SETTINGS["trees"]}
    settings.write_text(json.dumps(content), encoding="utf-8")
    with Roles(place, python) as roles:
        libraries = {"LD_LIBRARY_PATH": str(python.parent.parent / "lib")}
        roles.start("fedtree", [str(APP), str(settings)], also=libraries)
        roles.wait(["fedtree"], patience=400)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found | {"seconds_in_all": time.time() - began, "lines": code_lines(APP) + 1, "tls": "one process"}
