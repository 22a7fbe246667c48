"""Parties whose embeddings change at once in a way that theirs never did: named, so that people can ask why.

A figure of `protocol.watch` raises an alarm when it leaves the range of the party's own history by a factor. That may
be poison, a mistake in a party's data, or training that goes wrong: a figure cannot tell which. A party that changes
slowly, or lies from the first round on, raises none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FACTOR = 3.0
"""How far beyond the largest of its history a figure has to be, or below the smallest."""
FEWEST = 3
"""Evaluations that make a history; embeddings change most in the first rounds."""
LEAST_TURN = 0.5
"""A mean row that has turned by less, as 1 - cosine, is none that was replaced."""
_SAID = {
    "norm": "the mean norm of a row",
    "largest": "the longest row",
    "spread": "the spread of rows",
    "turn": "the turn of the mean row",
}
_BOTH_WAYS = ("norm", "spread")
"""Of these it also says something that they are small."""


@dataclass
class _History:
    """What a figure of a party was so far."""

    count: int = 0
    least: float = math.inf
    most: float = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.least, self.most = min(self.least, value), max(self.most, value)


class Alarms:
    """Looks at every line of a run; `lines` has what to tell its people, one a party and figure."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _History] = {}
        self._raised: dict[tuple[str, str], str] = {}

    @property
    def lines(self) -> list[str]:
        """All alarms so far."""
        return [*self._raised.values()]

    def see(self, line: Mapping[str, Any]) -> str:
        """The alarms of this line of metrics.jsonl, if it raises any."""
        found = []
        for party, look in line.get("embeddings", {}).items():
            for figure in _SAID:
                if figure in look and (said := self._look(party, figure, look[figure], line["round"])):
                    found.append(said)
        return joined(*found)

    def _look(self, party: str, figure: str, value: float, t0: int) -> str:
        at = party, figure
        known = self._known.setdefault(at, _History())
        if at in self._raised:
            return ""
        if known.count < FEWEST or not _leaves(figure, value, known.least, known.most):
            known.add(value)
            return ""
        self._raised[at] = (
            f"{party}, round {t0}: {_SAID[figure]} of its embeddings is {value:.3g}, after {known.least:.3g} to "
            f"{known.most:.3g} before: ask whether its data or its model changed, and see docs/threat-model.md"
        )
        return self._raised[at]


def _leaves(figure: str, value: float, least: float, most: float) -> bool:
    """Whether a figure leaves the range of its history."""
    if figure == "turn":
        return value > max(FACTOR * most, LEAST_TURN)
    return value > FACTOR * most or (figure in _BOTH_WAYS and value < least / FACTOR)


def alarms_of(lines: Sequence[Mapping[str, Any]]) -> Alarms:
    """Those of a run up to here."""
    alarms = Alarms()
    for line in lines:
        alarms.see(line)
    return alarms


_BETWEEN = " · "


def joined(*lines: str) -> str:
    """Lines as one, without those that say nothing."""
    return _BETWEEN.join(line for line in lines if line)


def parted(line: str) -> list[str]:
    """The lines of one that was joined."""
    return line.split(_BETWEEN) if line else []
