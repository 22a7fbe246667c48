"""What the server saw of each party's embeddings, and the largest norms of messages, as a report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cvfl.report.colours import colour
from cvfl.report.format import NOTHING, amount
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import Look, Run

_ABOUT = (
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
    named = [(Text(one.label, colour=colour(n)), one.first) for n, one in enumerate(series)]
    looks = [(name, rows) for name, run in named if (rows := [*_rows(run)])]
    norms = [(name, [(kind, amount(found)) for kind, found in run.largest.items()]) for name, run in named]
    tables: list[str | Table] = [_ABOUT, Table("Embeddings", _HEAD, groups=looks)] if looks else []
    tables += [_LARGEST, Table("Largest norms", ("Of", "Norm"), groups=norms)]
    return Section("Embeddings", [*tables])


def _rows(run: Run) -> Iterator[Row]:
    for party in run.sent.by_party:
        seen: list[Look] = [line.embeddings[party] for line in run.history if party in line.embeddings]
        if seen:
            turns = [one.turn for one in seen if one.turn is not None]
            spread = seen[-1].spread
            figures = (seen[0].norm, seen[-1].norm, max(one.largest for one in seen))
            yield (
                party,
                *map(amount, figures),
                NOTHING if spread is None else amount(spread),
                amount(max(turns)) if turns else NOTHING,
            )
