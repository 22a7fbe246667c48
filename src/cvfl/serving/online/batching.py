"""Requests become messages: those that wait while others are under way go together in the next one.

    request ─┐                  ┌─▶ message 7 ─▶ (under way)
    request ─┼─▶ those waiting ─┤
    request ─┘                  └─▶ message 8 when an answer makes room for it

Nobody waits for company: a request goes at once if there is room. An id that several ask for travels once. While roles
agree on a session requests wait, and those that were under way are sent again: to ask changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cvfl.serving.online.scoring import Scored

UNDER_WAY = 2
"""Messages that may be under way: one is at work at the parties while the next is on its way."""
ROWS = 4096
"""Rows of a message."""
WAITING = 1 << 17
"""Rows that may wait."""
STARTING = "starting"
"""The code of a trouble that passes by itself: a session is about to begin."""
_PAUSE = 0.01


class DoorError(Exception):
    """Why a request has no answer: a status of HTTP, a fixed code, a line."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Reply(NamedTuple):
    """The answer to a request: of which run, for each id the row of its scores or -1, and who does not know it."""

    run: str
    rows: Sequence[int]
    numbers: Tensor
    unknown: Sequence[tuple[int, ...]]
    """By id: the roles that do not know it, 0 for the server, which has no score then."""
    away: tuple[int, ...] = ()
    """Parties that could not be asked; they are among those that do not know an id."""


OnReply = Callable[[Reply | DoorError], None]


@dataclass
class Request:
    """Ids that somebody waits for."""

    texts: Sequence[str]
    on_reply: OnReply
    deadline: float
    places: list[int] = field(default_factory=list)
    """Where its ids are in the message."""

    @property
    def late(self) -> bool:
        """Whether nobody waits any more."""
        return time.monotonic() > self.deadline


Ask = Callable[[Sequence[str], Callable[[int], None]], DoorError | None]
"""Sends ids in a message, and says its number before an answer can come; or what is wrong."""


class Batching:
    """Takes requests of any thread; one thread of its own sends them."""

    def __init__(
        self, ask: Ask, on_failure: Callable[[BaseException], None], rows: int = ROWS, under_way: int = UNDER_WAY
    ) -> None:
        self._ask, self._on_failure, self._rows, self._most = ask, on_failure, rows, under_way
        self._waiting: deque[Request] = deque()
        self._under_way: dict[int, list[Request]] = {}
        self._changed = threading.Condition()
        self._over = False
        self.messages = 0
        """Messages that were sent."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="cvfl-batching")

    def __enter__(self) -> Batching:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, request: Request) -> None:
        """Take a request; its reply comes in another thread."""
        with self._changed:
            if sum(len(one.texts) for one in self._waiting) + len(request.texts) > WAITING:
                raise DoorError(503, "overloaded", "too many ids wait for an answer already; ask again later")
            self._waiting.append(request)
            self._changed.notify_all()

    @property
    def oldest(self) -> int | None:
        """The number of the message that is under way for the longest time."""
        with self._changed:
            return min(self._under_way, default=None)

    def answered(self, number: int, run: str, scored: Scored) -> None:
        """An answer has come; for a number that was given up it comes to nobody."""
        with self._changed:
            requests = self._under_way.pop(number, [])
            self._changed.notify_all()
        there = scored.known[0]
        at = np.where(there, np.cumsum(there) - 1, -1).tolist()
        unknown = [()] * len(at) if np.all(scored.known) else _unknown(scored)
        for request in requests:
            rows = [at[place] for place in request.places]
            missed = [unknown[place] for place in request.places]
            request.on_reply(Reply(run, rows, scored.numbers, missed, scored.away))

    def lost(self, trouble: DoorError) -> None:
        """The session is over: if another is about to begin requests wait for it, else nobody gets an answer."""
        with self._changed:
            if trouble.code == STARTING:
                again = [request for _, requests in sorted(self._under_way.items()) for request in requests]
                self._waiting.extendleft(reversed(again))
                self._under_way.clear()
                self._changed.notify_all()
                return
            lost = [*(request for requests in self._under_way.values() for request in requests), *self._waiting]
            self._under_way.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for request in lost:
            request.on_reply(trouble)

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                if batch:  # or all that waited were late
                    self._go(batch)
        except BaseException as error:  # nothing is sent any more
            self._on_failure(error)

    def _go(self, batch: list[Request]) -> None:
        places: dict[str, int] = {}
        for request in batch:
            request.places = [places.setdefault(text, len(places)) for text in request.texts]
        trouble = self._ask(list(places), lambda number: self._sent(number, batch))
        if trouble is None:
            return
        with self._changed:  # it may have failed on its way
            self._under_way = {number: other for number, other in self._under_way.items() if other is not batch}
            if trouble.code == STARTING:
                self._waiting.extendleft(reversed(batch))
                self._changed.wait(_PAUSE)
                return
        for request in batch:
            request.on_reply(trouble)

    def _next(self) -> list[Request] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or (self._waiting and len(self._under_way) < self._most))
            if self._over:
                return None
            batch, rows = list[Request](), 0
            while self._waiting and (not batch or rows + len(self._waiting[0].texts) <= self._rows):
                request = self._waiting.popleft()
                if not request.late:
                    batch.append(request)
                    rows += len(request.texts)
            return batch

    def _sent(self, number: int, batch: list[Request]) -> None:
        with self._changed:
            self._under_way[number] = batch
            self.messages += 1


def _unknown(scored: Scored) -> list[tuple[int, ...]]:
    """By row: the parties that do not know it; or the server, which has no score although enough know it."""
    known = np.array(scored.known[1:])
    lost = scored.enough & ~scored.known[0]
    return [(0,) if no else tuple((np.flatnonzero(~bits) + 1).tolist()) for no, bits in zip(lost, known.T, strict=True)]
