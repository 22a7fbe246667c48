"""docs/next-month.md: its commands and its Python, run as they stand there, and what is refused of such runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cvfl
from cvfl.cli import app
from serving import tables

PAGE = (Path(__file__).parents[2] / "docs" / "next-month.md").read_text(encoding="utf-8")
COMMANDS, PYTHON = re.findall(r"^```\w*\n(.*?)^```$", PAGE, flags=re.M | re.S)


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
    apart = said(f"{COMMANDS.splitlines()[-1]}-2 --runtime grpc", code=2)
    assert "--from is for runs in one process" in apart
    assert "it started from another run" in said("cvfl audit runs/may", code=2)
