"""The server between any two frames: it gathers the parties, settles their rows, finds the newest round that all have.

The rounds themselves are in server_rounds.py. No I/O but its own folder. A carrier tells who joined and who left,
brings frames in, takes frames out, and calls `work` when what there was to send is on its way.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.privacy import Aligned, AlignmentServer
from cvfl.protocol import ServerMachine
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.meter import Meter
from cvfl.runtime.server_rounds import OnBack, OnRound, Replies, ServerRounds, counted
from cvfl.types import SERVER, Direction
from cvfl.wire import Blinded, Bytes, Embedding, Evaluation, Passed, Report, decode, decode_setup, encode_setup
from cvfl.wire.control import (
    CONTROL,
    PROTOCOL,
    Begin,
    Control,
    End,
    Have,
    Hello,
    How,
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
from cvfl.wire.setup import BLINDED


class TermsError(RemoteProtocolError):
    """A party was told other terms of the run than the server: nobody can go on."""


class Desk(Protocol):
    """What the server brings: how rows are settled, the labels once it has them, and its model."""

    how: How

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """Refuse parties that cannot settle their rows together."""

    def accept(self, targets: Targets) -> None:
        """Take the labels from their holder."""

    def passed_on(self, targets: Targets) -> Targets:
        """What the other parties get to hear of the targets."""

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows, once the server has their labels."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same labels again."""

    def restore(self, state: dict[str, Any]) -> None:
        """Have the labels that `state` told."""

    def facts(self, offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parties must know of each other."""

    def server(self, facts: dict[str, Any]) -> ServerMachine:
        """The server machine for these facts."""


class ServerRole:
    """Drives the server of a federation of named parties; `done` says that the run is over."""

    def __init__(
        self,
        names: Sequence[str],
        terms: dict[str, Any],
        desk: Desk,
        folder: Path,
        every: int = 10,
        on_round: OnRound = lambda report: None,
        on_back: OnBack = lambda t0: None,
    ) -> None:
        self.names, self.terms, self.desk = tuple(names), terms, desk
        self.rounds = ServerRounds(folder / "checkpoints", every, on_round, on_back)
        self.facts: dict[str, Any] = {}
        self.aligned: Aligned | None = None
        self.done = False
        self.told: set[int] = set()
        self.setup_meter = Meter()
        self._setup = Checkpoints(folder / "setup")
        self._run, self._session = "", 0
        self._offers: dict[int, dict[str, Any]] = {}
        self._have: dict[int, Have] = {}
        self._settled: dict[int, list[int]] = {}
        self._complete: set[int] = set()
        self._alignment: AlignmentServer | None = None
        if self._setup.rounds():
            known = self._setup.load(0)
            self._run = known["run"]
            desk.restore(known["labels"])
            self.aligned = Aligned(**known["aligned"]) if known["aligned"] else None
            self._end_again(known["facts"])

    @property
    def missing(self) -> list[str]:
        """Parties that are not here."""
        return [name for m, name in enumerate(self.names, start=1) if m not in self._offers]

    def join(self, frame: Bytes, name: str | None = None) -> tuple[int, Replies]:
        """A party's first frame: who it is, and what is to be said when everyone is here.

        `name` is the name that the connection vouches for.
        """
        _, hello = decode_control(frame)
        if not isinstance(hello, Hello):
            raise RemoteProtocolError("the first message of a party is its hello")
        m = self._checked(hello, name)
        self._offers[m] = hello.offer
        self.setup_meter.add(m, Direction.UP, frame)
        if self.done:
            return m, self._farewell(m)
        return m, [] if self.missing else self._recall()

    def leave(self, m: int) -> None:
        """A party's connection is gone; the run waits until it is back."""
        self._offers.pop(m, None)
        if not self.done:
            self._forget()

    def receive(self, m: int, frame: Bytes) -> Replies:
        """Take in a frame of party m."""
        if self.done:
            self._farewell_of(m, frame)
            return []
        kind = kind_of(frame)
        if kind in KINDS:
            return self._round(m, frame)
        if kind == BLINDED:
            return self._align(m, frame)
        _, message = decode_control(frame)
        self.setup_meter.add(m, Direction.UP, frame)
        match message:
            case Have(session=session) if session == self._session:
                return self._has(m, message)
            case Targets():
                return self._targets(m, message)
            case Settled(session=session, rows=rows) if session == self._session:
                self._settled[m] = rows
                return self._begin() if len(self._settled) == len(self.names) else []
            case Have() | Settled():
                return []  # of a session that is over
            case Refusal(reason=reason):
                raise RemoteProtocolError(f"{self.names[m - 1]}: {reason}")
        raise RemoteProtocolError(f"{self.names[m - 1]}: an unexpected {type(message).__name__}")

    def work(self) -> Replies:
        """The server's own steps, when the round's replies are on their way; and the end, when it has come."""
        self.rounds.work()
        server = self.rounds.server
        if self.done or server is None or not server.done or len(self._complete) < len(self.names):
            return []
        self.rounds.save(server)
        self.done = True
        return self._to_all(lambda m: End(rounds=server.t0))

    def _checked(self, hello: Hello, name: str | None) -> int:
        if hello.protocol != PROTOCOL:
            raise RemoteProtocolError(f"{hello.name} speaks version {hello.protocol}, the server version {PROTOCOL}")
        if name is not None and hello.name != name:
            raise RemoteProtocolError(f"the certificate is for {name!r}, but the party says that it is {hello.name!r}")
        if hello.name not in self.names:
            raise RemoteProtocolError(f"{hello.name!r} is no party of this federation ({', '.join(self.names)})")
        m = self.names.index(hello.name) + 1
        if m in self._offers:
            raise RemoteProtocolError(f"{hello.name} is here already")
        for key in sorted(self.terms.keys() | hello.terms.keys()):
            ours, theirs = self.terms.get(key), hello.terms.get(key)
            if ours != theirs:
                raise TermsError(f"{key} differs: {hello.name} has {theirs!r}, the server {ours!r}")
        return m

    def _recall(self) -> Replies:
        self._session += 1
        self._forget()
        return self._to_all(lambda m: Recall(session=self._session))

    def _forget(self) -> None:
        """End a session: what parties said in it counts no longer."""
        self._have, self._settled, self._complete = {}, {}, set()
        self._alignment = None
        self.rounds.leave()

    def _has(self, m: int, have: Have) -> Replies:
        """Before the rounds: where a party can go back to. After them: that it has kept the end."""
        if self.rounds.server is not None:
            self._complete |= {m} if self.rounds.server.plan.rounds in have.rounds else set()
            return []
        self._have[m] = have
        return self._agree() if len(self._have) == len(self.names) else []

    def _agree(self) -> Replies:
        known = (
            self._run and self.desk.sizes() is not None and all(have.run == self._run for have in self._have.values())
        )
        how: How = "known" if known else self.desk.how
        if not known:
            self.desk.check([self._offers[m] for m in range(1, len(self.names) + 1)])
            self._run = secrets.token_hex(8)
            self.rounds.drop()
            self._alignment = AlignmentServer(self.names) if how == "align" else None
        return self._to_all(lambda m: Settle(session=self._session, run=self._run, m=m, how=how))

    def _align(self, m: int, frame: Bytes) -> Replies:
        if self._alignment is None:
            return []  # of a session that is over
        message = decode_setup(frame)
        self.setup_meter.add(m, Direction.UP, frame)
        if isinstance(message, Blinded):
            self._check_sender(m, message.m)
        with self._blamed(m):
            replies = self._alignment.receive(message)
        self.aligned = self._alignment.aligned
        if self.aligned is not None:
            self._alignment = None  # blinded ids take much room
        return counted(self.setup_meter, [(j, encode_setup(reply)) for j, reply in replies])

    def _check_sender(self, m: int, named: int) -> None:
        if named != m:
            raise RemoteProtocolError(f"{self.names[m - 1]}: a message in the name of role {named}")

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

    def _targets(self, m: int, targets: Targets) -> Replies:
        if len(self._have) < len(self.names) or self.rounds.server is not None:
            return []  # of a session that is over
        self._check_sender(m, targets.m)
        self.desk.accept(targets)
        frame = encode_control(self.desk.passed_on(targets), SERVER)
        others = [(j, frame) for j in range(1, len(self.names) + 1) if j != m]
        return counted(self.setup_meter, others)

    def _begin(self) -> Replies:
        sizes = self.desk.sizes()
        for m, rows in sorted(self._settled.items()):
            if rows != sizes:
                raise RemoteProtocolError(
                    f"{self.names[m - 1]} has {rows} training, validation and test rows, the server {sizes}"
                )
        aligned = asdict(self.aligned) if self.aligned else None
        self.facts = facts = self.desk.facts([self._offers[m] for m in range(1, len(self.names) + 1)])
        known = {"run": self._run, "labels": self.desk.state(), "aligned": aligned, "facts": facts}
        self._setup.save(0, known)
        rounds = [set(have.rounds) for have in self._have.values() if have.run == self._run]
        common = set(self.rounds.kept()).intersection(*rounds) if len(rounds) == len(self.names) else set()
        t0 = max(common, default=0)
        self.rounds.go_back(self.desk.server(facts), t0)
        keys = [key for _, have in sorted(self._have.items()) if (key := have.key)]
        return self._to_all(lambda m: Begin(session=self._session, m=m, t0=t0, facts=facts, keys=keys))

    def _end_again(self, facts: dict[str, Any]) -> None:
        """The state after the last round is written when every party has its own: such a run is over."""
        kept, server = self.rounds.kept(), self.desk.server(facts)
        if kept and kept[-1] == server.plan.rounds:
            self.facts, self.done = facts, True
            self.rounds.go_back(server, kept[-1])

    def _farewell(self, m: int) -> Replies:
        """For a party that was away when the run ended: it has the last round, and hears that it was the last."""
        assert self.rounds.server is not None
        session, t0 = self._session, self.rounds.server.t0
        messages = (
            Recall(session=session),
            Settle(session=session, run=self._run, m=m, how="known"),
            Begin(session=session, m=m, t0=t0, facts=self.facts),
            End(rounds=t0),
        )
        return counted(self.setup_meter, [(m, encode_control(message, SERVER)) for message in messages])

    def _farewell_of(self, m: int, frame: Bytes) -> None:
        """A party that has heard the end says so; a connection that breaks looks the same whether it has or not."""
        with suppress(DecodeError):  # whatever else comes now, the run is over
            if kind_of(frame) == CONTROL and isinstance(decode_control(frame)[1], End):
                self.setup_meter.add(m, Direction.UP, frame)
                self.told.add(m)

    def _round(self, m: int, frame: Bytes) -> Replies:
        if self.rounds.server is None:
            return []  # of a session that is over
        message = decode(frame)
        if isinstance(message, Embedding | Evaluation | Passed | Report):
            self._check_sender(m, message.m)
        with self._blamed(m):
            return self.rounds.receive(m, message, frame)

    def _to_all(self, message: Callable[[int], Control]) -> Replies:
        everyone = range(1, len(self.names) + 1)
        return counted(self.setup_meter, [(m, encode_control(message(m), SERVER)) for m in everyone])
