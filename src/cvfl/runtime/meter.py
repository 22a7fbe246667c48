"""Counts bytes where a frame leaves a process: by party and direction, evaluation apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from cvfl.types import Direction
from cvfl.wire.message import Bytes

_EVALUATION_KIND = 4
_KIND_AT = 5


@dataclass
class Traffic:
    """Bytes of one party, headers and checksums included."""

    up: int = 0
    down: int = 0
    evaluation: int = 0

    @property
    def total(self) -> int:
        """All bytes, whatever they were for."""
        return self.up + self.down + self.evaluation


@dataclass
class Meter:
    """Bytes since the start, by party."""

    parties: dict[int, Traffic] = field(default_factory=dict)

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame to or from party m."""
        traffic = self.parties.setdefault(m, Traffic())
        if frame[_KIND_AT] == _EVALUATION_KIND:
            traffic.evaluation += len(frame)
        elif direction is Direction.UP:
            traffic.up += len(frame)
        else:
            traffic.down += len(frame)

    def total(self) -> Traffic:
        """Sum over the parties."""
        values = self.parties.values()
        return Traffic(sum(t.up for t in values), sum(t.down for t in values), sum(t.evaluation for t in values))
