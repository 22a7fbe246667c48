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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cvfl.errors import CvflError, DecodeError, OutputError
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
        """Write what was counted; what could not be written is counted on, and written when it can be."""
        if self._handshake:
            self.log.append("handshake", **self._handshake.told)
            self._handshake = _Passed()
        if self._use:
            self.log.append(self.event, rows=self._asked(), **self._use.told)
            self._use = _Passed()


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
    """That of a role that serves; frames come in some threads, and lines are written in another when it is time.

    While the log cannot be written no frame passes. It is tried again and again, also when no frame comes.
    """

    event = "served"

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        super().__init__(log, own, names)
        self._rows: dict[str, int] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self.failed = ""
        """Why the log could not be written when that was last tried, if so."""
        self.tell: Callable[[str], None] = lambda why: None
        """Hears it."""

    def _asked(self) -> dict[str, int]:
        return self._rows

    def here(self, m: int, here: bool) -> None:
        """Somebody came, or is gone."""
        with self._written():
            super().here(m, here)

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame; a log that cannot be written stops the role that it is of."""
        with self._lock:
            if self.failed:
                raise OutputError(self.failed)
            super().frame(m, direction, frame)
            self._count_rows(direction, frame)
            if self._timer is None:
                self._wait()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """What is in here writes, and says whether that went well."""
        with self._lock:
            try:
                yield
            except CvflError as error:
                if self.failed != str(error):
                    self.failed = str(error)
                    self.tell(self.failed)
                if self._timer is None:
                    self._wait()
                raise
            self.failed = ""

    def _wait(self) -> None:
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
            if self._handshake or self._use:
                with self._written():
                    super().flush()
                    self._rows = {}

    def _in_time(self) -> None:
        with self._lock, suppress(CvflError):  # it is told, and tried again
            if self.log.close.alive:
                self.flush()

    def again(self) -> None:
        """What others sent made the role begin anew: nobody is connected any more."""
        with self._written():
            self.flush()
            self.log.append("again")

    def close(self) -> None:
        """The role is stopped."""
        with self._lock:
            self.ended()


def _sorted(counts: Counts) -> Counts:
    return {name: dict(sorted(kinds.items())) for name, kinds in sorted(counts.items())}
