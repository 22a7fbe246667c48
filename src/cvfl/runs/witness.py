"""Puts what passes between roles into the log of actions: who came and went, and what was sent, by kind of message.

    training      a line a round      written when nothing of it can come any more: three rounds later at the latest,
                                      since nobody is sent an answer of a round before all have sent theirs
    a prediction  a line a session    with how many rows are scored
    serving       a line every few seconds in which rows are asked for, with how many of them

Never a line a frame. The handshake of a session, with what finds the shared rows, has a line of its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cvfl.errors import CvflError, DecodeError
from cvfl.runs.actions import ActionLog
from cvfl.types import Direction
from cvfl.wire import Bytes
from cvfl.wire.frame import BEFORE_ROUNDS, kind_of, round_of
from cvfl.wire.purpose import NAMES
from cvfl.wire.serving import asked_in

EVERY = 5.0
"""Seconds of serving that a line is about."""
_LAG = 3
_HANDSHAKE = -1
Counts = dict[str, dict[str, list[int]]]
"""Frames and their bytes, by role and kind of message."""


@dataclass
class _Passed:
    """What was sent and received."""

    sent: Counts = field(default_factory=dict)
    received: Counts = field(default_factory=dict)

    def add(self, who: str, sent: bool, frame: Bytes) -> None:
        counts, kind = self.sent if sent else self.received, NAMES.get(kind_of(frame), "unknown")
        count = counts.setdefault(who, {}).setdefault(kind, [0, 0])
        count[0] += 1
        count[1] += len(frame)

    @property
    def told(self) -> dict[str, Counts]:
        return {"sent": _sorted(self.sent), "received": _sorted(self.received)}

    def __bool__(self) -> bool:
        return bool(self.sent or self.received)


class _Witness(ABC):
    """Keeps the log of a role; `names` are those of the parties, `own` is its own."""

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        self.log, self._own = log, own
        self._names = ("server", *names)
        self._outward = Direction.DOWN if own == "server" else Direction.UP

    def here(self, m: int, here: bool) -> None:
        """Somebody came, or is gone."""
        if not here:
            self.flush()
        self.log.append("joined" if here else "left", who=self._names[m])

    @abstractmethod
    def flush(self) -> None:
        """Write what was counted: the connection is gone, or all is over."""

    def ended(self, **about: Any) -> None:
        """All is over."""
        self._last("ended", **about)

    def close(self) -> None:
        """Add nothing more. What was sent before somebody pressed Ctrl-C is there, and a line says that it was that."""
        if self.log.close.alive:  # else it was over
            self._last("stopped")

    def _last(self, event: str, **about: Any) -> None:
        try:
            self.flush()
            self.log.append(event, **about)
        finally:
            self.log.close()

    def _count(self, passed: _Passed, m: int, direction: Direction, frame: Bytes) -> None:
        passed.add(self._names[m], direction is self._outward, frame)


class Recorder(_Witness):
    """That of a role that trains: a line a round."""

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        super().__init__(log, own, names)
        self._open: dict[int, _Passed] = {}

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame."""
        try:
            t0 = _HANDSHAKE if kind_of(frame) in BEFORE_ROUNDS else round_of(frame)
        except DecodeError:
            return  # no frame: the role refuses it
        if t0 not in self._open:
            self._write_until(t0 - _LAG if t0 > _HANDSHAKE else _HANDSHAKE - 1)
            self._open[t0] = _Passed()
        self._count(self._open[t0], m, direction, frame)

    def flush(self) -> None:
        """Write what was counted: the connection is gone, or all is over."""
        self._write_until(max(self._open, default=_HANDSHAKE))

    def _write_until(self, last: int) -> None:
        for t0 in sorted(t0 for t0 in self._open if t0 <= last):
            passed = self._open.pop(t0)
            about: dict[str, Any] = {} if t0 == _HANDSHAKE else {"round": t0}
            self.log.append("handshake" if t0 == _HANDSHAKE else "round", **about, **passed.told)


class _UseRecorder(_Witness):
    """That of a role that uses a model: a line for the handshake, and one for all else since the last."""

    event: str

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        super().__init__(log, own, names)
        self._handshake, self._use = _Passed(), _Passed()

    @abstractmethod
    def _asked(self) -> dict[str, int]:
        """Rows that the next line is about, by the run whose models are used."""

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame."""
        if kind := kind_of(frame):  # else it is no frame: the role refuses it
            self._count(self._handshake if kind in BEFORE_ROUNDS else self._use, m, direction, frame)

    def flush(self) -> None:
        """Write what was counted."""
        handshake, self._handshake = self._handshake, _Passed()
        use, self._use = self._use, _Passed()
        if handshake:
            self.log.append("handshake", **handshake.told)
        if use:
            self.log.append(self.event, rows=self._asked(), **use.told)


class PredictionRecorder(_UseRecorder):
    """That of a prediction with the models of a run; `rows` says how many rows it is about."""

    event = "predicted"

    def __init__(self, log: ActionLog, own: str, names: Sequence[str], run: str, rows: Callable[[], int]) -> None:
        super().__init__(log, own, names)
        self._run, self._rows = run, rows

    def _asked(self) -> dict[str, int]:
        return {self._run: self._rows()}

    def ended(self, **about: Any) -> None:
        """The prediction is over."""
        super().ended(run=self._run, rows=self._rows(), **about)


class ServingRecorder(_UseRecorder):
    """That of a role that serves; frames come in one thread, and lines are written in another when it is time."""

    event = "served"

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        super().__init__(log, own, names)
        self._rows: dict[str, int] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._failed: CvflError | None = None

    def _asked(self) -> dict[str, int]:
        rows, self._rows = self._rows, {}
        return rows

    def here(self, m: int, here: bool) -> None:
        """Somebody came, or is gone."""
        with self._lock:
            super().here(m, here)

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame; a log that cannot be written stops the role that it is of."""
        with self._lock:
            failed, self._failed = self._failed, None
            if failed:
                raise failed
            super().frame(m, direction, frame)
            self._count_rows(direction, frame)
            if self._timer is None:
                self._timer = threading.Timer(EVERY, self._in_time)
                self._timer.daemon = True
                self._timer.start()

    def _count_rows(self, direction: Direction, frame: Bytes) -> None:
        """Each row once: the server passes on to every party what the door asks."""
        if self._own == "server" and direction is self._outward:
            return
        try:
            asked = asked_in(frame)
        except DecodeError:
            return  # the role refuses it
        if asked:
            run, rows = asked
            self._rows[run] = self._rows.get(run, 0) + rows

    def flush(self) -> None:
        """Write what was counted."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            super().flush()

    def _in_time(self) -> None:
        try:
            self.flush()
        except CvflError as error:
            self._failed = error

    def again(self) -> None:
        """What others sent made the role begin anew: nobody is connected any more."""
        with self._lock:
            self.flush()
            self.log.append("again")

    def close(self) -> None:
        """The role is stopped."""
        with self._lock:
            self.ended()


def _sorted(counts: Counts) -> Counts:
    return {name: dict(sorted(kinds.items())) for name, kinds in sorted(counts.items())}
