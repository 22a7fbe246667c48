"""The question of --approve on a real terminal: nothing is painted over it, and a signal there is a signal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console

from conformance.cases import table_settings, write_config, write_tables
from cvfl.cli.consent import agree
from cvfl.cli.errors import Ended, one_line
from cvfl.federation.consent import FILE, Consent
from cvfl.runs.actions import ActionLog

QUESTION = b"Does bank take part by these terms? [y/N]: "


class Asked:
    """A party that asks its owner on a terminal."""

    def __init__(self, folder: Path) -> None:
        self._terminal, theirs = pty.openpty()
        command = ["party", str(folder / "fed.toml"), "--name", "bank", "--approve", "--insecure"]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "cvfl.cli", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=os.environ | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def look(self, until: bytes | None = None, seconds: float = 90.0) -> bytes:
        """What is shown until something is, or for so long, or to the end."""
        ends, start = time.monotonic() + seconds, len(self.shown)
        while time.monotonic() < ends and (until is None or until not in self.shown[start:]):
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._terminal, 1 << 16)
                except OSError:  # the other end is closed
                    break
        return self.shown[start:]

    def say(self, text: bytes) -> None:
        """Type something."""
        os.write(self._terminal, text)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self._terminal)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    write_tables(tmp_path)
    network = {"address": "127.0.0.1:1", "wait_limit": 60}
    write_config(tmp_path / "fed.toml", table_settings(tmp_path, network=network))
    party = Asked(tmp_path)
    try:
        assert QUESTION in party.look(QUESTION), party.shown
        yield party
    finally:
        party.close()


def test_nothing_is_painted_over_the_question_and_a_signal_there_is_no_answer(asked: Asked) -> None:
    asked.say(b"ye")
    assert asked.look(seconds=1.5) == b"ye"  # the echo of what was typed
    asked.child.send_signal(signal.SIGTERM)
    said = asked.look()
    assert b"stopped" in said
    assert b"has not approved" not in said
    assert asked.child.wait(30) == 128 + signal.SIGTERM


class Stopped:
    """Standard input on which somebody presses Ctrl-C, or the system asks to end."""

    def __init__(self, how: BaseException) -> None:
        self._how = how

    def readline(self) -> str:
        raise self._how


def question(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: io.StringIO | Stopped | None) -> int:
    """The exit code of a command that asks."""
    log = ActionLog(folder)
    monkeypatch.setattr(sys, "stdin", typed)
    try:
        with one_line():
            agree(Consent({"length": "short"}, {}), log, "bank", folder / "fed.toml", True, True, Console())
    except typer.Exit as ended:
        return ended.exit_code
    finally:
        log.close()
    return 0


def test_ctrl_c_at_the_question_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stopped, code in ((KeyboardInterrupt(), 130), (Ended(signal.SIGHUP), 129)):
        assert question(tmp_path, monkeypatch, Stopped(stopped)) == code
        assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("answer", ["n\n", "\n", "yeah\n", "", None])
def test_anything_but_a_yes_is_a_no(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert question(tmp_path, monkeypatch, None if answer is None else io.StringIO(answer)) == 2
    assert capsys.readouterr().err == "error: bank: its owner has not approved the terms; nothing was sent\n"
    for yes in ("y\n", "Yes \n"):
        assert question(tmp_path, monkeypatch, io.StringIO(yes)) == 0
        (tmp_path / FILE).unlink()
