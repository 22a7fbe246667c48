"""The question of --approve on a real terminal: nothing is painted over it, and a signal there is a signal."""

from __future__ import annotations

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

from conformance.cases import table_settings, write_config, write_tables

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


def test_nothing_is_painted_over_the_question(asked: Asked) -> None:
    asked.say(b"ye")
    assert asked.look(seconds=1.5) == b"ye"  # the echo of what was typed
    asked.say(b"s\n")
    assert b"waiting for" in asked.look(b"waiting for")  # the display is there again
