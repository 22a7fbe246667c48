"""Counts bytes where a frame leaves a process: by round, party and direction, evaluation apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cvfl.types import Direction
from cvfl.wire import Bytes
from cvfl.wire.frame import round_of
from cvfl.wire.message import for_evaluation


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

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down, self.evaluation + other.evaluation)


@dataclass
class Meter:
    """Bytes by party: of the rounds that were asked for, summed, and of each later round."""

    _past: dict[int, Traffic] = field(default_factory=dict)
    _rounds: dict[int, dict[int, Traffic]] = field(default_factory=dict)

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame to or from party m, for the round that it names."""
        traffic = self._rounds.setdefault(round_of(frame), {}).setdefault(m, Traffic())
        if for_evaluation(frame):
            traffic.evaluation += len(frame)
        elif direction is Direction.UP:
            traffic.up += len(frame)
        else:
            traffic.down += len(frame)

    def through(self, t0: int) -> Mapping[int, Traffic]:
        """Bytes by party of all rounds up to t0; a party's answer to round t0 already belongs to the next."""
        for passed in sorted(t for t in self._rounds if t <= t0):
            self._past = _summed([self._past, self._rounds.pop(passed)])
        return self._past

    def go_back(self, past: Mapping[int, Traffic]) -> None:
        """Take `past`, once returned by `through`, for all that was sent; what came after it is sent again."""
        self._past, self._rounds = dict(past), {}

    @property
    def parties(self) -> dict[int, Traffic]:
        """Bytes by party since the start."""
        return _summed([self._past, *self._rounds.values()])

    def total(self) -> Traffic:
        """All bytes since the start."""
        return sum(self.parties.values(), Traffic())


def _summed(parts: Iterable[Mapping[int, Traffic]]) -> dict[int, Traffic]:
    result: dict[int, Traffic] = {}
    for part in parts:
        for m, traffic in part.items():
            result[m] = result.get(m, Traffic()) + traffic
    return result
