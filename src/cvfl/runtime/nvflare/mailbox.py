"""A party's side of the carrier: numbered parcels come in, one thread drives the role, its answers go back.

A request that is repeated, because it or its answer was lost, is answered with what was answered before. A party that
computes for long answers "still working" in between, so that time-outs measure the connection and not the work. What
waits is bounded in bytes both ways: a request for which there is no room is not taken, and comes again.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from cvfl.errors import CvflError, ProtocolError, plain
from cvfl.runtime.bytequeue import PEER
from cvfl.runtime.carrier import PartyEnd
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.runtime.nvflare.parcel import Parcel, State, fitting, unpack
from cvfl.wire import Bytes

WAIT = 2.0
"""Seconds until a party that works on says so."""
PATIENCE = 5.0
"""Seconds that the end of a job waits for the party."""
_log = logging.getLogger(__name__)


class PartyDuty(Protocol):
    """A party role, and what is to be done when it is over."""

    @property
    def role(self) -> PartyEnd:
        """The role."""

    def finish(self) -> None:
        """Keep the results; the run is over."""

    def close(self) -> None:
        """Let go of what is open."""


class Mailbox:
    """Answers parcels for a party that a thread of its own drives; `start` makes the role in that thread."""

    def __init__(self, name: str, start: Callable[[], PartyDuty], on_failed: Callable[[str], None]) -> None:
        self._name, self._start, self._on_failed = name, start, on_failed
        self._changed = threading.Condition()
        self._inbox: deque[Bytes] = deque()
        self._outbox: deque[Bytes] = deque()
        self._working, self._closed = True, False
        self._reason = ""
        self._last, self._kept = 0, b""
        self._thread = threading.Thread(target=self._drive, name="cvfl-party", daemon=True)
        self._thread.start()

    def answer(self, data: Bytes) -> bytes:
        """The answer to a request; any thread may call it."""
        request = unpack(data)
        with self._changed:
            if request.number > self._last and not self._changed.wait_for(self._has_room, WAIT):
                return Parcel(request.number, (), State.FULL).pack()
            if request.number == self._last:
                self._changed.wait_for(lambda: self._kept or self._last != request.number)
                return self._kept
            if request.number != self._last + 1:
                return Parcel.failed(request.number, f"request {request.number} comes after {self._last}").pack()
            self._last, self._kept = request.number, b""
            self._inbox.extend(request.frames)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rests() or full(self._outbox), WAIT)
            self._kept = self._parcel(request.number).pack()
            self._changed.notify_all()  # there is room again for what the party says
            return self._kept

    def close(self) -> None:
        """End the thread when it has done what it is at, which is waited for a while: it has a log to close."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(PATIENCE)

    @property
    def _over(self) -> bool:
        return self._closed or bool(self._reason)

    def _has_room(self) -> bool:
        return not full(self._inbox) or self._over

    def _rests(self) -> bool:
        return bool(self._reason) or not (self._working or self._inbox)

    def _parcel(self, number: int) -> Parcel:
        if self._reason:
            return Parcel.failed(number, self._reason)
        count = fitting(self._outbox)
        frames = tuple(self._outbox.popleft() for _ in range(count))
        state = State.WAITING if self._rests() and not self._outbox else State.WORKING
        return Parcel(number, frames, state)

    def _drive(self) -> None:
        """One thread for the whole life of the role; torch counts threads by thread."""
        try:
            with one_thread_a_role():
                duty = self._start()
                try:
                    self._serve(duty)
                finally:
                    duty.close()
        except CvflError as error:
            self._fail(str(error), isinstance(error, ProtocolError), type(error).__name__)
        except Exception as error:
            self._fail(traceback.format_exc(), False, type(error).__name__)

    def _serve(self, duty: PartyDuty) -> None:
        self._say(duty.role.hello())
        while not duty.role.done and (frame := self._next()) is not None:
            for answer in duty.role.receive(frame):
                self._say(answer)
            if duty.role.refused:
                _log.error("%s: the server stopped the run: %s", self._name, plain(duty.role.refused))
                self._give_up(duty.role.refused)
                return
        if duty.role.done:
            duty.finish()
            self._next()  # tells that all is done, and waits for the end of the job

    def _say(self, frame: Bytes) -> None:
        """Lay an answer down for the server to fetch, as soon as it has fetched enough of those before."""
        with self._changed:
            # With a full inbox the server is held back already: to wait for it as well would be for ever.
            self._changed.wait_for(lambda: not full(self._outbox) or full(self._inbox) or self._over)
            self._outbox.append(frame)
            self._changed.notify_all()

    def _next(self) -> Bytes | None:
        """The next frame; none when the job is over."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._inbox or self._closed)
            if self._closed:
                return None
            self._working = True
            self._changed.notify_all()
            return self._inbox.popleft()

    def _fail(self, reason: str, may_leave: bool, kind: str) -> None:
        """Keep the reason here. It may name a row or a file, and FLARE streams logs of errors to the server: only what
        the protocol says goes into the log and to the server.
        """
        self._on_failed(reason)
        told = reason if may_leave else f"a {kind}; the reason is in its folder cvfl"
        _log.error("%s: %s", self._name, told)
        self._give_up(told)

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self._reason = reason
            self._changed.notify_all()


def full(frames: Iterable[Bytes]) -> bool:
    """Whether these are as many bytes as may wait."""
    return sum(map(len, frames)) > PEER
