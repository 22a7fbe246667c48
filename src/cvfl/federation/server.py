"""The server between any two frames: it gathers the parties, settles their rows, finds the newest round that all have.

The rounds themselves are in runtime/round.py, what may be said when in handshake.py. No I/O but its own folder:

    FOLDER/setup/        which run this is, the labels if parties told them, and what parties know of each other
    FOLDER/checkpoints/  the server's complete state every few rounds
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from cvfl.errors import CompressError, DecodeError, RemoteProtocolError
from cvfl.federation.agreement.admission import Kept, admitted, check_kept, common_round
from cvfl.federation.agreement.handshake import Anything, Link, Phase, Seat
from cvfl.federation.agreement.labels import ServerRows
from cvfl.federation.holder import told_outputs
from cvfl.federation.keeping import ServerKeeper
from cvfl.privacy import Aligned, AlignmentServer
from cvfl.protocol import Server, ServerMachine
from cvfl.runtime.carrier import Replies, TermsError
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.meter import Meter, Traffic
from cvfl.runtime.round import OnBack, OnRound, ServerRounds, counted
from cvfl.types import SERVER, Direction
from cvfl.wire import Away, Blinded, Bytes, Gone, Message, Setup, encode, encode_setup
from cvfl.wire.control import (
    CONTROL,
    Begin,
    Complete,
    Control,
    End,
    Have,
    Hello,
    How,
    Offer,
    Recall,
    Refusal,
    RowSecret,
    Settle,
    Settled,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import kind_of
from cvfl.wire.message import KINDS
from cvfl.wire.read import read_frame
from cvfl.wire.setup import BLINDED, MATCHED
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
        self._run, self._session = "", 0
        self._links: dict[int, Link] = {}
        self._hellos: dict[int, Bytes] = {}
        """The first frames of parties since rounds began; they count when rounds begin again."""
        self._offers: dict[int, Offer] = {}
        self._have: dict[int, Have] = {}
        self._settled: dict[int, list[int]] = {}
        self._alignment: AlignmentServer | None = None
        self._taken: Counter[int] = Counter()
        self._gathered = True
        self._here: tuple[int, ...] = ()
        """The parties of the session."""
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
        return [name for m, name in enumerate(self.names, start=1) if m not in self._links]

    @property
    def awaited(self) -> dict[int, int]:
        """Parties from whom a message is due, with how many of theirs have counted."""
        server = self.rounds.server
        due = server.awaited if server is not None and not server.done else None
        return {m: self._taken[m] for m, link in sorted(self._links.items()) if _owes(m, link, due)}

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
        if m in self._links:
            raise RemoteProtocolError(f"{hello.name} is here already")
        if not self.done:
            check_kept(hello.name, Kept(hello.run, hello.rounds), self._kept, self.every)
        rows = self.rows
        seat = Seat(m == 1, hello.offer.label, rows.tables, rows.predicts, rows.serves, rows.partly)
        self._links[m], self._offers[m] = Link(Direction.DOWN, seat), hello.offer
        if self.done:
            self.meter.again([frame])
            return m, self._farewell(m)
        self._hellos[m] = frame
        return m, self._gather()

    def leave(self, m: int) -> None:
        """A party's connection is gone; the run waits until it is back."""
        self._links.pop(m, None)
        self.meter.again([self._hellos.pop(m, b"")])
        if not self.done:
            self._forget()
            self._gathered = False

    def _gather(self) -> Replies:
        """Begin a session, if enough parties are here; else the party with the door hears who is away."""
        self._gathered = True
        return self._recall() if self.rows.enough(self._offered(sorted(self._links))) else self._absence()

    def _absence(self) -> Replies:
        """Where rows are served, who is away is told to the party with the door."""
        missing = tuple(m for m in range(1, len(self.names) + 1) if m not in self._links)
        doors = [m for m, link in self._links.items() if self.rows.serves and link.seat.label]
        return self._sent([(m, Away(missing)) for m in doors])

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
        link = self._links[m]
        if link.stale and kind_of(frame) in (*KINDS, BLINDED, MATCHED):
            self.meter.again([frame])  # of a session that is over
            return []
        message = read_frame(frame)
        if isinstance(message, Refusal):
            name = f"{self.names[m - 1]}: "
            raise RemoteProtocolError(name + message.reason.removeprefix(name))
        recalled = link.phase is Phase.RECALLED and isinstance(message, Have) and message.session == self._session
        if link.stale and not recalled:
            self.meter.again([frame])
            return []
        if (sender := getattr(message, "m", m)) != m:
            raise RemoteProtocolError(f"{self.names[m - 1]}: a message in the name of role {sender}")
        link.take(message, self.names[m - 1])
        self._taken[m] += 1
        return self._answer(m, message, frame)

    def _answer(self, m: int, message: Anything, frame: Bytes) -> Replies:
        if isinstance(message, Message):
            with self._blamed(m):
                return self.rounds.receive(m, message, frame)
        self.meter.add(m, Direction.UP, frame)
        match message:
            case Have():
                self._have[m] = message
                return self._agree() if len(self._have) == len(self._here) else []
            case RowSecret():
                return self._pass_secret(m, message)
            case Blinded() | Gone():
                return self._align(m, message)
            case Targets():
                return self._targets(m, message)
            case Settled():
                return self._has_settled(m, message)
            case Complete():
                return self._has_completed(m, message)
        raise RemoteProtocolError(f"{self.names[m - 1]}: an unexpected {type(message).__name__}")

    def work(self) -> Replies:
        """The server's own steps, when the round's replies are on their way; and the end, when it has come."""
        if self.rows.serves:
            told = [] if self._gathered else self._gather()
            return told + self._sent(self.rows.news() if self.rounds.server is not None else [])
        self.rounds.work()
        server = self.rounds.server
        everyone = len(self._links) == len(self.names)
        complete = everyone and all(link.phase is Phase.COMPLETE for link in self._links.values())
        if self.done or server is None or not server.done or not complete:
            return []
        self._keep()
        self.rounds.save(server)
        replies = self._to_all(lambda m: self._end(m, server))
        self.done = True
        return replies

    def _recall(self) -> Replies:
        self._session += 1
        self._here = tuple(sorted(self._links))
        self._forget()
        self.meter.session()
        return self._to_all(lambda m: Recall(session=self._session))

    def _forget(self) -> None:
        """End a session: what parties said in it counts no longer."""
        for link in self._links.values():
            link.wait()
        self._have, self._settled, self._alignment = {}, {}, None
        self.rounds.leave()

    def _agree(self) -> Replies:
        """All have said what they have kept: how are the rows settled?"""
        known = (
            self._run and self.rows.sizes() is not None and all(have.run == self._run for have in self._have.values())
        )
        how: How = "known" if known else self.rows.how
        have, offers = [self._have[m] for m in self._here], self._offered(self._here)
        ids, new, kept = [one.ids for one in have], [one.new for one in have], ""
        if not known:
            for m, one in zip(self._here, have, strict=True):
                check_kept(self.names[m - 1], Kept(one.run, one.rounds), self._kept, self.every)
            self.rows.check(offers)
            self.rounds.drop()
            self._belongs_to(secrets.token_hex(8))
            outer = self.rows.outer(offers)
            if how == "align":
                how, kept = self.keeper.agree([one.kept for one in have], ids, new, outer)
            self.meter.anew(self.keeper.owed if how == "kept" else ())
            self.aligned = self.keeper.aligned() if how == "kept" else None
            self._alignment = self.keeper.begin(ids, kept, new, outer) if how == "align" else None
        keys = [one.key for one in have if one.key]
        settle = Settle(
            session=self._session,
            run=self._run,
            m=1,
            how=how,
            keys=keys,
            ids=ids,
            kept=kept,
            new=new,
            giver=self.rows.giver(offers),
            here=list(self._here) if self.missing else [],
        )
        return self._to_all(lambda m: settle.model_copy(update={"m": m}))

    def _offered(self, parties: Sequence[int]) -> dict[int, Offer]:
        return {m: self._offers[m] for m in parties}

    def _pass_secret(self, m: int, message: RowSecret) -> Replies:
        """Pass on to each party what another one sealed for it."""
        others = [j for j in self._here if j != m]
        if message.session != self._session or len(message.sealed) != len(others):
            raise RemoteProtocolError(f"{self.names[m - 1]}: not one secret of the rows for each other party")
        sealed = zip(others, message.sealed, strict=True)
        return self._sent([(j, RowSecret(session=self._session, sealed=[text])) for j, text in sealed])

    def _align(self, m: int, message: Blinded | Gone) -> Replies:
        if self._alignment is None:
            raise RemoteProtocolError(f"{self.names[m - 1]}: blinded ids, but no alignment is under way")
        with self._blamed(m):
            replies = self._alignment.receive(message)
        frames = self._sent(replies)
        self.aligned = self._alignment.aligned
        if self.aligned is not None:
            self.keeper.keep(self._alignment, self._run, self.meter.for_alignment(len(self.names)))
            self._alignment = None  # blinded ids take much room
        return frames

    def _targets(self, m: int, targets: Targets) -> Replies:
        self.rows.accept(targets)
        others = [j for j in range(1, len(self.names) + 1) if j != m]
        return self._sent([(j, self.rows.passed_on(targets, j)) for j in others])

    def _has_settled(self, m: int, settled: Settled) -> Replies:
        if settled.session != self._session:
            raise RemoteProtocolError(f"{self.names[m - 1]}: rows of session {settled.session}")
        self._settled[m] = settled.rows
        return self._begin() if len(self._settled) == len(self._here) else []

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

    def _begin(self) -> Replies:
        """All rows are in their order: back to the newest round that everyone has kept."""
        sizes = self.rows.settled(self._settled[self._here[0]])
        for m, rows in sorted(self._settled.items()):
            if rows != sizes:
                raise RemoteProtocolError(
                    f"{self.names[m - 1]} has {rows} training, validation and test rows, the server {sizes}"
                )
        t0 = common_round(self._kept, [Kept(have.run, have.rounds) for have in self._have.values()], self.every)
        self.facts = facts = self.rows.facts(self._offered(self._here))
        replies = self._to_all(lambda m: Begin(session=self._session, m=m, t0=t0, facts=facts))
        for m, hello in self._hellos.items():
            self.meter.add(m, Direction.UP, hello)
        self._hellos.clear()
        self.meter.begin()
        self._keep()
        self.keeper.counted()
        ids = self.aligned.sizes if self.aligned else ()
        self.rounds.go_back(self.rows.machine(facts, ids, self.rounds.logs), t0)
        return replies

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
        session, t0 = self._session, self.rounds.server.t0
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

    def _to_all(self, message: Callable[[int], Control]) -> Replies:
        return self._sent([(m, message(m)) for m in range(1, len(self.names) + 1)])

    def _sent(self, messages: Sequence[tuple[int, Anything]]) -> Replies:
        """The frames of messages to parties that are here, each a step in its handshake."""
        frames: Replies = []
        for m, message in messages:
            if m in self._links:
                self._links[m].send(message)
                frames.append((m, _frame(message)))
        return counted(self.meter, frames)


def _owes(m: int, link: Link, due: set[int] | None) -> bool:
    """Whether party m has something to say now; within a round its machine knows from whom something is `due`."""
    if link.phase not in (Phase.TRAINING, Phase.PREDICTING, Phase.SERVING) or due is None:
        return link.owes
    return m in due


def _frame(message: Anything) -> bytes:
    if isinstance(message, Message):
        return encode(message)
    return encode_setup(message) if isinstance(message, Setup) else encode_control(message, SERVER)
