"""docs/serve.md: its commands, run as they stand there, and its codes, which are those of the door."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.network import free_port
from cvfl.cli import app
from cvfl.serving.online.batching import STARTING
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.M | re.S)
PLAIN = [block.splitlines() for language, block in BLOCKS if not language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tables.write(tables.frames(), tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in PLAIN[0]:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    return tmp_path


def test_the_page_leads_from_a_run_to_an_answer(folder: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port, address = free_port(), f"network.address=127.0.0.1:{free_port()}"
    commands = [shlex.split(line.replace(":8080", f":{port}"))[1:] for line in PLAIN[1]]
    roles = [subprocess.Popen([sys.executable, "-m", "cvfl.cli", *one, "--set", address]) for one in commands]
    ready, ask = ([*shlex.split(line.replace(":8080", f":{port}"))] for line in PLAIN[2])
    try:
        until = time.monotonic() + 90
        while not _answer(ready).get("ready"):
            assert time.monotonic() < until
            time.sleep(0.1)
        rows = _answer(ask)["scores"]
    finally:
        for role in roles:
            role.kill()
            role.wait()
    assert [row["id"] for row in rows] == ["p17", "p4", "nobody"]
    assert all(0 < row["score"] < 1 and row["class"] in ("yes", "no") for row in rows[:2])
    assert rows[2]["error"] == "unknown at bank and shop"


def _answer(command: list[str]) -> dict[str, Any]:
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, Any] = json.loads(said) if said else {}
    return found


def test_the_page_has_every_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "src/cvfl/serving/online").glob("*.py"))
    used = set(re.findall(r'DoorError\(\s*\d+,\s*"(\w+)"', code)) | {"not_found", "wrong_method", STARTING}
    told = set(re.findall(r"`(\w+)`", PAGE.split("The codes are fixed:")[1].split("## Who may ask")[0]))
    assert used == told - {"--rate", "--timeout"}
