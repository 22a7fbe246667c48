"""docs/next-month.md: its commands and its Python, run as they stand there, and what is refused of such runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cvfl
from cvfl.cli import app
from serving import tables

pytestmark = pytest.mark.usefixtures("no_pages")
PAGE = (Path(__file__).parents[2] / "docs" / "next-month.md").read_text(encoding="utf-8")
COMMANDS, PYTHON, APART = re.findall(r"^```\w*\n(.*?)^```$", PAGE, flags=re.M | re.S)


def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for first, month in ((0, "april"), (1000, "may")):
        tables.write(tables.frames(first=first), tmp_path / month)

    def said(line: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, shlex.split(line)[1:], terminal_width=300)
        assert done.exit_code == code, done.output
        return done.output

    for line in COMMANDS.splitlines():
        told = said(f"{line} --set epochs=1" if "cvfl train" in line else line)
    assert "started from the models of runs/april, run " in told
    april, may = (json.loads(Path(f"runs/{month}/summary.json").read_text()) for month in ("april", "may"))
    assert may["started_from"] == {"run": april["run"], "path": "runs/april"}
    names: dict[str, Any] = {"cvfl": cvfl}
    exec(compile(PYTHON.replace("fit(", "fit(epochs=1, progress=False, "), "next-month.md", "exec"), names)
    assert names["may"].started_from.run == april["run"]
    assert "it started from another run" in said("cvfl audit runs/may", code=2)


@pytest.mark.slow
def test_roles_start_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three commands as three processes, each with what April left with that role; the models are those of one."""
    monkeypatch.chdir(tmp_path)
    for first, month in ((0, "april"), (1000, "may")):
        tables.write(tables.frames(first=first), tmp_path / month)
    init, first, second = (shlex.split(line)[1:] for line in COMMANDS.splitlines())
    (tmp_path / "row_secret").write_bytes(b"what the parties agreed on")
    short = ["--set", "epochs=1", "--set", "party.bank.row_secret=row_secret"]
    certificates = ["certs", "certs", "--server", "127.0.0.1", "--party", "bank", "--party", "shop"]
    for arguments in (init, [*first, *short], [*second, *short], certificates):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    Path("may.toml").write_text(Path("april.toml").read_text().replace("april/", "may/"))
    shutil.copytree("runs/april/parameters", "models/april")
    for path in Path("models/april").glob("server.*"):
        path.unlink()  # which is with the server alone
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        network = [f"network.address=127.0.0.1:{free.getsockname()[1]}", "network.certificates=certs"]
    more = [*short, *(word for change in network for word in ("--set", change))]
    commands = [[sys.executable, "-m", "cvfl.cli", *shlex.split(line)[1:], *more] for line in APART.splitlines()]
    commands[0] += ["--out", "runs/apart"]
    roles = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for role in roles:
        _, told = role.communicate(timeout=180)
        assert role.returncode == 0, told
    here, apart = (json.loads(Path(f"runs/{run}/summary.json").read_text()) for run in ("may", "apart"))
    assert apart["parameters"] == here["parameters"]
    assert apart["started_from"] == here["started_from"]
    shown = json.loads(Path("models/may/bank.json").read_text())
    assert shown["started_from"] == here["started_from"] | {"path": "models/april"}
