"""The rounds of a party: its machine, what it notes of each round for the record, and checkpoints to go back to.

Those of the server are in runtime/round.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

from cvfl.federation.agreement.terms import told_certificates, told_errors
from cvfl.protocol import Certificate, Measured, PartyMachine
from cvfl.runs.directory import fingerprint
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.wire import Message
from cvfl.wire.control import Complete


class PartyRounds:
    """Drives the party's machine while there is one; between sessions `party` is None."""

    def __init__(self, folder: Path, name: str, every: int) -> None:
        self.party: PartyMachine | None = None
        self._name, self._every = name, every
        self._checkpoints = Checkpoints(folder)
        self.belongs_to("")
        self._errors: dict[int, Measured] = {}
        self._certificates: dict[int, Certificate] = {}
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
        self._errors = {t0: Measured(*error) for t0, error in state["errors"].items()}
        self._certificates = {t0: Certificate(*one) for t0, one in state.get("certificates", {}).items()}

    def begin(self, party: PartyMachine, t0: int) -> None:
        """Go on with a machine that is before round t0; later states count no longer."""
        self._checkpoints.drop_after(t0)
        self.party, self._kept = party, (t0, party.done)
        if t0 == 0:
            self._errors, self._certificates = {}, {}

    def start(self, party: PartyMachine) -> Iterator[Message]:
        """What a party says first."""
        yield from party.start()
        self._note_error(party)

    def receive(self, message: Message) -> Iterator[Message]:
        """What it says to a message of a round; what of its state is due is kept before anything of it is told."""
        assert self.party is not None  # since the rounds have begun
        for reply in self.party.receive(message):
            if self.party.certified is not None:
                self._certificates[message.t0] = self.party.certified
            self._note_error(self.party)
            self._checkpoint(self.party)
            yield reply
        self._checkpoint(self.party)

    def complete(self, party: PartyMachine, session: int) -> Complete:
        """What the record shows of this party: hashes of its models, its compression errors and its certificates."""
        hashes = {role: fingerprint(model) for role, model in party.models.items()}
        errors = told_errors({t0: astuple(error) for t0, error in self._errors.items() if t0 < party.t0})
        certificates = told_certificates(self._certificates)
        return Complete(session=session, rounds=party.t0, parameters=hashes, errors=errors, certificates=certificates)

    def _note_error(self, party: PartyMachine) -> None:
        if party.measured is not None and party.t0 < party.plan.rounds:  # after the last round it is an old one
            self._errors[party.t0] = party.measured

    def _checkpoint(self, party: PartyMachine) -> None:
        """Keep the state every few rounds and at the end, once."""
        due = party.t0 % self._every == 0 or party.done
        if due and party.settled and (party.t0, party.done) != self._kept:
            errors = {t0: astuple(error) for t0, error in self._errors.items() if t0 < party.t0}
            certificates = {t0: astuple(one) for t0, one in self._certificates.items()}
            noted = {"errors": errors, "certificates": certificates}
            # The last one twice: the others will not come back for it.
            self._checkpoints.save(party.t0, {"party": party.state_dict(), **noted}, twice=party.done)
            self._kept = party.t0, party.done
