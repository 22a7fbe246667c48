"""What a run keeps while it goes on, so that it can be taken up again: its lines, and the state of all roles."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from cvfl.federation.build import Federation
from cvfl.runs.journal import Journal
from cvfl.runtime import Meter
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.round import between_rounds, take_up


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
