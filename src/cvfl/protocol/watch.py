"""What the server sees of embeddings between two evaluations: a few numbers a party, which poison may move.

    norm      mean norm of a row               twice as much where a party sends twice its embedding
    largest   the longest row                  a few rows that are to move the model
    spread    of rows about their mean,        nothing where all rows are the same
              as a share of their size
    turn      1 - cosine of the mean row and   about 1 where something else is sent instead; of a mean
              the one before                   that chance could have made there is none

They are of training messages as they were decoded, so nobody sends anything for them. Where the server reads sums
alone there is nothing to see of a party.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cvfl.protocol.limits import longest, norm, row_norms

_CLEAR = 10.0
"""The mean of n rows without direction has a square of about a nth of theirs; so many times that is no chance."""
Look = dict[str, float]
"""The four figures of a party."""


@dataclass
class _Sums:
    """Of the rows of a party since the last evaluation."""

    rows: int = 0
    norms: float = 0.0
    squares: float = 0.0
    longest: float = 0.0
    total: Tensor | None = None

    def add(self, h: Tensor) -> None:
        """Count these rows in."""
        if not len(h):
            return
        norms, total = row_norms(h).cpu(), h.detach().double().sum(0).cpu()
        self.rows += len(h)
        self.norms += float(norms.sum())
        self.squares += float(norms.square().sum())
        self.longest = max(self.longest, float(norms.max()))
        self.total = total if self.total is None else self.total + total

    def look(self, before: Tensor | None) -> tuple[Look, Tensor | None]:
        """The figures, and the mean row for the next ones if it says something."""
        assert self.total is not None  # or there would be nothing to look at
        mean = self.total / self.rows
        size, middle = self.squares / self.rows, float(mean.square().sum())
        found = {"norm": self.norms / self.rows, "largest": self.longest}
        if size > 0:
            found["spread"] = math.sqrt(max(0.0, 1 - middle / size))
        if before is not None and (both := math.sqrt(middle) * norm(before)) > 0:
            found["turn"] = max(0.0, 1 - float(mean @ before) / both)
        return found, mean if middle * self.rows > _CLEAR * size else None


@dataclass
class Watch:
    """Of all parties; `largest` are the largest norms so far: of embeddings, sums, gradients and the server model."""

    largest: dict[str, float] = field(default_factory=dict)
    _sums: dict[int, _Sums] = field(default_factory=dict)
    _means: dict[int, Tensor] = field(default_factory=dict)

    def see(self, phi: Sequence[Tensor], apart: bool) -> None:
        """Embeddings of a round, by party if they are apart; else their sum."""
        for m, h in enumerate(phi, start=1):
            if not apart:
                self.rows("sum", h)
                continue
            sums = self._sums.setdefault(m, _Sums())
            sums.add(h)
            self._reach("embedding", sums.longest)

    def rows(self, key: str, rows: Tensor) -> None:
        """Rows of another kind that were read or sent."""
        self._reach(key, longest(rows))

    def model(self, pieces: Mapping[str, Tensor]) -> None:
        """The matrices of the server model that were sent."""
        for value in pieces.values():
            if value.ndim >= 2:
                self._reach("model", norm(value))

    def _reach(self, key: str, found: float) -> None:
        self.largest[key] = max(self.largest.get(key, 0.0), found)

    def take(self) -> dict[int, Look]:
        """The figures of every party since this was called last."""
        looks = {}
        for m, sums in self._sums.items():
            looks[m], mean = sums.look(self._means.pop(m, None))
            if mean is not None:
                self._means[m] = mean
        self._sums = {}
        return looks

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return {
            "largest": dict(self.largest),
            "sums": {m: dict(vars(sums)) for m, sums in self._sums.items()},
            "means": dict(self._means),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.largest, self._means = dict(state["largest"]), dict(state["means"])
        self._sums = {m: _Sums(**sums) for m, sums in state["sums"].items()}
