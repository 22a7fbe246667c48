"""Processes end with the one that started them, however it ended; and so do folders that were for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cvfl.runtime import watchdog
from cvfl.scratch import Scratch

# The child starts a child of its own in a session of its own, as FLARE does.
PARENT = """
import subprocess, sys, time, typer
from cvfl.cli.errors import one_line
from cvfl.runtime.supervisor import Supervisor
CHILD = '''
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
'''
def command():
    with one_line(), Supervisor() as processes:
        processes.start("child", ["-c", CHILD], subprocess.DEVNULL, subprocess.DEVNULL)
        while not processes.started_by("child"):
            time.sleep(0.01)
        print(processes._mark, flush=True)
        time.sleep(600)
typer.run(command)
"""
HOLDER = """
import time, typer
from cvfl.cli.errors import one_line
from cvfl.scratch import Scratch
def command():
    with one_line(), Scratch() as scratch:
        (scratch.path / "table.parquet").write_text("people")
        print(scratch.path, flush=True)
        time.sleep(600)
typer.run(command)
"""


def started(code: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A process and the first line that it prints."""
    environment = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(30)


@pytest.mark.parametrize("by", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL], ids=str)
def test_nothing_outlives_the_process_that_started_it(by: signal.Signals, tmp_path: Path) -> None:
    process, mark = started(PARENT, tmp_path)
    assert len(watchdog.marked(mark)) == 2
    code = ended(process, by)
    assert code == (-by if by is signal.SIGKILL else 128 + by)
    until = time.monotonic() + 20
    while (left := watchdog.marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []
    while any(mark in (one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])):  # nor the watchdog
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP], ids=str)
def test_a_folder_for_a_while_goes_with_its_process(by: signal.Signals, tmp_path: Path) -> None:
    process, path = started(HOLDER, tmp_path)
    assert (Path(path) / "table.parquet").exists()
    assert ended(process, by) == 128 + by
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cvfl.scratch.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living, kept = started(HOLDER, tmp_path)
    killed, left = started(HOLDER, tmp_path)
    ended(killed, signal.SIGKILL)
    (tmp_path / "cvfl-tmp-foreign").mkdir()  # no lock in it: not one of these
    assert (Path(left) / "table.parquet").exists()
    with Scratch() as scratch:
        assert scratch.path.stat().st_mode & 0o777 == 0o700
        assert not Path(left).exists()
        assert (Path(kept) / "table.parquet").exists()
        assert (tmp_path / "cvfl-tmp-foreign").exists()
    assert not scratch.path.exists()
    ended(living, signal.SIGTERM)
