"""Processes that this one starts and none of which outlives it: roles on this machine, FLARE's server and sites."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, Self

import psutil

PATIENCE = 5.0
"""Seconds that a process has to end when asked, before it is killed."""


class Supervisor:
    """Starts Python processes by name; when it is left, they end with everything that they have started themselves."""

    def __init__(self) -> None:
        self.children: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def start(self, name: str, arguments: Sequence[str], out: int | IO[Any], errors: int | IO[Any]) -> None:
        """Start `python ARGUMENTS` with one thread: sums depend on their number, and more would only wait for cores."""
        self.children[name] = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def started_by(self, name: str) -> list[int]:
        """The processes that a child has started, and theirs."""
        return [child.pid for child in psutil.Process(self.children[name].pid).children(recursive=True)]

    def end(self) -> None:
        """Ask all to end, and kill what does not."""
        found: list[psutil.Process] = []
        for child in self.children.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.poll() is None:
                    own = psutil.Process(child.pid)
                    found += [*own.children(recursive=True), own]
        for signal in ("terminate", "kill"):
            for one in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    getattr(one, signal)()
            _, found = psutil.wait_procs(found, timeout=PATIENCE)
        for child in self.children.values():
            child.wait()
