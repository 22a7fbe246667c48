"""A party between any two frames: it finds its federation, settles its rows, trains, and survives a restart.

No I/O but its own folder. A carrier brings frames in and takes frames out; it may break at any moment.

    FOLDER/setup/        which run this is, which rows are shared, and the secret of the party's noise
    FOLDER/checkpoints/  the party's complete state every few rounds
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cvfl.errors import CvflError, DecodeError, RemoteProtocolError
from cvfl.privacy import AlignmentParty
from cvfl.protocol import PartyMachine
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.wire import Bytes, Message, decode, decode_setup, encode, encode_setup
from cvfl.wire.control import (
    Begin,
    Control,
    End,
    Have,
    Hello,
    Recall,
    Refusal,
    Settle,
    Settled,
    Targets,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import kind_of
from cvfl.wire.message import KINDS
from cvfl.wire.setup import BLINDED, MATCHED

if TYPE_CHECKING:  # the keys of a session need an extra
    from cvfl.privacy.keys import PairSecrets, SessionKey


class Material(Protocol):
    """What a party brings: rows that may need alignment, perhaps the labels, and its model."""

    name: str

    def ids(self) -> Sequence[str]:
        """The ids to align."""

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Take the rows that all parties share, or all; the label holder answers with the targets."""

    def accept(self, targets: Targets) -> None:
        """Hear from the label holder what each row is for."""

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows once they are settled."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same rows again."""

    def restore(self, state: dict[str, Any]) -> None:
        """Have the rows that `state` told."""

    def session_key(self) -> SessionKey | None:
        """A new key pair if the party shares secrets with the others."""

    def party(
        self, m: int, facts: dict[str, Any], secrets: PairSecrets | None = None, noise_secret: bytes | None = None
    ) -> PartyMachine:
        """The party machine for these facts, for the secrets of this session and for the party's own of this run."""


