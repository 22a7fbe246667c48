"""Processes that this one starts and none of which outlives it: roles on this machine, FLARE's server and sites."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

import psutil

from cvfl.runtime import watchdog


class Supervisor:
    """Starts Python processes by name; when it is left, they end with everything that they have started themselves.

    A watchdog ends them if this process is killed.
    """

    def __init__(self) -> None:
        self.children: dict[str, subprocess.Popen[str]] = {}
        self._mark = secrets.token_hex(16)
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        out: int | IO[Any],
        errors: int | IO[Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python ARGUMENTS` with one thread: sums depend on their number, and more would only wait for cores."""
        if self._watchdog is None:
            # In a session of its own, Ctrl-C and the end of a terminal do not reach it.
            command = [sys.executable, watchdog.__file__, self._mark]
            self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", watchdog.MARK: self._mark}
        self.children[name] = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            text=True,
            env=os.environ | own | dict(environment or {}),
        )

    def started_by(self, name: str) -> list[int]:
        """The processes that a child has started, and theirs."""
        return [child.pid for child in psutil.Process(self.children[name].pid).children(recursive=True)]

    def end(self) -> None:
        """Ask all to end, and kill what does not."""
        watchdog.end(self._mark)
        for child in self.children.values():
            child.wait()
        if self._watchdog:
            self._watchdog.communicate()
