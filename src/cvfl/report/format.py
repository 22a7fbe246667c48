"""Numbers as a table shows them: aligned in their column, with a deviation, the best in bold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from cvfl.report.figures import MB, plain
from cvfl.report.html import NOTHING
from cvfl.report.series import Spread


@dataclass(frozen=True)
class Table:
    """A table of text for Markdown and for a page: the first cell names the row, **best** figures have stars."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Title, table and note."""
        lines = [f"| {' | '.join(cells)} |" for cells in (self.head, ("---",) * len(self.head), *self.rows)]
        return "\n\n".join([*([f"**{self.title}**"] if self.title else []), "\n".join(lines), *self.notes()]) + "\n"

    def notes(self) -> list[str]:
        """The note, if there is one."""
        return [self.note] if self.note else []

    def html_rows(self) -> list[tuple[str, ...]]:
        """The rows escaped, with stars as bold."""
        return [
            tuple(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(cell)) for cell in row) for row in self.rows
        ]


def scores(values: Iterable[float]) -> Callable[[float], str]:
    """A format of metrics and losses: four decimals, or four digits where one of the values is far from 1."""
    usual = all(math.isnan(value) or value == 0 or 1e-3 <= abs(value) < 1e3 for value in values)
    return lambda value: "NaN" if math.isnan(value) else f"{value:.4f}" if usual else f"{value:.4g}"


def score(value: float) -> str:
    """A single metric."""
    return scores([value])(value)


def amount(value: float) -> str:
    """A quantity of any size to three digits: 0.0123, 4.56, 789, 12,345, 1.2×10⁷."""
    if math.isnan(value):
        return "NaN"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{decimals(value)}f}"
    return plain(value)


def times(value: float) -> str:
    """A factor."""
    return f"{value:,.{0 if value >= 100 else 1}f}×"


def fixed(values: Iterable[float], cap: int = 4, unit: float = 1.0) -> Callable[[float], str]:
    """A format in units with the decimals that the smallest of the values needs for three digits, up to `cap`."""
    places = min(cap, max((decimals(value / unit) for value in values if value > 0), default=1))
    return lambda value: "NaN" if math.isnan(value) else f"{value / unit:,.{places}f}"


def megabytes(values: Iterable[float]) -> Callable[[float], str]:
    """`fixed` for bytes shown as MB."""
    return fixed(values, unit=MB)


def column(
    values: Sequence[Spread | None],
    form: Callable[[float], str],
    better: Callable[[Sequence[float]], float] | None = None,
    fair: Sequence[bool] = (),
) -> list[str]:
    """The cells of a column; `better` is min or max, and only what is `fair` to compare can be best."""
    candidates = [v.mean for v, ok in zip(values, fair, strict=False) if v and ok and not math.isnan(v.mean)]
    shown = {form(value) for value in candidates}
    # Where all are the same there is no best one, and what looks the same is equally good.
    best = form(better(candidates)) if better and len(shown) > 1 else None
    cells = []
    for n, value in enumerate(values):
        text = NOTHING if value is None else form(value.mean)
        if value and best == text and fair[n]:
            text = f"<strong>{text}</strong>"
        if value and value.deviation and form(value.deviation) != form(0):
            text += f" ± {form(value.deviation)}"
        cells.append(text)
    return cells


def decimals(value: float) -> int:
    """Places after the point that show three digits of a value."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
