"""Puts what passes between roles into the log of actions: who came and went, and by round what was sent, by kind.

A line a round, not a line a frame: it is written when nothing of that round can come any more, which is three rounds
later at the latest, since nobody is sent an answer of a round before all have sent theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvfl.errors import DecodeError
from cvfl.runs.actions import ActionLog
from cvfl.types import Direction
from cvfl.wire import Bytes
from cvfl.wire.frame import BEFORE_ROUNDS, kind_of, round_of
from cvfl.wire.purpose import NAMES

_LAG = 3
_HANDSHAKE = -1
Counts = dict[str, dict[str, list[int]]]
"""Frames and their bytes, by role and kind of message."""


class Recorder:
    """A witness that keeps the log of a role; `names` are those of the parties, `own` is its own."""

    def __init__(self, log: ActionLog, own: str, names: Sequence[str]) -> None:
        self.log, self._own = log, own
        self._names = ("server", *names)
        self._outward = Direction.DOWN if own == "server" else Direction.UP
        self._open: dict[int, tuple[Counts, Counts]] = {}

    def here(self, m: int, here: bool) -> None:
        """Somebody came, or is gone."""
        if not here:
            self.flush()
        self.log.append("joined" if here else "left", who=self._names[m])

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame."""
        kind = kind_of(frame)
        try:
            t0 = _HANDSHAKE if kind in BEFORE_ROUNDS else round_of(frame)
        except DecodeError:
            return  # no frame: the role refuses it
        if t0 not in self._open:
            self._write_until(t0 - _LAG if t0 > _HANDSHAKE else _HANDSHAKE - 1)
            self._open[t0] = ({}, {})
        counts = self._open[t0][direction is not self._outward]
        count = counts.setdefault(self._names[m], {}).setdefault(NAMES.get(kind, "unknown"), [0, 0])
        count[0] += 1
        count[1] += len(frame)

    def flush(self) -> None:
        """Write what was counted: the connection is gone, or all is over."""
        self._write_until(max(self._open, default=_HANDSHAKE))

    def _write_until(self, last: int) -> None:
        for t0 in sorted(t0 for t0 in self._open if t0 <= last):
            sent, received = (_sorted(counts) for counts in self._open.pop(t0))
            about: dict[str, Any] = {} if t0 == _HANDSHAKE else {"round": t0}
            self.log.append("handshake" if t0 == _HANDSHAKE else "round", **about, sent=sent, received=received)


def _sorted(counts: Counts) -> Counts:
    return {name: dict(sorted(kinds.items())) for name, kinds in sorted(counts.items())}
