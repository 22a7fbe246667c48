"""What the server saw of each party's embeddings, and the largest norms of messages, as pages show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cvfl.report.format import NOTHING, amount
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.report.tables import named
from cvfl.runs.tally import Tally

SEEN = (
    "Of the embeddings that each party sent for training, as the server decoded them, between two evaluations: their "
    "mean norm at first and last, the longest row, the spread about their mean as a share of their size (0: all rows "
    "are the same), and how far the mean turned at most between two evaluations (0: not at all, 1: into another)."
)
_LARGEST = (
    "The largest norms of the run: of a row of an embedding, of a sum of embeddings, of a gradient, and of a matrix of "
    "the server model. The keys of [limits] have a role refuse larger ones."
)
_HEAD = ("Party", "Norm at first", "Norm at last", "Longest row", "Spread at last", "Largest turn")


def watch_section(series: Sequence[Series]) -> Section:
    """For each run what was seen of its parties, and what limits would have had to allow."""
    seen = seen_table([(named(one, n), one.tally) for n, one in enumerate(series)])
    norms = [
        (named(one, n), [(kind, amount(found)) for kind, found in one.first.largest.items()])
        for n, one in enumerate(series)
    ]
    tables: list[str | Table] = [SEEN, seen] if seen.groups else []
    return Section("Embeddings", [*tables, _LARGEST, Table("Largest norms", ("Of", "Norm"), groups=norms)])


def seen_table(runs: Sequence[tuple[Text, Tally]]) -> Table:
    """Figures of each party's embeddings; a run in which nothing was seen of them is left out."""
    return Table("Embeddings", _HEAD, groups=[(name, [*_rows(tally)]) for name, tally in runs if tally.seen])


def _rows(tally: Tally) -> Iterator[Row]:
    for party, seen in tally.seen.items():
        spread = seen.last.spread
        yield (
            party,
            *map(amount, (seen.first.norm, seen.last.norm, seen.longest)),
            NOTHING if spread is None else amount(spread),
            NOTHING if seen.turn is None else amount(seen.turn),
        )
