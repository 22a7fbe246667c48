"""The rounds of a party: its machine, what it notes of each round for the record, and checkpoints to go back to.

Those of the server are in runtime/round.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cvfl.federation.agreement.terms import told_certificates, told_errors
from cvfl.protocol import Certificate, PartyMachine
from cvfl.runs.directory import fingerprint
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.wire import Message
from cvfl.wire.control import Complete


class _Noted:
    """Three figures of every round that has them, one block of numbers: all of it is in every checkpoint."""

    def __init__(self, kept: Tensor | Mapping[int, Any] | None = None) -> None:
        """As a checkpoint has them; those of version 0.1 by round."""
        if isinstance(kept, Mapping):
            kept = torch.tensor([(t0, *figures) for t0, figures in sorted(kept.items())], dtype=torch.float64)
        self._rows = array("d", [] if kept is None else kept.flatten().tolist())

    def note(self, t0: int, figures: tuple[float, float, float]) -> None:
        """Those of a round, which is the newest."""
        while self._rows and self._rows[-4] >= t0:
            del self._rows[-4:]
        self._rows.extend((t0, *figures))

    @property
    def kept(self) -> Tensor:
        """Rows of the round and its figures."""
        return torch.from_numpy(np.array(self._rows).reshape(-1, 4))

    @property
    def by_round(self) -> dict[int, tuple[float, float, float]]:
        """All of them."""
        return {int(t0): (a, b, c) for t0, a, b, c in self.kept.tolist()}


class PartyRounds:
    """Drives the party's machine while there is one; between sessions `party` is None."""

    def __init__(self, folder: Path, name: str, every: int) -> None:
        self.party: PartyMachine | None = None
        self._name, self._every = name, every
        self._checkpoints = Checkpoints(folder)
        self.belongs_to("")
        self._errors, self._certificates = _Noted(), _Noted()
        self._kept = (-1, False)

    def kept(self) -> list[int]:
        """The rounds that can be gone back to, ascending."""
        return self._checkpoints.rounds()

    @property
    def logs(self) -> Path:
        """The folder for what the party's machine knows of rows."""
        return self._checkpoints.logs

    def belongs_to(self, run: str) -> None:
        """Which run its checkpoints are of; those of anything else are refused."""
        self._checkpoints.of = f"{self._name} in run {run}"

    def belongs_to_nothing(self) -> None:
        """There is no run yet, and there are to be no checkpoints of one."""
        self._checkpoints.check_none()

    def drop(self) -> None:
        """Another run begins: there is nothing to go back to."""
        self._checkpoints.drop_after(-1)

    def leave(self) -> None:
        """The session is over: no round goes on."""
        self.party = None

    def load(self, party: PartyMachine, t0: int) -> None:
        """Bring a new machine to the state before round t0."""
        state = self._checkpoints.load(t0)
        party.load_state_dict(state["party"])
        self._errors, self._certificates = _Noted(state["errors"]), _Noted(state.get("certificates"))

    def begin(self, party: PartyMachine, t0: int) -> None:
        """Go on with a machine that is before round t0; later states count no longer."""
        self._checkpoints.drop_after(t0)
        self.party, self._kept = party, (t0, party.done)
        if t0 == 0:
            self._errors, self._certificates = _Noted(), _Noted()

    def start(self, party: PartyMachine) -> Iterator[Message]:
        """What a party says first."""
        yield from party.start()
        self._note_error(party)

    def receive(self, message: Message) -> Iterator[Message]:
        """What it says to a message of a round; what of its state is due is kept before anything of it is told."""
        assert self.party is not None  # since the rounds have begun
        for reply in self.party.receive(message):
            if self.party.certified is not None:
                self._certificates.note(message.t0, astuple(self.party.certified))
            self._note_error(self.party)
            self._checkpoint(self.party)
            yield reply
        self._checkpoint(self.party)

    def complete(self, party: PartyMachine, session: int) -> Complete:
        """What the record shows of this party: hashes of its models, its compression errors and its certificates."""
        hashes = {role: fingerprint(model) for role, model in party.models.items()}
        errors = told_errors({t0: error for t0, error in self._errors.by_round.items() if t0 < party.t0})
        certificates = told_certificates({t0: Certificate(*one) for t0, one in self._certificates.by_round.items()})
        return Complete(session=session, rounds=party.t0, parameters=hashes, errors=errors, certificates=certificates)

    def _note_error(self, party: PartyMachine) -> None:
        if party.measured is not None and party.t0 < party.plan.rounds:  # after the last round it is an old one
            self._errors.note(party.t0, astuple(party.measured))

    def _checkpoint(self, party: PartyMachine) -> None:
        """Keep the state every few rounds and at the end, once."""
        due = party.t0 % self._every == 0 or party.done
        if due and party.settled and (party.t0, party.done) != self._kept:
            errors = self._errors.kept
            noted = {"errors": errors[errors[:, 0] < party.t0], "certificates": self._certificates.kept}
            # The last one twice: the others will not come back for it.
            self._checkpoints.save(party.t0, {"party": party.state_dict(), **noted}, twice=party.done)
            self._kept = party.t0, party.done
