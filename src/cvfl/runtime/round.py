"""The rounds of the server: its machine, the bytes that were sent for each round, and checkpoints to go back to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from cvfl.errors import LocalProtocolError
from cvfl.protocol import ServerMachine
from cvfl.runtime.carrier import Replies
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.inprocess import RoundReport
from cvfl.runtime.meter import Meter, Traffic
from cvfl.types import SERVER, Direction
from cvfl.wire import Bytes, Message, encode

OnRound = Callable[[RoundReport], None]
OnBack = Callable[[int], None]


class ServerRounds:
    """Drives the server machine while there is one; between sessions `server` is None."""

    def __init__(self, folder: Path, every: int, on_round: OnRound, on_back: OnBack) -> None:
        self.server: ServerMachine | None = None
        self.meter = Meter()
        self._checkpoints, self._every = Checkpoints(folder), every
        self._on_round, self._on_back = on_round, on_back
        self._pending = False
        self._reported, self._clock = 0, time.perf_counter()
        self.reached = 0

    def kept(self) -> list[int]:
        """The rounds that can be gone back to, ascending."""
        return self._checkpoints.rounds()

    @property
    def logs(self) -> Path:
        """The folder for what the server's machine knows of rows."""
        return self._checkpoints.logs

    def belongs_to(self, what: str) -> None:
        """What its checkpoints are of; those of anything else are refused."""
        self._checkpoints.of = what

    def belongs_to_nothing(self) -> None:
        """There is no run yet, and there are to be no checkpoints of one."""
        self._checkpoints.check_none()

    def drop(self) -> None:
        """Another run begins: there is nothing to go back to."""
        self._checkpoints.drop_after(-1)

    def leave(self) -> None:
        """Somebody is missing: no round goes on."""
        self.server, self._pending = None, False

    def go_back(self, server: ServerMachine, t0: int) -> None:
        """Bring a new machine to the state before round t0; bytes of later rounds are counted as sent again."""
        self.server = server
        self._checkpoints.drop_after(t0)
        if t0 > 0:
            take_up(self._checkpoints.load(t0), server, self.meter)
        else:
            self.meter.go_back({})
        self._reported, self._clock = t0, time.perf_counter()
        self._on_back(t0)

    def receive(self, m: int, message: Message, frame: Bytes) -> Replies:
        """Take in a party's message of a round, which came as `frame`."""
        if self.server is None:
            raise LocalProtocolError("a message of a round, but no round goes on")
        self.meter.add(m, Direction.UP, frame)
        replies = self.server.receive(message)
        frames = counted(self.meter, [(j, encode(reply)) for j, reply in replies])
        self._advance(self.server)
        self._pending = self._pending or bool(replies)
        return frames

    def work(self) -> None:
        """The server's own steps, when the replies of the round are on their way."""
        if self.server is None:
            return
        if self._pending:
            self._pending = False
            self.server.train()
        self._advance(self.server)

    def save(self, server: ServerMachine) -> None:
        """Keep the state before the next round; that after the last one twice, as parties do not come back for it."""
        self._checkpoints.save(server.t0, between_rounds(server, self.meter), twice=server.done)

    def _advance(self, server: ServerMachine) -> None:
        """Report a round that is over, and keep the state every few rounds."""
        if not server.settled or server.t0 == self._reported:
            return
        now, t0 = time.perf_counter(), server.t0 - 1
        evaluation = server.evaluation if server.evaluation and server.evaluation.t0 == t0 else None
        measured = {SERVER: server.measured} if server.measured else {}
        certified = {SERVER: server.certified} if server.certified else {}
        self._on_round(RoundReport(t0, server.loss, now - self._clock, evaluation, measured, certified))
        self._reported, self._clock = server.t0, now
        self.reached = max(self.reached, server.t0)
        if server.t0 % self._every == 0 and not server.done and server.t0 < server.plan.rounds:
            self.save(server)


def between_rounds(server: ServerMachine, meter: Meter) -> dict[str, Any]:
    """The server before the round that comes next, and the bytes until then; messages of that round come again."""
    # After the end all counts: what follows it, and what was on its way for a next round, in vain.
    last = math.inf if server.done else server.t0 - 1
    sent = {m: astuple(traffic) for m, traffic in meter.rounds_through(last).items()}
    return {"server": server.settled_state(), "bytes": sent, "sent_again": meter.sent_again}


def take_up(state: Mapping[str, Any], server: ServerMachine, meter: Meter) -> None:
    """Go on from what `between_rounds` gave."""
    server.load_state_dict(state["server"])
    meter.go_back({m: Traffic(*traffic) for m, traffic in state["bytes"].items()}, state["sent_again"])


def counted(meter: Meter, replies: Iterable[tuple[int, bytes]]) -> Replies:
    """Frames to parties, counted as they leave."""
    listed = list(replies)
    for m, frame in listed:
        meter.add(m, Direction.DOWN, frame)
    return listed
