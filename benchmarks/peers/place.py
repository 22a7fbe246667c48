"""Processes of a measurement, each with its output in a file; none outlives it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class Roles:
    """Starts processes by name in a folder and ends them, and what they started, when it is left."""

    def __init__(self, folder: Path, python: Path = Path(sys.executable)) -> None:
        self.folder, self.python, self.children = folder, python, dict[str, subprocess.Popen[bytes]]()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (15, 9):
            for child in self.children.values():
                _signal(child, number)
            until = time.monotonic() + 5
            while time.monotonic() < until and any(child.poll() is None for child in self.children.values()):
                time.sleep(0.1)

    def start(
        self, name: str, arguments: Sequence[str], program: Path | None = None, also: Mapping[str, str] | None = None
    ) -> None:
        """`python ARGUMENTS`, or another program, with one thread and a session of its own."""
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            self.children[name] = subprocess.Popen(
                [str(program or self.python), *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(also or {}),
            )

    def wait(self, names: Sequence[str], patience: float) -> None:
        """Until these have ended well."""
        until = time.monotonic() + patience
        while running := [name for name in names if self.children[name].poll() is None]:
            if time.monotonic() > until:
                raise SystemExit(f"{running[0]} has not ended after {patience:.0f} s")
            for name in names:
                self._check(name)
            time.sleep(0.05)
        for name in names:
            self._check(name)

    def _check(self, name: str) -> None:
        if self.children[name].poll():
            said = (self.folder / f"{name}.err").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{name} ended with {self.children[name].poll()}: {said[-1500:]}")


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    """To its whole session: these are all processes that were started here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
