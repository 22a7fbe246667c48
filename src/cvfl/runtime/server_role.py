"""The server between any two frames: it gathers the parties, finds the newest round that all have, and runs the rounds.

No I/O but its own folder. A carrier tells who joined and who left, brings frames in, takes frames out, and calls
`work` when what there was to send is on its way.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from cvfl.errors import RemoteProtocolError
from cvfl.privacy import Aligned, AlignmentServer
from cvfl.protocol import Server
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.inprocess import RoundReport
from cvfl.runtime.meter import Meter, Traffic
from cvfl.types import SERVER, Direction
from cvfl.wire import Blinded, Embedding, Evaluation, decode, decode_setup, encode, encode_setup
from cvfl.wire.control import (
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
from cvfl.wire.setup import BLINDED

Replies = list[tuple[int, bytes]]


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

    def server(self, facts: dict[str, Any]) -> Server:
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
        on_round: Callable[[RoundReport], None] = lambda report: None,
        on_back: Callable[[int], None] = lambda t0: None,
    ) -> None:
        self.names, self.terms, self.desk, self.every = tuple(names), terms, desk, every
        self.on_round, self.on_back = on_round, on_back
        self.server: Server | None = None
        self.facts: dict[str, Any] = {}
        self.aligned: Aligned | None = None
        self.done = False
        self.meter, self.setup_meter, self.sent_again = Meter(), Meter(), 0
        self._checkpoints, self._setup = Checkpoints(folder / "checkpoints"), Checkpoints(folder / "setup")
        self._run, self._session = "", 0
        self._offers: dict[int, dict[str, Any]] = {}
        self._have: dict[int, Have] = {}
        self._settled: dict[int, list[int]] = {}
        self._complete: set[int] = set()
        self._alignment: AlignmentServer | None = None
        self._pending = False
        self._reported, self._clock = 0, time.perf_counter()
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

    def join(self, frame: bytes, name: str | None = None) -> tuple[int, Replies]:
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

    def receive(self, m: int, frame: bytes) -> Replies:
        """Take in a frame of party m."""
        if self.done:
            return []  # whatever it is, the run is over
        kind = kind_of(frame)
        if kind in (1, 2, 3, 4):
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
                raise RemoteProtocolError(reason)
        raise RemoteProtocolError(f"{self.names[m - 1]}: an unexpected {type(message).__name__}")

    def work(self) -> Replies:
        """The server's own steps, when the round's replies are on their way; and the end, when it has come."""
        if self.server is not None and self._pending:
            self._pending = False
            self.server.train()
        self._advance()
        if self.done or self.server is None or not self.server.done or len(self._complete) < len(self.names):
            return []
        self._save(self.server)
        self.done = True
        rounds = self.server.t0
        return self._to_all(lambda m: End(rounds=rounds))

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
        self.server, self._alignment, self._pending = None, None, False

    def _has(self, m: int, have: Have) -> Replies:
        """Before the rounds: where a party can go back to. After them: that it has kept the end."""
        if self.server is not None:
            self._complete |= {m} if self.server.plan.rounds in have.rounds else set()
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
            self._checkpoints.drop_after(-1)
            self._alignment = AlignmentServer(self.names) if how == "align" else None
        return self._to_all(lambda m: Settle(session=self._session, run=self._run, m=m, how=how))

    def _align(self, m: int, frame: bytes) -> Replies:
        if self._alignment is None:
            return []  # of a session that is over
        message = decode_setup(frame)
        self.setup_meter.add(m, Direction.UP, frame)
        if isinstance(message, Blinded):
            self._check_sender(m, message.m)
        replies = self._alignment.receive(message)
        self.aligned = self._alignment.aligned
        if self.aligned is not None:
            self._alignment = None  # blinded ids take much room
        return self._sent(self.setup_meter, [(m, encode_setup(reply)) for m, reply in replies])

    def _check_sender(self, m: int, named: int) -> None:
        if named != m:
            raise RemoteProtocolError(f"{self.names[m - 1]}: a message in the name of role {named}")

    def _targets(self, m: int, targets: Targets) -> Replies:
        if len(self._have) < len(self.names) or self.server is not None:
            return []  # of a session that is over
        self._check_sender(m, targets.m)
        self.desk.accept(targets)
        frame = encode_control(self.desk.passed_on(targets), SERVER)
        others = [(j, frame) for j in range(1, len(self.names) + 1) if j != m]
        return self._sent(self.setup_meter, others)

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
        common = set(self._checkpoints.rounds()).intersection(*rounds) if len(rounds) == len(self.names) else set()
        self._go_back(max(common, default=0), facts)
        t0 = self._reported
        return self._to_all(lambda m: Begin(session=self._session, m=m, t0=t0, facts=facts))

    def _end_again(self, facts: dict[str, Any]) -> None:
        """The state after the last round is written when every party has its own: such a run is over."""
        rounds, server = self._checkpoints.rounds(), self.desk.server(facts)
        if rounds and rounds[-1] == server.plan.rounds:
            self.facts, self.done = facts, True
            self._go_back(rounds[-1], facts)

    def _farewell(self, m: int) -> Replies:
        """For a party that was away when the run ended: it has the last round, and hears that it was the last."""
        assert self.server is not None
        session, t0 = self._session, self.server.t0
        messages = (
            Recall(session=session),
            Settle(session=session, run=self._run, m=m, how="known"),
            Begin(session=session, m=m, t0=t0, facts=self.facts),
            End(rounds=t0),
        )
        return self._sent(self.setup_meter, [(m, encode_control(message, SERVER)) for message in messages])

    def _go_back(self, t0: int, facts: dict[str, Any]) -> None:
        """Restore the state before round t0; bytes that were sent for later rounds are counted as sent again."""
        self.server = self.desk.server(facts)
        self._checkpoints.drop_after(t0)
        before, past = self.meter.total().total, {}
        if t0 > 0:
            state = self._checkpoints.load(t0)
            self.server.load_state_dict(state["server"])
            past = {m: Traffic(*traffic) for m, traffic in state["bytes"].items()}
            self.sent_again = max(self.sent_again, state["sent_again"])
        self.meter.go_back(past)
        self.sent_again += max(0, before - self.meter.total().total)
        self._reported, self._clock = t0, time.perf_counter()
        self.on_back(t0)

    def _round(self, m: int, frame: bytes) -> Replies:
        if self.server is None:
            return []  # of a session that is over
        message = decode(frame)
        if isinstance(message, Embedding | Evaluation):
            self._check_sender(m, message.m)
        self.meter.add(m, Direction.UP, frame)
        replies = self.server.receive(message)
        self._advance()
        self._pending = self._pending or bool(replies)
        return self._sent(self.meter, [(j, encode(reply)) for j, reply in replies])

    def _advance(self) -> None:
        """Report a round that is over, and keep the state every few rounds."""
        server = self.server
        if server is None or not server.settled or server.t0 == self._reported:
            return
        now, t0 = time.perf_counter(), server.t0 - 1
        evaluation = server.evaluation if server.evaluation and server.evaluation.t0 == t0 else None
        measured = {SERVER: server.measured} if server.measured else {}
        self.on_round(RoundReport(t0, server.loss, now - self._clock, evaluation, measured))
        self._reported, self._clock = server.t0, now
        if server.t0 % self.every == 0 and server.t0 < server.plan.rounds:
            self._save(server)

    def _save(self, server: Server) -> None:
        sent = {m: (t.up, t.down, t.evaluation) for m, t in self.meter.through(server.t0 - 1).items()}
        state = server.state_dict() | {"embeddings": {}, "evaluations": {}}
        self._checkpoints.save(server.t0, {"server": state, "bytes": sent, "sent_again": self.sent_again})

    def _to_all(self, message: Callable[[int], Control]) -> Replies:
        everyone = range(1, len(self.names) + 1)
        return self._sent(self.setup_meter, [(m, encode_control(message(m), SERVER)) for m in everyone])

    def _sent(self, meter: Meter, replies: Iterable[tuple[int, bytes]]) -> Replies:
        listed = list(replies)
        for m, frame in listed:
            meter.add(m, Direction.DOWN, frame)
        return listed