class PartyRole:
    """Drives one party; `done` or `refused` says that it is over."""

    def __init__(
        self, material: Material, terms: dict[str, Any], offer: dict[str, Any], folder: Path, every: int = 10
    ) -> None:
        self.material, self.terms, self.offer, self.every = material, terms, offer, every
        self.party: PartyMachine | None = None
        self._kept = 0
        self.done = False
        self.refused: str | None = None
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._setup = Checkpoints(folder / "setup")
        self._run, self._settling, self._m, self._session = "", "", 0, 0
        self._facts: dict[str, Any] = {}
        self._alignment: AlignmentParty | None = None
        self._key: SessionKey | None = None
        self.new_secret: Callable[[], bytes] = lambda: os.urandom(32)
        self._noise_secret = b""
        if self._setup.rounds():
            known = self._setup.load(0)
            self._run, self._noise_secret = known["run"], known["noise secret"]
            material.restore(known["rows"])
            self._end_again(known["end"])

    def hello(self) -> bytes:
        """The first frame on a new connection."""
        self._session, self.party, self._alignment = 0, None, None
        return encode_control(Hello(name=self.material.name, terms=self.terms, offer=self.offer), self._m)

    def receive(self, frame: Bytes) -> Iterator[bytes]:
        """Answer a frame; the answers come as they are ready."""
        try:
            yield from self._answers(frame)
        except DecodeError as error:
            raise RemoteProtocolError(f"{self.material.name}: from the server: {error}") from error

    def _answers(self, frame: Bytes) -> Iterable[bytes]:
        match kind_of(frame):
            case kind if kind in KINDS:
                return self._round(decode(frame))
            case kind if kind in (BLINDED, MATCHED):
                return self._align(frame)
        _, message = decode_control(frame)
        if isinstance(message, Targets):
            self.material.accept(message)
            return self._settled()
        return self._control(message)

    def _control(self, message: Control) -> Iterable[bytes]:
        match message:
            case Recall(session=session):
                self._session, self.party, self._alignment = session, None, None
                self._key = self.material.session_key()
                public = self._key.public.hex() if self._key else ""
                return [self._say(Have(session=session, run=self._run, rounds=self._checkpoints.rounds(), key=public))]
            case Settle(session=session, run=run, m=m, how=how) if session == self._session:
                self._settling, self._m = run, m
                return self._settle(how)
            case Begin(session=session, m=m) if session == self._session and m == self._m:
                return self._begin(message)
            case End() if self.party is not None and self.party.done:
                self._keep({"m": self._m, "t0": self.party.t0, "facts": self._facts})
                self.done = True
                return [self._say(End(rounds=self.party.t0))]
            case Refusal(reason=reason):
                self.refused = reason
                return []
        raise RemoteProtocolError(f"{self.material.name}: an unexpected {type(message).__name__} from the server")

    def _settle(self, how: str) -> Iterable[bytes]:
        if how == "known":
            return self._settled()
        # On disk before anything is sent: a run that goes back to its start must not draw other noise.
        self._noise_secret = self.new_secret()
        self._run = ""  # until the rows are settled anew, there is nothing to go back to
        self._checkpoints.drop_after(-1)
        if how == "as-is":
            return self._told(self.material.settle(None))
        self._alignment = AlignmentParty(self._m, self.material.ids())
        return map(encode_setup, self._alignment.start())

    def _align(self, frame: Bytes) -> Iterable[bytes]:
        if self._alignment is None:
            raise RemoteProtocolError(f"{self.material.name}: blinded ids, but no alignment is under way")
        replies = [encode_setup(reply) for reply in self._alignment.receive(decode_setup(frame))]
        if self._alignment.common is None:
            return replies
        common, self._alignment = self._alignment.common, None
        return self._told(self.material.settle(common))

    def _told(self, targets: Targets | None) -> Iterable[bytes]:
        """The label holder says what the rows are for; the others wait until they hear it, unless they know."""
        if targets is not None:
            yield encode_control(targets, self._m)
        if self.material.sizes() is not None:
            yield from self._settled()

    def _settled(self) -> Iterable[bytes]:
        sizes = self.material.sizes()
        if sizes is None:
            raise RemoteProtocolError(f"{self.material.name}: rows are taken as known that are not")
        self._run = self._settling
        self._keep(None)
        return [self._say(Settled(session=self._session, rows=sizes))]

    def _keep(self, end: dict[str, Any] | None) -> None:
        rows = self.material.state()
        self._setup.save(0, {"run": self._run, "rows": rows, "end": end, "noise secret": self._noise_secret})

    def _end_again(self, end: dict[str, Any] | None) -> None:
        """A party that ended before it could hand over its model needs nobody to do so."""
        if end is not None and end["t0"] in self._checkpoints.rounds():
            self.party = self.material.party(end["m"], end["facts"], None, self._noise_secret)
            self.party.load_state_dict(self._checkpoints.load(end["t0"]))
            self.done = True

    def _begin(self, begin: Begin) -> Iterable[bytes]:
        if self.material.sizes() is None:
            raise RemoteProtocolError(f"{self.material.name}: the run begins before its rows are settled")
        self._facts = begin.facts
        self.party = self.material.party(self._m, begin.facts, self._secrets(begin.keys), self._noise_secret)
        self._checkpoints.drop_after(begin.t0)
        self._kept = begin.t0
        if begin.t0 > 0:
            self.party.load_state_dict(self._checkpoints.load(begin.t0))
        return map(encode, self.party.start())

    def _secrets(self, keys: Sequence[str]) -> PairSecrets | None:
        """What the session's keys give; a run that is over has none, and needs none."""
        if self._key is None or not keys:
            return None
        try:
            return self._key.agree(self._m, [bytes.fromhex(key) for key in keys])
        except ValueError:
            raise RemoteProtocolError(f"{self.material.name}: public keys that are malformed") from None

    def _round(self, message: Message) -> Iterable[bytes]:
        if self.party is None:
            raise RemoteProtocolError(f"{self.material.name}: a {type(message).__name__} before the run began")
        for reply in self.party.receive(message):
            self._checkpoint(self.party)
            yield encode(reply)
        self._checkpoint(self.party)
        if self.party.done:
            yield self._say(Have(session=self._session, run=self._run, rounds=[self.party.t0]))

    def _checkpoint(self, party: PartyMachine) -> None:
        """Keep the state every few rounds and at the end: once, before anything of it is told."""
        due = party.t0 % self.every == 0 or party.done
        if due and party.settled and party.t0 != self._kept:
            self._checkpoints.save(party.t0, party.state_dict())
            self._kept = party.t0

    def _say(self, message: Control) -> bytes:
        return encode_control(message, self._m)


def refusal(error: CvflError) -> bytes:
    """The frame that tells the others that a party stops; what the error says of its data stays here."""
    reason = f"stopped with a {type(error).__name__}; its own log says more"
    return encode_control(Refusal(reason=reason), 0)
