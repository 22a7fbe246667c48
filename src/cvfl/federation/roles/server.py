"""The server between any two frames: it gathers the parties, has them agree in a session, and ends their run.

What belongs to one session is in agreement/session.py, what may be said when in agreement/handshake.py; the rounds
themselves are in runtime/round.py. No I/O but its own folder:

    FOLDER/setup/        which run this is, the labels if parties told them, and what parties know of each other
    FOLDER/checkpoints/  the server's complete state every few rounds
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from cvfl.errors import CompressError, DecodeError, RemoteProtocolError
from cvfl.federation.agreement.admission import Kept, admitted, check_kept
from cvfl.federation.agreement.handshake import Anything, Phase, Seat
from cvfl.federation.agreement.labels import ServerRows
from cvfl.federation.agreement.session import Said, Session
from cvfl.federation.roles.links import Links
from cvfl.federation.rows.keeping import ServerKeeper
from cvfl.federation.told_labels.holder import told_outputs
from cvfl.privacy import Aligned
from cvfl.protocol import Server, ServerMachine
from cvfl.runtime.carrier import Replies, TermsError
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.meter import Meter, Traffic
from cvfl.runtime.round import OnBack, OnRound, ServerRounds, counted
from cvfl.types import SERVER, Direction
from cvfl.wire import Away, Blinded, Bytes, Gone, Message
from cvfl.wire.control import (
    CONTROL,
    Begin,
    Complete,
    End,
    Have,
    Hello,
    Offer,
    Recall,
    RowSecret,
    Settle,
    Settled,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import kind_of
from cvfl.wire.targets import Targets


class ServerRole:
    """Drives the server of a federation of named parties; `done` says that the run is over."""

    def __init__(
        self,
        names: Sequence[str],
        terms: dict[str, Any],
        rows: ServerRows,
        folder: Path,
        every: int = 10,
        on_round: OnRound = lambda report: None,
        on_back: OnBack = lambda t0: None,
        keeper: ServerKeeper | None = None,
    ) -> None:
        self.keeper = keeper or ServerKeeper(None, names)
        self.names, self.terms, self.rows = tuple(names), terms, rows
        self.rounds = ServerRounds(folder / "checkpoints", every, on_round, on_back)
        self.every = every
        self.facts: dict[str, Any] = {}
        self.aligned: Aligned | None = None
        self.done = False
        self.told: set[int] = set()
        self.left: dict[int, Complete] = {}
        self._setup = Checkpoints(folder / "setup", "server")
        self._run = ""
        self._links = Links(self.names)
        self._hellos: dict[int, Bytes] = {}
        """The first frames of parties since rounds began; they count when rounds begin again."""
        self._session = Session(0, {}, rows, self.keeper)
        self._gathered = True
        if self._setup.rounds():
            known = self._setup.load(0)
            self._belongs_to(known["run"])
            rows.restore(known["labels"])
            self.aligned = Aligned(**known["aligned"]) if known["aligned"] else None
            self.left = {m: Complete(**left) for m, left in known["left"].items()}
            self.meter.before = {m: Traffic(*traffic) for m, traffic in known["before"].items()}
            self.told = set(known["told"])
            self._end_again(known["facts"], known["over"])
        else:
            self.rounds.belongs_to_nothing()

    def _belongs_to(self, run: str) -> None:
        self._run = run
        self.rounds.belongs_to(f"server in run {run}")

    @property
    def meter(self) -> Meter:
        """Counts every frame of the parties and to them."""
        return self.rounds.meter

    @property
    def run(self) -> str:
        """The name that the server gave this run."""
        return self._run

    @property
    def _kept(self) -> Kept:
        return Kept(self._run, self.rounds.kept())

    @property
    def missing(self) -> list[str]:
        """Parties that are not here."""
        return [self.names[m - 1] for m in self._links.missing]

    @property
    def awaited(self) -> dict[int, int]:
        """Parties from whom a message is due, with how many of theirs have counted."""
        server = self.rounds.server
        due = server.awaited if server is not None and not server.done else None
        return self._links.awaited(due)

    @property
    def reached(self) -> int:
        """Rounds that have ever been over."""
        return self.rounds.reached

    def join(self, frame: Bytes, name: str | None = None) -> tuple[int, Replies]:
        """A party's first frame: who it is, and what is to be said when everyone is here.

        `name` is the name that the connection vouches for.
        """
        _, hello = decode_control(frame)
        if not isinstance(hello, Hello):
            raise RemoteProtocolError("the first message of a party is its hello")
        try:
            m = admitted(hello, name, self.names, self.terms)
        except TermsError as error:
            if not self.rows.serves:
                raise
            raise RemoteProtocolError(str(error)) from None  # those who are served have nothing to do with it
        self.rows.welcome(hello.name, hello.offer)
        if m in self._links.here:
            raise RemoteProtocolError(f"{hello.name} is here already")
        if not self.done:
            check_kept(hello.name, Kept(hello.run, hello.rounds), self._kept, self.every)
        rows = self.rows
        seat = Seat(m == 1, hello.offer.label, rows.tables, rows.predicts, rows.serves, rows.partly)
        self._links.join(m, seat, hello.offer)
        if self.done:
            self.meter.again([frame])
            return m, self._farewell(m)
        self._hellos[m] = frame
        return m, self._gather()

    def leave(self, m: int) -> None:
        """A party's connection is gone; the run waits until it is back."""
        self._links.leave(m)
        self.meter.again([self._hellos.pop(m, b"")])
        if not self.done:
            self._new_session(self._session.number, {})  # of nobody, until enough are here again
            self._gathered = False

    def _gather(self) -> Replies:
        """Begin a session, if enough parties are here; else the party with the door hears who is away."""
        self._gathered = True
        offers = self._links.offers
        if not self.rows.enough(offers):
            return self._absence()
        self._new_session(self._session.number + 1, offers)
        self.meter.session()
        return self._send(self._session.recall())

    def _new_session(self, number: int, offers: dict[int, Offer]) -> None:
        """What parties said in the session before counts no longer, and no round goes on."""
        self._links.wait()
        self._session = Session(number, offers, self.rows, self.keeper)
        self.rounds.leave()

    def _absence(self) -> Replies:
        """Where rows are served, who is away is told to the party with the door."""
        doors = [m for m, link in self._links.here.items() if self.rows.serves and link.seat.label]
        return self._send([(m, Away(self._links.missing)) for m in doors])

    def receive(self, m: int, frame: Bytes) -> Replies:
        """Take in a frame of party m.

        Where rows are served, a party that breaks the rules is cut off, and the others go on when it comes back.
        """
        try:
            return self._received(m, frame)
        except (RemoteProtocolError, CompressError) as error:
            if not self.rows.serves:
                raise
            raise DecodeError(str(error)) from error

    def _received(self, m: int, frame: Bytes) -> Replies:
        if self.done:
            self._hear_end(m, frame)
            return []
        message = self._links.take(m, frame, self._session.number)
        if message is None:  # of a session that is over
            self.meter.again([frame])
            return []
        return self._answer(m, message, frame)

    def _answer(self, m: int, message: Anything, frame: Bytes) -> Replies:
        if isinstance(message, Message):
            with self._blamed(m):
                return self.rounds.receive(m, message, frame)
        self.meter.add(m, Direction.UP, frame)
        session = self._session
        match message:
            case Have():
                return self._agree(session) if session.has(m, message) else []
            case RowSecret():
                return self._send(session.pass_secret(m, message))
            case Blinded() | Gone():
                return self._align(session, m, message)
            case Targets():
                return self._send(session.tell(m, message))
            case Settled():
                return self._begin(session) if session.has_settled(m, message) else []
            case Complete():
                return self._has_completed(m, message)
        raise RemoteProtocolError(f"{self.names[m - 1]}: an unexpected {type(message).__name__}")

    def work(self) -> Replies:
        """The server's own steps, when the round's replies are on their way; and the end, when it has come."""
        if self.rows.serves:
            told = [] if self._gathered else self._gather()
            return told + self._send(self.rows.news() if self.rounds.server is not None else [])
        self.rounds.work()
        server = self.rounds.server
        if self.done or server is None or not server.done or not self._links.at(Phase.COMPLETE):
            return []
        self._keep()
        self.rounds.save(server)
        replies = self._send([(m, self._end(m, server)) for m in self._links.offers])
        self.done = True
        return replies

    def _agree(self, session: Session) -> Replies:
        """All have said what they have kept: a new run begins, unless all know the rows of this one."""
        if not session.knows(self._run):
            session.check(self._kept, self.every)
            self.rounds.drop()
            self._belongs_to(secrets.token_hex(8))
            session.begin_rows()
            kept = session.how == "kept"
            self.meter.anew(self.keeper.owed if kept else ())
            self.aligned = self.keeper.aligned() if kept else None
        return self._send(session.settle(self._run))

    def _align(self, session: Session, m: int, message: Blinded | Gone) -> Replies:
        with self._blamed(m):
            replies = session.align(m, message)
        frames = self._send(replies)  # counted before it is said what the alignment took
        self.aligned = session.aligned(self._run, lambda: self.meter.for_alignment(len(self.names)))
        return frames

    def _begin(self, session: Session) -> Replies:
        """All rows are in their order: back to the newest round that everyone has kept."""
        t0 = session.common_round(self._kept, self.every)
        self.facts = self.rows.facts(session.offers)
        replies = self._send(session.begin(t0, self.facts))
        for m, hello in self._hellos.items():
            self.meter.add(m, Direction.UP, hello)
        self._hellos.clear()
        self.meter.begin()
        self._keep()
        self.keeper.counted()
        ids = self.aligned.sizes if self.aligned else ()
        self.rounds.go_back(self.rows.machine(self.facts, ids, self.rounds.logs), t0)
        return replies

    def _has_completed(self, m: int, complete: Complete) -> Replies:
        assert self.rounds.server is not None  # since the rounds have begun
        server = self.rounds.server
        # A label holder tells the others to stop before it reports the round that shows it.
        soon = server.t0 + 1 if server.plan.patience else server.plan.rounds
        if complete.rounds != (server.t0 if server.done else soon):
            raise RemoteProtocolError(f"{self.names[m - 1]}: it is complete after round {complete.rounds}")
        if strange := complete.parameters.keys() - self.rows.models_at(m):
            raise RemoteProtocolError(f"{self.names[m - 1]}: a hash of the model of {min(strange)}")
        self.left[m] = complete
        return []

    def _keep(self) -> None:
        """What a restart needs: of which run this is, and of one that is over what parties left, and who knows."""
        aligned = asdict(self.aligned) if self.aligned else None
        left = {m: complete.model_dump() for m, complete in self.left.items()}
        before = {m: astuple(traffic) for m, traffic in self.meter.before.items()}
        known = {"run": self._run, "labels": self.rows.state(), "aligned": aligned, "facts": self.facts}
        server = self.rounds.server
        over = server.t0 if server and server.done else None
        self._setup.save(0, known | {"left": left, "told": sorted(self.told), "before": before, "over": over})

    def _end_again(self, facts: dict[str, Any], over: int | None) -> None:
        """The state after the last round is written when every party has its own: such a run is over."""
        if over is not None and over in self.rounds.kept():
            self.facts, self.done = facts, True
            self.rounds.go_back(self.rows.machine(facts, folder=self.rounds.logs), over)

    def _farewell(self, m: int) -> Replies:
        """For a party that was away when the run ended: it has the last round, and hears that it was the last."""
        assert self.rounds.server is not None
        session, t0 = self._session.number, self.rounds.server.t0
        messages = (
            Recall(session=session),
            Settle(session=session, run=self._run, m=m, how="known"),
            Begin(session=session, m=m, t0=t0, facts=self.facts),
            self._end(m, self.rounds.server),
        )
        frames = [encode_control(message, SERVER) for message in messages]
        self.meter.again(frames)
        return [(m, frame) for frame in frames]

    def _end(self, m: int, server: ServerMachine) -> End:
        """With the outputs of held-out rows for the holder of labels that were randomised."""
        if isinstance(server, Server) and self.names[m - 1] == self.rows.told_outputs:
            return End(rounds=server.t0, outputs=told_outputs(server))
        return End(rounds=server.t0)

    def _hear_end(self, m: int, frame: Bytes) -> None:
        """A party that has heard the end says so; a connection that breaks looks the same whether it has or not."""
        with suppress(DecodeError):  # whatever else comes now, the run is over
            message = decode_control(frame)[1] if kind_of(frame) == CONTROL else None
            if isinstance(message, End) and m not in self.told:
                self.meter.add(m, Direction.UP, frame)
                self.told.add(m)
                self._keep()  # started again, the server does not wait for who has gone

    def _send(self, messages: Said) -> Replies:
        return counted(self.meter, self._links.frames(messages))

    @contextmanager
    def _blamed(self, m: int) -> Iterator[None]:
        """What a machine says of a message at the wrong time is said with the name of the party that sent it."""
        try:
            yield
        except RemoteProtocolError as error:
            # Bytes that cannot be decoded may have come earlier, from another party; the codec names it.
            if error.__cause__ is not None or str(error).startswith(f"{self.names[m - 1]}:"):
                raise
            raise RemoteProtocolError(f"{self.names[m - 1]}: {error}") from None
