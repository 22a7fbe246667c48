"""The 17 channels of the in-hospital mortality task on MIMIC-III, which `mimic3_channels.toml` describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cvfl.data.sets import shipped

_CONVERSIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "": lambda x: x,
    # No temperature that a patient can have is read as one in both units.
    "celsius": lambda x: np.where(x > 60, (x - 32) / 1.8, x),
    "fraction": lambda x: np.where(x > 1, x / 100, x),
    "per_cent": lambda x: np.where(x <= 1, x * 100, x),
    "from_inches": lambda x: x * 2.54,
    "from_pounds": lambda x: x * 0.45359237,
}


@dataclass(frozen=True)
class Source:
    """Items of a dictionary table, by label in any case, and how their numbers become the channel's unit."""

    labels: Sequence[str]
    convert: str = ""
    table: str = "D_ITEMS"

    def converted(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers of these items in the channel's unit."""
        return _CONVERSIONS[self.convert](numbers)


@dataclass(frozen=True)
class Channel:
    """A variable: a number within a range, or one of some categories; `normal` is assumed until it is measured."""

    name: str
    normal: float | str
    sources: Sequence[Source]
    range: tuple[float, float] = (0.0, 0.0)
    categories: Sequence[str] = ()
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unsaid: str = ""

    @property
    def features(self) -> int:
        """How many values it takes: one, or one a category."""
        return len(self.categories) or 1

    @cached_property
    def codes(self) -> dict[str, int]:
        """The place of each category, under every spelling."""
        return {
            word: place
            for place, category in enumerate(self.categories)
            for word in (category, *self.spellings.get(category, ()))
        }

    def code(self, word: str) -> int:
        """The place of the category that is spelt so. Raises ValueError."""
        if word.strip() not in self.codes:
            raise ValueError(f"{word!r} is not a value of {self.name}")
        return self.codes[word.strip()]

    @property
    def start(self) -> float:
        """The normal value as a number."""
        return self.codes[self.normal] if isinstance(self.normal, str) else self.normal


CHANNELS = tuple(
    Channel(**said | {"sources": [Source(**source) for source in said["sources"]]})
    for said in shipped("mimic3_channels.toml")["channel"]
)
LOW, HIGH = np.array([(0, len(one.categories) - 1) if one.categories else one.range for one in CHANNELS]).T
