"""Tables whose cells stay values until they are written: as Markdown here, as HTML by the template of a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from cvfl.report.format import NOTHING, Form
from cvfl.report.series import Spread


@dataclass(frozen=True)
class Value:
    """A number with its deviation, the way to write both, a mark for the best of a column, a unit, and notes."""

    spread: Spread
    form: Form
    best: bool = False
    unit: str = ""
    about: Sequence[str] = ()

    @property
    def mean(self) -> str:
        """What is bold if it is the best."""
        return self.form(self.spread.mean)

    @property
    def rest(self) -> str:
        """What comes after the mean: deviation and unit, if there are any."""
        deviation = self.spread.deviation
        return f"{'' if deviation is None else f' ± {self.form(deviation)}'}{self.unit and f' {self.unit}'}"

    def __str__(self) -> str:
        about = f" ({', '.join(self.about)})" if self.about else ""
        return f"**{self.mean}**{self.rest}{about}" if self.best else f"{self.mean}{self.rest}{about}"


@dataclass(frozen=True)
class Text:
    """Words that are bold, have a line about them or a warning, or name a run in the colour of its figures."""

    text: str
    bold: bool = False
    colour: str = ""
    about: str = ""
    warning: str = ""


Cell = str | Value | Text
Row = Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """The first cell names the row; `groups` are rows under a heading. The title is what a page calls it aloud."""

    title: str
    head: Sequence[str]
    rows: Sequence[Row] = ()
    note: str = ""
    groups: Sequence[tuple[str | Text, Sequence[Row]]] = ()
    texts: bool = False

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Cell]], title: str = "", note: str = "") -> Self:
        """The table of these columns under their names."""
        return cls(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), note)

    def markdown(self) -> str:
        """Title, rows and note."""
        lines = [f"| {' | '.join(map(str, row))} |" for row in (self.head, ("---",) * len(self.head), *self.rows)]
        title = f"**{self.title}**" if self.title else ""
        return "\n\n".join(part for part in (title, "\n".join(lines), self.note) if part) + "\n"


def column(
    values: Sequence[Spread | None],
    form: Form,
    better: Callable[[Sequence[float]], float] | None = None,
    fair: Sequence[bool] | None = None,
    missing: str | Sequence[str] = NOTHING,
) -> list[Cell]:
    """The cells of a column; `better` is min or max, and only what is `fair` to compare can be best.

    What is written the same as the best is as good, and where all are the same none is best.
    """
    means = [
        value.mean if value and (fair is None or fair[n]) and not math.isnan(value.mean) else None
        for n, value in enumerate(values)
    ]
    known = [mean for mean in means if mean is not None]
    best = form(better(known)) if better and len({*map(form, known)}) > 1 else None
    words = [missing] * len(values) if isinstance(missing, str) else missing
    return [
        word if value is None else Value(value, form, best=mean is not None and form(mean) == best)
        for value, mean, word in zip(values, means, words, strict=True)
    ]


def without_deviation(cell: Cell) -> Cell:
    """The cell for a place that has no room for it."""
    return replace(cell, spread=Spread(cell.spread.mean)) if isinstance(cell, Value) else cell
