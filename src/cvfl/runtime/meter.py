"""Counts bytes where a frame leaves a process: every frame, by party, by what it is for, and of rounds by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cvfl.types import Direction
from cvfl.wire import Bytes
from cvfl.wire.frame import round_of
from cvfl.wire.purpose import Purpose, purpose_of


@dataclass
class Traffic:
    """Bytes of one party, headers and checksums included: training by direction, all else in both together."""

    up: int = 0
    down: int = 0
    evaluation: int = 0
    alignment: int = 0
    setup: int = 0
    prediction: int = 0

    @property
    def training(self) -> int:
        """Those of training frames only."""
        return self.up + self.down

    @property
    def total(self) -> int:
        """All bytes, whatever they were for."""
        return self.training + self.evaluation + self.alignment + self.setup + self.prediction

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, part) + getattr(other, part) for part in vars(self)))


Counts = dict[int, Traffic]
"""Bytes by party."""


@dataclass
class Meter:
    """Bytes by party: of the rounds that were asked for, summed, of each later round, and of what is no round's.

    What was sent before the rounds counts with every one of them; what is sent after the last one with none. A role
    that comes back begins a new session: what sessions send that was sent before is counted apart, as sent again.
    """

    sent_again: int = 0
    before: Counts = field(default_factory=dict)
    """Of no round, and sent when the rounds first began."""
    _earlier: Counts = field(default_factory=dict)
    """Of no round, and of sessions that have not come to rounds."""
    _beside: Counts = field(default_factory=dict)
    """Of no round, and of this session."""
    _past: Counts = field(default_factory=dict)
    _rounds: dict[int, Counts] = field(default_factory=dict)

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame to or from party m, for the round that it names if it is one of a round."""
        purpose = purpose_of(frame)
        of_a_round = purpose in (Purpose.TRAINING, Purpose.EVALUATION)
        counts = self._rounds.setdefault(round_of(frame), {}) if of_a_round else self._beside
        traffic = counts.setdefault(m, Traffic())
        part = direction.value if purpose is Purpose.TRAINING else purpose.value
        setattr(traffic, part, getattr(traffic, part) + len(frame))

    def include(self, counts: Mapping[int, Traffic]) -> None:
        """Count what another meter has counted of no round."""
        self._beside = _summed([self._beside, counts])

    def session(self) -> None:
        """A session begins."""
        self._earlier, self._beside = _summed([self._earlier, self._beside]), {}

    def anew(self, owed: Sequence[int] = ()) -> None:
        """The rows are settled again from the start, so what earlier sessions sent for that counts as sent again.

        `owed` are the bytes, by party, of an earlier alignment that is reused and that no run has counted yet.
        """
        vain = _summed([self._earlier, self.before])
        self.sent_again += _total(vain) - min(sum(owed), sum(traffic.alignment for traffic in vain.values()))
        self._earlier, self.before = {m: Traffic(alignment=n) for m, n in enumerate(owed, start=1)}, {}

    def for_alignment(self, M: int) -> list[int]:
        """Bytes of each party that alignment took in this session."""
        return [self._beside.get(m, Traffic()).alignment for m in range(1, M + 1)]

    def begin(self) -> None:
        """The rounds begin, with what was sent so far; or they go on, and it was sent before."""
        sent = _summed([self._earlier, self._beside])
        if self.before:
            self.sent_again += _total(sent)
        else:
            self.before = sent
        self._earlier, self._beside = {}, {}

    def again(self, frames: Iterable[Bytes]) -> None:
        """Count frames that would not have been sent had nobody been away."""
        self.sent_again += sum(len(frame) for frame in frames)

    def through(self, t0: int) -> Counts:
        """Bytes by party before the rounds and of all up to t0; an answer to round t0 already belongs to the next."""
        return _summed([self.before, self.rounds_through(t0)])

    def rounds_through(self, t0: float) -> Counts:
        """The same of the rounds alone."""
        for passed in sorted(t for t in self._rounds if t <= t0):
            self._past = _summed([self._past, self._rounds.pop(passed)])
        return self._past

    def go_back(self, past: Mapping[int, Traffic], sent_again: int = 0) -> None:
        """Take `past`, once returned by `rounds_through`, for all rounds so far; what came after it is sent again."""
        lost = _total(_summed([self._past, *self._rounds.values()])) - _total(past)
        self.sent_again = max(self.sent_again, sent_again) + max(0, lost)
        self._past, self._rounds = dict(past), {}

    @property
    def parties(self) -> Counts:
        """Bytes by party since the start."""
        return _summed([self.before, self._beside, self._past, *self._rounds.values()])

    def total(self) -> Traffic:
        """All bytes since the start."""
        return sum(self.parties.values(), Traffic())


def _total(counts: Mapping[int, Traffic]) -> int:
    return sum(traffic.total for traffic in counts.values())


def _summed(parts: Iterable[Mapping[int, Traffic]]) -> Counts:
    result: Counts = {}
    for part in parts:
        for m, traffic in part.items():
            result[m] = result.get(m, Traffic()) + traffic
    return result
