"""What federation gains: a run beside usual models of one party's table, and of all tables joined."""

from __future__ import annotations

from collections.abc import Sequence

from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.report.colours import colour
from cvfl.report.format import NOTHING, fixed, metric_label, score
from cvfl.report.html import Section
from cvfl.report.series import Series
from cvfl.report.table import Row, Table, Text
from cvfl.runs.record import Reference, Summary

_ABOUT = (
    "Usual models, fitted to the same training rows and to columns that were prepared in the same way: of each party "
    "alone, and of the joined table that nobody has. The best of them are those with the best test metric, which "
    "flatters them a little. F1 of two classes is at the threshold that is best on validation rows, if there are any."
)


def gained(run: Summary) -> str:
    """A run's headline metric beside the best single party and the better joined model; nothing if it has none."""
    metric, test = run.metric or "", run.tested
    known = [one for one in run.references if metric in one.metrics.test]
    if metric not in test or not known:
        return ""
    alone, joined = (_best([one for one in known if bool(one.party) is single], metric) for single in (True, False))
    over = _told(test[metric], alone, metric, f"the best single party ({alone.party}, ")
    left = _told(test[metric], joined, metric, "the better joined model (")
    return f"test {metric_label(metric)} {score(test[metric])}: {over}, {left}"


def _best(found: Sequence[Reference], metric: str) -> Reference:
    better = min if metric in BETTER_LOW else max
    return better(found, key=lambda one: one.metrics.test[metric])


def _told(own: float, other: Reference, metric: str, name: str) -> str:
    ahead = (other.metrics.test[metric] - own) * (1 if metric in BETTER_LOW else -1)
    by = score(abs(ahead))
    how = "as good as" if by == score(0) else f"{by} {'better' if ahead > 0 else 'worse'} than"
    return f"{how} {name}{other.model}: {score(other.metrics.test[metric])})"


def references_section(series: Sequence[Series]) -> Section:
    """A table of every run that was compared, and what its federation gains."""
    compared = [(n, one) for n, one in enumerate(series) if one.first.references]
    metrics = list(dict.fromkeys(name for _, one in compared for name in shown_metrics(one.first)))
    groups = [(Text(one.label, colour=colour(n)), _rows(one.first, metrics)) for n, one in compared]
    heads = [f"Test {metric_label(name)}" for name in metrics]
    table = Table("What federation gains", ("Model", "Columns", *heads, "Seconds"), groups=groups)
    told = [f"{f'{one.label}: ' * (len(series) > 1)}{said}." for _, one in compared if (said := gained(one.first))]
    return Section("What federation gains", [*told, table, _ABOUT])


def shown_metrics(run: Summary) -> list[str]:
    """The headline first, then the others that a run and its references have, but for the loss."""
    names = dict.fromkeys(name for one in run.references for name in one.metrics.test if name != "loss")
    return sorted(names, key=lambda name: name != run.metric)


def reference_name(one: Reference) -> str:
    """Whose columns, and which model."""
    return f"{one.party} alone, {one.model}" if one.party else f"joined table, {one.model}"


def _rows(run: Summary, metrics: Sequence[str]) -> list[Row]:
    seconds = fixed([one.seconds for one in run.references], 1)
    own: Row = (Text("federation", bold=True), NOTHING, *_cells(run.tested, metrics), seconds(run.seconds))
    return [
        own,
        *(
            (reference_name(one), f"{one.columns:,}", *_cells(one.metrics.test, metrics), seconds(one.seconds))
            for one in run.references
        ),
    ]


def _cells(found: dict[str, float], metrics: Sequence[str]) -> list[str]:
    return [score(found[name]) if name in found else NOTHING for name in metrics]
