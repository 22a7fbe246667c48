"""The server's side of the carrier: one thread drives the role, one line a party moves parcels back and forth.

A line has one request under way. It sends what is there for its party, waits for the answer and repeats the request
under the same number when none comes: the party then answers what it answered before.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from cvfl.errors import CvflError, DecodeError, RemoteProtocolError
from cvfl.runtime.bytequeue import UNREAD, ByteQueue
from cvfl.runtime.carrier import Replies, ServerEnd
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.runtime.nvflare.parcel import Parcel, State, fitting, unpack
from cvfl.runtime.watch import ROUND_LIMIT, Watch
from cvfl.types import SERVER
from cvfl.wire import Bytes
from cvfl.wire.control import Refusal, encode_control

Ask = Callable[[str, bytes, float], Bytes | None]
"""(party, request, seconds to wait) -> the answer, or None if there is none."""

TIMEOUT = 10.0
"""Seconds for a small request: a party answers after `mailbox.WAIT` at the latest."""
_BYTES_A_SECOND = 1 << 20
_PAUSE = 0.25
_FAREWELL = 5.0
_log = logging.getLogger(__name__)


class Line:
    """Requests to one party, one after the other, in a thread of its own."""

    def __init__(self, name: str, ask: Ask, answers: ByteQueue[tuple[str, Parcel]], patience: float) -> None:
        self.name, self._ask, self._answers, self._patience = name, ask, answers, patience
        self._changed = threading.Condition()
        self._outbox: deque[bytes] = deque()
        self._waiting = 0
        self._closed, self._failed = False, False
        self.busy = True
        self._thread = threading.Thread(target=self._run, name=f"cvfl-{name}", daemon=True)
        self._thread.start()

    def post(self, frame: bytes) -> None:
        """Send a frame as soon as the line is free; a party that leaves too much unread ends the run."""
        with self._changed:
            self._waiting += len(frame)
            if self._waiting > UNREAD and self._outbox:
                raise RemoteProtocolError(f"{self.name}: it has left more than {UNREAD >> 20} MB unread")
            self._outbox.append(frame)
            self.busy = not self._failed
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread when its request has come back or timed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        number, working = 0, True  # the first request asks for the hello
        while not self._failed:
            with self._changed:
                if not working:
                    self._changed.wait_for(lambda: self._outbox or self._closed)
                frames = tuple(self._outbox.popleft() for _ in range(fitting(self._outbox)))
                self._waiting -= sum(map(len, frames))
            number += 1
            answer = self._exchange(Parcel(number, frames))
            if answer is None:
                return
            self._answers.put(self.name, (self.name, answer), sum(map(len, answer.frames)))
            working = answer.state is State.WORKING
            with self._changed:
                self._failed = answer.state is State.FAILED
                self.busy = working or (bool(self._outbox) and not self._failed)

    def _exchange(self, request: Parcel) -> Parcel | None:
        """Repeat a request until it is answered; each time with more patience, since its size may be the reason."""
        data, began, tries = request.pack(), time.monotonic(), 0
        while not self._closed:
            asked, seconds = time.monotonic(), (TIMEOUT + len(data) / _BYTES_A_SECOND) * 2**tries
            reply = self._ask(self.name, data, seconds)
            now = time.monotonic()
            if reply is not None:
                answer = _checked(request.number, reply)
                if answer.state is not State.FULL:
                    return answer
                began, tries = now, 0  # it is there, and has no room: the request comes again
            elif now - began > self._patience:
                return Parcel.failed(request.number, f"no answer for {self._patience:.0f} s")
            else:
                tries = min(tries + (now - asked >= seconds), 6)  # who is not there at all says so at once
            time.sleep(_PAUSE)
        return None


def _checked(number: int, reply: Bytes) -> Parcel:
    try:
        answer = unpack(reply)
    except CvflError as error:
        return Parcel.failed(number, str(error))
    if answer.number != number:
        return Parcel.failed(number, f"an answer to request {answer.number}, not to {number}")
    return answer


def conduct(
    role: ServerEnd, ask: Ask, stopped: Callable[[], bool], patience: float, round_limit: float = ROUND_LIMIT
) -> bool:
    """Drive the server until the run is over and every party knows it; False if it was stopped before.

    `patience` is how long a party may be out of reach; as long as it says that it works, it is not, until nothing that
    counts has come for `round_limit`: from then on it is taken for one that has left.
    """
    answers: ByteQueue[tuple[str, Parcel]] = ByteQueue()
    lines = {name: Line(name, ask, answers, patience) for name in role.names}
    try:
        with one_thread_a_role():
            return _Conductor(role, lines, answers, round_limit, patience).run(stopped)
    except CvflError as error:
        answers.close()  # a line that is held back hears it, too
        _tell(lines.values(), encode_control(Refusal(reason=str(error)), SERVER))
        raise
    finally:
        answers.close()
        for line in lines.values():
            line.close()


class _Conductor:
    def __init__(
        self,
        role: ServerEnd,
        lines: dict[str, Line],
        answers: ByteQueue[tuple[str, Parcel]],
        round_limit: float,
        patience: float,
    ) -> None:
        self._role, self._lines, self._answers = role, lines, answers
        self._watch, self._round_limit, self._patience = Watch(role), round_limit, patience
        self._numbers: dict[str, int] = {}
        self._told = False

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Until all is done, or it is stopped."""
        while not self._role.done or any(line.busy for line in self._lines.values()) or not self._answers.empty():
            if stopped():
                return False
            self._look()
            try:
                name, answer = self._answers.get(timeout=_PAUSE)
            except queue.Empty:
                continue
            if answer.state is State.FAILED:
                raise RemoteProtocolError(f"{name}: {answer.reason}")
            for frame in answer.frames:
                try:
                    self._take(name, frame)
                except DecodeError as error:
                    raise RemoteProtocolError(f"{name}: {error}") from None
        return True

    def _look(self) -> None:
        """Say who keeps the others waiting, and end the run when that goes on."""
        silence = self._watch.silence()
        names = " and ".join(self._role.names[m - 1] for m in self._watch.owing())
        if silence > self._round_limit + self._patience:
            raise RemoteProtocolError(f"nothing came from {names} for {silence:.0f} s")
        if silence > self._round_limit and not self._told:
            _log.warning("nothing came from %s for %.0f s", names, silence)
        self._told = silence > self._round_limit

    def _take(self, name: str, frame: Bytes) -> None:
        if name in self._numbers:
            self._watch.heard(self._numbers[name])
            replies = self._role.receive(self._numbers[name], frame)
        else:
            self._numbers[name], replies = self._role.join(frame, name)
        self._post(replies)
        self._post(self._role.work())

    def _post(self, replies: Replies) -> None:
        self._watch.sent(m for m, _ in replies)
        for m, frame in replies:
            self._lines[self._role.names[m - 1]].post(frame)


def _tell(lines: Iterable[Line], frame: bytes) -> None:
    """Let every party hear why the run ends, as far as it can be reached quickly."""
    listed = list(lines)
    for line in listed:
        with suppress(RemoteProtocolError):  # one that does not read hears nothing
            line.post(frame)
    until = time.monotonic() + _FAREWELL
    while any(line.busy for line in listed) and time.monotonic() < until:
        time.sleep(0.05)
