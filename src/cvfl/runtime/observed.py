"""The two ends that a transport drives, overheard: who is here, every frame that passes, and where the time goes.

    transport ──▶ ObservedServer ──▶ ServerRole          witnesses hear of each frame, before or after the role has it;
    transport ──▶ ObservedParty  ──▶ PartyRole           nothing that they do changes what the role says

A role has no clock. Times are taken here: what passes inside it is its work, what passes between two calls is waiting,
for those who owe a message then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cvfl.runtime.carrier import PartyEnd, Replies, ServerEnd
from cvfl.stopwatch import coded
from cvfl.types import SERVER, Direction
from cvfl.wire import Bytes


class Witness(Protocol):
    """Hears what passes between a role and another one, m."""

    def here(self, m: int, here: bool) -> None:
        """Role m has come, or is gone."""

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """A frame to or from role m, or from a party to the server, or back."""


@dataclass
class Spent:
    """Seconds of a role: its own work, coding of messages, and waiting, by those that it waited for.

    A moment in which several are awaited is shared among them, so all of it together is the time that has passed.
    """

    compute: float = 0.0
    codec: float = 0.0
    wait: dict[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.codec + sum(self.wait.values())

    def add(self, other: Spent) -> None:
        """Add what was spent later."""
        self.compute += other.compute
        self.codec += other.codec
        for m, seconds in other.wait.items():
            self.wait[m] = self.wait.get(m, 0.0) + seconds


class Times:
    """Where the time of a role goes; `awaited` says who owes it a message now."""

    def __init__(self, awaited: Callable[[], Iterable[int]] = lambda: (SERVER,)) -> None:
        self._awaited = awaited
        self._spent, self._owing = Spent(), tuple[int, ...]()
        self._since, self._coded = time.perf_counter(), 0.0
        self._working = False
        self.total = Spent()
        """Since the start."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """The role works; one thread at a time."""
        self._count()
        self._working, self._coded = True, coded()
        try:
            yield
        finally:
            self._count()
            self._working, self._owing = False, tuple(self._awaited())

    def take(self) -> Spent:
        """What was spent since this was asked last; also while the role works."""
        self._count()
        spent, self._spent = self._spent, Spent()
        return spent

    def _count(self) -> None:
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        if self._working:
            codec = coded() - self._coded
            self._coded += codec
            found = Spent(max(0.0, passed - codec), codec)
        else:
            found = Spent(wait=dict.fromkeys(self._owing, passed / max(1, len(self._owing))))
        self._spent.add(found)
        self.total.add(found)


class ObservedServer:
    """The server's end, with witnesses."""

    def __init__(self, role: ServerEnd, witnesses: Sequence[Witness] = ()) -> None:
        self._role, self.witnesses = role, list(witnesses)
        self.times = Times(lambda: [*role.awaited] or [1 + role.names.index(name) for name in role.missing])

    @property
    def names(self) -> tuple[str, ...]:
        """The parties in their order."""
        return self._role.names

    @property
    def missing(self) -> list[str]:
        """Parties that are not connected."""
        return self._role.missing

    @property
    def awaited(self) -> Mapping[int, int]:
        """Parties that are here and owe a message."""
        return self._role.awaited

    @property
    def reached(self) -> int:
        """Rounds that have ever been over."""
        return self._role.reached

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._role.done

    @property
    def told(self) -> set[int]:
        """The parties that have heard that it is."""
        return self._role.told

    def join(self, frame: Bytes, name: str | None = None) -> tuple[int, Replies]:
        """Take the first frame of a connection."""
        with self.times.working():
            m, replies = self._role.join(frame, name)
        for witness in self.witnesses:
            witness.here(m, True)
            witness.frame(m, Direction.UP, frame)
        return m, self._told(replies)

    def leave(self, m: int) -> None:
        """The connection of party m is gone."""
        with self.times.working():
            self._role.leave(m)
        for witness in self.witnesses:
            witness.here(m, False)

    def receive(self, m: int, frame: Bytes) -> Replies:
        """Take a frame of party m."""
        for witness in self.witnesses:
            witness.frame(m, Direction.UP, frame)
        with self.times.working():
            replies = self._role.receive(m, frame)
        return self._told(replies)

    def work(self) -> Replies:
        """Compute, now that all there was to send is on its way."""
        with self.times.working():
            replies = self._role.work()
        return self._told(replies)

    def _told(self, replies: Replies) -> Replies:
        for m, frame in replies:
            for witness in self.witnesses:
                witness.frame(m, Direction.DOWN, frame)
        return replies


class ObservedParty:
    """A party's end, with witnesses; the other role is the server."""

    def __init__(self, role: PartyEnd, witnesses: Sequence[Witness] = ()) -> None:
        self._role, self.witnesses = role, list(witnesses)
        self.times, self._here = Times(), False

    @property
    def name(self) -> str:
        """Which party it is."""
        return self._role.name

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self._role.done

    @property
    def refused(self) -> str | None:
        """Why the server stopped, if it did."""
        return self._role.refused

    def hello(self) -> bytes:
        """The first frame of a new connection."""
        with self.times.working():
            frame = self._role.hello()
        self._met(False)
        self._hear(Direction.UP, frame)
        return frame

    def receive(self, frame: Bytes) -> Iterator[bytes]:
        """Take a frame; the answers come as they are ready."""
        self._met(True)
        self._hear(Direction.DOWN, frame)
        answers = iter(self._role.receive(frame))
        while True:
            with self.times.working():
                answer = next(answers, None)
            if answer is None:
                return
            self._hear(Direction.UP, answer)
            yield answer

    def lost(self) -> None:
        """There is no connection any more."""
        self._met(False)

    def _met(self, here: bool) -> None:
        if here != self._here:
            self._here = here
            for witness in self.witnesses:
                witness.here(SERVER, here)

    def _hear(self, direction: Direction, frame: Bytes) -> None:
        for witness in self.witnesses:
            witness.frame(SERVER, direction, frame)
