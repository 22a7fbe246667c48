"""What adds up over the rounds of a run: where its time went, what was seen of each party, and what is alarming there.

A report has it of all lines at once, the board of lines as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from cvfl.runs.alarms import Alarms
from cvfl.runs.record import Look, Round


@dataclass
class Clock:
    """Seconds of a role in all rounds: its own work, coding, and waiting by those that it waited for."""

    compute: float = 0.0
    codec: float = 0.0
    wait: dict[str, float] = field(default_factory=dict)


@dataclass
class Seen:
    """Of a party's embeddings: the first and the newest look, the longest row of all, and the largest turn."""

    first: Look
    last: Look
    longest: float
    turn: float | None

    def add(self, look: Look) -> None:
        """A newer look."""
        self.last, self.longest = look, max(self.longest, look.largest)
        if look.turn is not None:
            self.turn = look.turn if self.turn is None else max(self.turn, look.turn)


class Tally:
    """Of the rounds that it was told of, in their order."""

    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {}
        self.seen: dict[str, Seen] = {}
        self.alarms = Alarms()

    @classmethod
    def of(cls, history: Iterable[Round]) -> Self:
        """That of a run whose lines are all read."""
        tally = cls()
        for line in history:
            for role, spent in line.time.items():
                tally.spend(role, spent.compute, spent.codec, spent.wait)
            tally.look(line.number, line.embeddings)
        return tally

    def spend(self, role: str, compute: float, codec: float, wait: Mapping[str, float]) -> None:
        """Seconds of a role in a round."""
        clock = self.clocks.setdefault(role, Clock())
        clock.compute += compute
        clock.codec += codec
        for name, seconds in wait.items():
            clock.wait[name] = clock.wait.get(name, 0.0) + seconds

    def look(self, t0: int, looks: Mapping[str, Look]) -> None:
        """What was seen of parties at an evaluation."""
        for party, look in looks.items():
            if party in self.seen:
                self.seen[party].add(look)
            else:
                self.seen[party] = Seen(look, look, look.largest, look.turn)
        if looks:
            shown = {party: look.model_dump(exclude_none=True) for party, look in looks.items()}
            self.alarms.see({"round": t0, "embeddings": shown})
