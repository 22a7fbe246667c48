"""What a run keeps while it goes on, so that it can be taken up again: its lines, and the state of all roles."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from cvfl.experiments.federation import Federation
from cvfl.runtime import Meter
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.server_rounds import between_rounds, take_up

TAIL = 1 << 14
"""Bytes that are read from the end of a file of lines at first; a line is seldom longer."""


class Journal:
    """The lines of a run as they come, kept beside the checkpoints, so that a restarted server goes on with them."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, read_lines(path)

    def append(self, line: dict[str, Any]) -> None:
        """Add the line of a round."""
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def back(self, t0: int) -> None:
        """Forget the rounds from t0 on."""
        self.lines = [line for line in self.lines if line["round"] < t0]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        partial.replace(self.path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may be torn."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line, read from the end, so that a long file costs no more than a short one."""
    try:
        with path.open("rb") as file:
            end, size = file.seek(0, os.SEEK_END), TAIL
            while True:
                start = file.seek(max(0, end - size))
                lines = file.read(end - start).split(b"\n")[:-1]  # what comes after the last newline is torn
                if len(lines) > 1 or start == 0:  # the first of several may lack its beginning
                    found: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
                    return found
                size *= 2
    except (FileNotFoundError, ValueError):  # not there yet, or not any more
        return None


class Keep:
    """Keeps a run of all roles in one process: every `seconds`, in a folder, until it is complete."""

    def __init__(self, folder: Path, seconds: float = 30.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._seconds, self._last = folder, seconds, time.monotonic()
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self.journal = Journal(folder / "metrics.jsonl")

    def restore(self, federation: Federation, meter: Meter) -> None:
        """Go back to the newest state that there is, if any, of which all lines are there."""
        server, parties = federation.roles
        kept = [t0 for t0 in self._checkpoints.rounds() if t0 <= len(self.journal.lines)]
        if kept:
            state = self._checkpoints.load(kept[-1])
            take_up(state, server, meter)
            for party in parties:
                party.load_state_dict(state["parties"][party.m])
        self.journal.back(server.t0)

    def settled(self, federation: Federation, meter: Meter) -> None:
        """Between two rounds: keep the state if the last one is old enough."""
        if time.monotonic() - self._last < self._seconds:
            return
        self._last = time.monotonic()
        server, parties = federation.roles
        state = between_rounds(server, meter) | {"parties": {party.m: party.state_dict() for party in parties}}
        self._checkpoints.save(server.t0, state)

    def forget(self) -> None:
        """The run is complete and recorded elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)
