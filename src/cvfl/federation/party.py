"""A party between any two frames: it joins its federation, settles its rows, trains, and survives a restart.

What may be said when is in handshake.py. No I/O but its own folder:

    FOLDER/setup/        which run this is, which rows are shared, and the secret of the party's noise
    FOLDER/checkpoints/  the party's complete state every few rounds
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.federation.handshake import Link
from cvfl.federation.rows import PartyRows
from cvfl.privacy import AlignmentParty
from cvfl.protocol import Measured, PartyMachine
from cvfl.runs.directory import fingerprint
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.types import Direction
from cvfl.wire import Blinded, Bytes, Matched, Message, encode, encode_setup
from cvfl.wire.control import (
    Begin,
    Complete,
    Control,
    End,
    Have,
    Hello,
    Recall,
    Refusal,
    Settle,
    Settled,
    Targets,
    encode_control,
)
from cvfl.wire.read import read_frame

if TYPE_CHECKING:  # the keys of a session need an extra
    from cvfl.privacy.keys import PairSecrets, SessionKey

_MOST_ERRORS = 10_000


class PartyRole:
    """Drives one party; `done` or `refused` says that it is over."""

    def __init__(
        self, rows: PartyRows, terms: dict[str, Any], offer: dict[str, Any], folder: Path, every: int = 10
    ) -> None:
        self.rows, self.terms, self.offer, self.every = rows, terms, offer, every
        self.party: PartyMachine | None = None
        self.done = False
        self.refused: str | None = None
        self._setup = Checkpoints(folder / "setup")
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._link = Link(Direction.UP)
        self._session, self._m = 0, 0
        self._run, self._settling = "", ""
        self._key: SessionKey | None = None
        self._alignment: AlignmentParty | None = None
        self._facts: dict[str, Any] = {}
        self._errors: dict[int, Measured] = {}
        self._kept = -1
        self.new_secret: Callable[[], bytes] = lambda: os.urandom(32)
        self._noise_secret = b""
        if self._setup.rounds():
            known = self._setup.load(0)
            self._run, self._noise_secret = known["run"], known["noise secret"]
            rows.restore(known["rows"])
            self._end_again(known["end"])

    @property
    def name(self) -> str:
        """Which party it is."""
        return self.rows.name

    def hello(self) -> bytes:
        """The first frame on a new connection."""
        self._forget(0)
        self._link.wait()
        return encode_control(Hello(name=self.name, terms=self.terms, offer=self.offer), self._m)

    def receive(self, frame: Bytes) -> Iterator[bytes]:
        """Answer a frame; the answers come as they are ready."""
        try:
            message = read_frame(frame)
            if isinstance(message, Refusal):
                self.refused = message.reason
                return
            self._link.take(message, f"{self.name}: from the server")
            yield from self._answers(message)
        except DecodeError as error:
            raise RemoteProtocolError(f"{self.name}: from the server: {error}") from error

    def _answers(self, message: Any) -> Iterable[bytes]:
        match message:
            case Recall(session=session):
                return self._recall(session)
            case Settle():
                return self._settle(message)
            case Blinded() | Matched():
                return self._align(message)
            case Targets():
                self.rows.accept(message)
                return self._settled()
            case Begin():
                return self._begin(message)
            case End():
                return self._end()
        return self._round(message)

    def _forget(self, session: int) -> None:
        self._session, self.party, self._alignment = session, None, None

    def _recall(self, session: int) -> Iterable[bytes]:
        self._forget(session)
        self._key = self.rows.session_key()
        public = self._key.public.hex() if self._key else ""
        return [self._say(Have(session=session, run=self._run, rounds=self._checkpoints.rounds(), key=public))]

    def _settle(self, settle: Settle) -> Iterable[bytes]:
        self._check(settle.session == self._session, f"rows are to be settled for session {settle.session}")
        self._settling, self._m = settle.run, settle.m
        if settle.how == "known":
            return self._settled()
        # On disk before anything is sent: a run that goes back to its start must not draw other noise.
        self._noise_secret = self.new_secret()
        self._run = ""  # until the rows are settled anew, there is nothing to go back to
        self._checkpoints.drop_after(-1)
        if settle.how == "as-is":
            return self._told(self.rows.settle(None))
        self._alignment = AlignmentParty(self._m, self.rows.ids())
        return map(self._say, self._alignment.start())

    def _align(self, message: Blinded | Matched) -> Iterable[bytes]:
        if self._alignment is None:
            raise RemoteProtocolError(f"{self.name}: blinded ids, but no alignment is under way")
        replies = [self._say(reply) for reply in self._alignment.receive(message)]
        if self._alignment.common is None:
            return replies
        common, self._alignment = self._alignment.common, None
        return self._told(self.rows.settle(common))

    def _told(self, targets: Targets | None) -> Iterable[bytes]:
        """The label holder says what the rows are for; the others wait until they hear it, unless they know."""
        if targets is not None:
            yield self._say(targets)
        if self.rows.sizes() is not None:
            yield from self._settled()

    def _settled(self) -> Iterable[bytes]:
        sizes = self.rows.sizes()
        if sizes is None:
            raise RemoteProtocolError(f"{self.name}: rows are taken as known that are not")
        self._run = self._settling
        self._keep(None)
        return [self._say(Settled(session=self._session, rows=sizes))]

    def _keep(self, end: dict[str, Any] | None) -> None:
        rows = self.rows.state()
        self._setup.save(0, {"run": self._run, "rows": rows, "end": end, "noise secret": self._noise_secret})

    def _begin(self, begin: Begin) -> Iterable[bytes]:
        self._check(begin.session == self._session and begin.m == self._m, f"rounds of session {begin.session} begin")
        self._facts = begin.facts
        self.party = self.rows.machine(self._m, begin.facts, self._secrets(begin.keys), self._noise_secret)
        self._checkpoints.drop_after(begin.t0)
        self._kept, self._errors = begin.t0, {}
        if begin.t0 > 0:
            self._restore(self.party, begin.t0)
        first = self.party.start()
        self._note_error(self.party)
        return map(self._say, first)

    def _secrets(self, keys: Sequence[str]) -> PairSecrets | None:
        """What the session's keys give; a run that is over has none, and needs none."""
        if self._key is None or not keys:
            return None
        try:
            return self._key.agree(self._m, [bytes.fromhex(key) for key in keys])
        except ValueError:
            raise RemoteProtocolError(f"{self.name}: public keys that are malformed") from None

    def _round(self, message: Message) -> Iterable[bytes]:
        assert self.party is not None  # since the rounds have begun
        for reply in self.party.receive(message):
            self._note_error(self.party)
            self._checkpoint(self.party)
            yield self._say(reply)
        self._checkpoint(self.party)
        if self.party.done:
            yield self._say(self._complete(self.party))

    def _note_error(self, party: PartyMachine) -> None:
        if party.measured is not None and party.t0 < party.plan.rounds:  # after the last round it is an old one
            self._errors[party.t0] = party.measured

    def _checkpoint(self, party: PartyMachine) -> None:
        """Keep the state every few rounds and at the end: once, before anything of it is told."""
        due = party.t0 % self.every == 0 or party.done
        if due and party.settled and party.t0 != self._kept:
            errors = {t0: astuple(error) for t0, error in self._errors.items() if t0 < party.t0}
            self._checkpoints.save(party.t0, {"party": party.state_dict(), "errors": errors})
            self._kept = party.t0

    def _restore(self, party: PartyMachine, t0: int) -> None:
        state = self._checkpoints.load(t0)
        party.load_state_dict(state["party"])
        self._errors = {t0: Measured(*error) for t0, error in state["errors"].items()}

    def _end(self) -> Iterable[bytes]:
        self._check(self.party is not None and self.party.done, "an end before the last round")
        assert self.party is not None
        self._keep({"m": self._m, "t0": self.party.t0, "facts": self._facts})
        self.done = True
        return [self._say(End(rounds=self.party.t0))]

    def _complete(self, party: PartyMachine) -> Complete:
        """What the record of the run shows of this party: the hashes of its models, and its compression errors."""
        hashes = {role: fingerprint(model) for role, model in party.models.items()}
        every = -(-len(self._errors) // _MOST_ERRORS)
        errors = [(t0, *astuple(error)) for t0, error in sorted(self._errors.items())][::-1][:: max(every, 1)][::-1]
        return Complete(session=self._session, rounds=party.t0, parameters=hashes, errors=errors)

    def _end_again(self, end: dict[str, Any] | None) -> None:
        """A party that ended before it could hand over its model needs nobody to do so."""
        if end is not None and end["t0"] in self._checkpoints.rounds():
            self.party = self.rows.machine(end["m"], end["facts"], None, self._noise_secret)
            self._restore(self.party, end["t0"])
            self.done = True

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            raise RemoteProtocolError(f"{self.name}: from the server: {what}")

    def _say(self, message: Message | Blinded | Matched | Control | Targets) -> bytes:
        """The frame of a message, which is a step in the handshake."""
        self._link.send(message)
        match message:
            case Blinded() | Matched():
                return encode_setup(message)
            case Have() | Settled() | Complete() | End() | Targets():
                return encode_control(message, self._m)
        return encode(message)  # type: ignore[arg-type]
