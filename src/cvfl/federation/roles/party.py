"""A party between any two frames: it joins its federation, settles its rows, trains, and survives a restart.

What may be said when is in agreement/handshake.py, how rows are settled in agreement/settling.py; the rounds themselves
are in party_rounds.py. What the server says is held against the party's own configuration. No I/O but its own folder:

    FOLDER/setup/        which run this is, which rows are shared, and by which key they are ordered
    FOLDER/checkpoints/  the party's complete state every few rounds
    FOLDER/released      with noise: what left the party, by round
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.federation.agreement.facts import Facts, read_facts
from cvfl.federation.agreement.handshake import Link, Seat
from cvfl.federation.agreement.settling import Said, Settling
from cvfl.federation.agreement.terms import digest_of
from cvfl.federation.roles.party_rounds import PartyRounds
from cvfl.federation.rows.keeping import PartyKeeper
from cvfl.federation.rows.party import PartyRows
from cvfl.federation.told_labels.holder import check_outputs
from cvfl.privacy.identity import Identity
from cvfl.privacy.keys import Keyring, PairSecrets, SessionKey
from cvfl.privacy.released import Released
from cvfl.protocol import PartyMachine
from cvfl.protocol.release import Secret
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.types import Direction
from cvfl.wire import Away, Blinded, Bytes, Gone, Matched, Message, encode, encode_setup
from cvfl.wire.control import (
    Begin,
    Complete,
    Control,
    End,
    Have,
    Hello,
    Offer,
    Recall,
    Refusal,
    RowSecret,
    Settle,
    Settled,
    encode_control,
)
from cvfl.wire.read import read_frame
from cvfl.wire.targets import Targets


class PartyRole:
    """Drives one party; `done` or `refused` says that it is over.

    `identity` signs its keys, `row_secret` orders the rows if this party gives it, `noise_secret` is for its noise,
    `keeper` has the alignment of an earlier run.
    """

    def __init__(
        self,
        rows: PartyRows,
        terms: dict[str, Any],
        offer: Offer,
        folder: Path,
        every: int = 10,
        identity: Identity | None = None,
        row_secret: bytes = b"",
        noise_secret: bytes | None = None,
        keeper: PartyKeeper | None = None,
    ) -> None:
        self.rows, self.terms, self.offer, self.every = rows, terms, offer, every
        self.rounds = PartyRounds(folder / "checkpoints", rows.name, every)
        self.done = False
        self.refused: str | None = None
        self._m, self._session, self._run = rows.m, 0, ""
        self._setup = Checkpoints(folder / "setup", rows.name)
        seat = Seat(rows.m == 1, offer.label, rows.tables, rows.predicts, rows.serves, rows.partly)
        self._link = Link(Direction.UP, seat)
        self.identity = identity
        self._has_keys = rows.tables or rows.keyed
        self._key: SessionKey | None = None
        self._secrets: PairSecrets | None = None
        self._settling: Settling | None = None
        self.keeper = keeper or PartyKeeper(None, rows.names, wanted=rows.wanted)
        self.blinded: dict[str, int] = {}
        """How many ids each other party has had blinded here, in the newest alignment."""
        self._facts: dict[str, Any] = {}
        self.outputs = ""
        """Of held-out rows, heard at the end, if this party holds labels that were randomised."""
        self._row_secret, self._released = row_secret, Released(folder / "released", rows.name)
        self._noise_secret = None if noise_secret is None else Secret(noise_secret, self._released.note)
        if self._setup.rounds():
            known = self._setup.load(0)
            self._belongs_to(known["run"])
            rows.restore(known["rows"])
            self._end_again(known["end"])
        else:
            self.rounds.belongs_to_nothing()

    @property
    def party(self) -> PartyMachine | None:
        """The party's machine, while rounds go on and when they are over."""
        return self.rounds.party

    @property
    def run(self) -> str:
        """The name that the server gave this run."""
        return self._run

    @property
    def facts(self) -> Facts:
        """What the parties of this run know of each other."""
        return read_facts(self._facts)

    @property
    def _keyring(self) -> Keyring:
        pins = {name: section.fingerprint for name, section in self.rows.config.party.items()}
        return Keyring(self.rows.names, digest_of(self.terms), self.identity, pins)

    def _belongs_to(self, run: str) -> None:
        self._run = run
        self.rounds.belongs_to(run)

    @property
    def name(self) -> str:
        """Which party it is."""
        return self.rows.name

    def hello(self) -> bytes:
        """The first frame on a new connection."""
        self._forget(0)
        self._link.wait()
        kept = self.rounds.kept()
        hello = Hello(name=self.name, terms=self.terms, offer=self.offer, run=self._run, rounds=kept)
        return encode_control(hello, self._m)

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

    def tell(self, messages: Iterable[Message]) -> Iterator[bytes]:
        """The frames of messages that no frame asked for; nothing, if no session is under way."""
        if self.party is not None:
            yield from map(self._say, messages)

    def _answers(self, message: Any) -> Iterable[bytes]:
        match message:
            case Recall(session=session):
                return self._recall(session)
            case Settle():
                return self._settle(message)
            case RowSecret() | Blinded() | Matched() | Targets():
                assert self._settling is not None  # since it was asked for
                return self._settles(self._settling.receive(message))
            case Begin():
                return self._begin(message)
            case End():
                return self._end(message)
            case Away(parties):
                self._check(max(parties, default=0) <= len(self.rows.names), "parties that there are not are away")
                self._forget(self._session, [self.rows.names[m - 1] for m in parties])
                return []
        return self._round(message)

    def _forget(self, session: int, away: Sequence[str] = ()) -> None:
        self.rows.left(away)
        self._session, self._secrets, self._settling = session, None, None
        self.rounds.leave()

    def _recall(self, session: int) -> Iterable[bytes]:
        self._forget(session)
        self._key = SessionKey() if self._has_keys else None
        key = self._keyring.signed(self._m, session, self._key) if self._key else None
        ids = self.rows.ids() if self.rows.how == "align" else ()
        kept, new = self.keeper.has(ids)
        rounds = self.rounds.kept()
        have = Have(session=session, run=self._run, rounds=rounds, ids=len(ids), kept=kept, new=new, key=key)
        return [self._say(have)]

    def _settle(self, settle: Settle) -> Iterable[bytes]:
        self._check(settle.session == self._session, f"rows are to be settled for session {settle.session}")
        self._check(settle.m == self._m, f"this is party {self._m} of {', '.join(self.rows.names)}, not {settle.m}")
        self._check_members(settle)
        if self._key and settle.keys:
            self._secrets = self._keyring.agree(self._m, self._session, self._key, settle.keys, settle.here)
        if settle.how == "known":
            known = settle.run == self._run and self.rows.sizes() is not None
            self._check(known, "rows are taken as known that are not")
            return self._settled()
        how = "align" if settle.how == "kept" else settle.how
        self._check(how == self.rows.how, f"rows are to be settled {settle.how}, not {self.rows.how}")
        self._check(self.keeper.confirms(settle.how, settle.kept), "an alignment is taken up that is not known here")
        self._check_loss(0)
        self._check_noise()
        self.rounds.drop()
        self._belongs_to("")  # until the rows are settled anew, there is nothing to go back to
        self._settling = Settling(self.rows, settle, self._secrets, self._row_secret, self.keeper)
        return self._settles(self._settling.start())

    def _check_members(self, settle: Settle) -> None:
        """Refuse a session without some parties where all are needed, and one that cannot be."""
        M, here = len(self.rows.names), settle.here
        self._check(self.rows.does_without or not here, "a session without some parties, which needs all")
        proper = here == sorted({*here}) and max(here, default=M) <= M
        self._check(proper and {self._m, settle.giver} <= {*settle.members(M)}, "a session of parties that cannot be")

    def _check_loss(self, t0: int) -> None:
        """Refuse to go back to a round further than a crash explains: what is kept here is not the server's to drop."""
        newest = max(self.rounds.kept(), default=0)
        said = f"the run is to begin anew; round {newest} is kept here, start with --restart if that is meant"
        self._check(t0 > 0 or newest <= self.every, said)

    def _check_noise(self) -> None:
        """Refuse another run with noise that was released in one: of what parties share, each run has its own."""
        again = self.rows.config.privacy.noise_shared and self._released.some
        said = "the run is to begin anew, and embeddings with noise have left; start every party with --restart"
        self._check(not again, said)

    def _settles(self, messages: Iterable[Said]) -> Iterable[bytes]:
        """Say what settles the rows, and that they are settled when they are."""
        assert self._settling is not None
        for message in messages:
            yield self._say(message)
        if self._settling.done:
            yield from self._settled()

    def _settled(self) -> Iterable[bytes]:
        sizes = self.rows.sizes()
        assert sizes is not None
        if self._settling is not None:
            self._belongs_to(self._settling.run)
            self.blinded = self._settling.blinded
        self._keep(None)
        return [self._say(Settled(session=self._session, rows=sizes))]

    def _keep(self, end: dict[str, Any] | None) -> None:
        self._setup.save(0, {"run": self._run, "rows": self.rows.state(), "end": end})

    def _begin(self, begin: Begin) -> Iterable[bytes]:
        self._check(begin.session == self._session and begin.m == self._m, f"rounds of session {begin.session} begin")
        self._check_loss(begin.t0)
        facts = read_facts(begin.facts)
        self.rows.check(facts, self.offer.width, self.offer.compressor)
        party = self.rows.machine(facts, self._secrets, self._noise_secret, self.rounds.logs)
        if begin.t0 > 0:
            self.rounds.load(party, begin.t0)
        keyed = self.rows.keyed and not party.done
        self._check(not keyed or self._secrets is not None, "the keys of the parties are missing")
        self.rounds.begin(party, begin.t0)
        self._facts = begin.facts
        return self._start(party)

    def _start(self, party: PartyMachine) -> Iterable[bytes]:
        """What a party says first; in a prediction it may be all that it has to say."""
        before = party.done
        for message in self.rounds.start(party):
            yield self._say(message)
        if party.done and not before:
            yield self._say(self.rounds.complete(party, self._session))

    def _round(self, message: Message) -> Iterable[bytes]:
        for reply in self.rounds.receive(message):
            yield self._say(reply)
        assert self.party is not None  # since the rounds have begun
        if self.party.done:
            yield self._say(self.rounds.complete(self.party, self._session))

    def _end(self, end: End) -> Iterable[bytes]:
        self._check(self.party is not None and self.party.done, "an end before the last round")
        assert self.party is not None
        self._check(self.rows.holds or not end.outputs, "outputs that are for the holder of the labels")
        check_outputs(self.party.plan, self.facts.outputs, end.outputs)
        self.outputs = end.outputs
        self._keep({"t0": self.party.t0, "facts": self._facts, "outputs": end.outputs})
        self.done = True
        return [self._say(End(rounds=self.party.t0))]

    def _end_again(self, end: dict[str, Any] | None) -> None:
        """A party that ended before it could hand over its model needs nobody to do so."""
        if end is not None and end["t0"] in self.rounds.kept():
            self._facts, self.outputs = end["facts"], end.get("outputs", "")
            self.rounds.party = self.rows.machine(self.facts, None, self._noise_secret, self.rounds.logs)
            self.rounds.load(self.rounds.party, end["t0"])
            self.done = True

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            raise RemoteProtocolError(f"{self.name}: from the server: {what}")

    def _say(self, message: Message | Blinded | Gone | Control | Targets) -> bytes:
        """The frame of a message, which is a step in the handshake."""
        self._link.send(message)
        match message:
            case Blinded() | Gone():
                return encode_setup(message)
            case Have() | RowSecret() | Settled() | Complete() | End() | Targets():
                return encode_control(message, self._m)
        return encode(message)  # type: ignore[arg-type]
