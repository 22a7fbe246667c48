"""The table and the figures of a suite: every cell of every member beside the one without compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cvfl.report.figures import metric_by_megabytes
from cvfl.report.format import MB, digits, places, times
from cvfl.report.results import metric_label
from cvfl.report.series import Spread, spread, to_series
from cvfl.report.svg import Drawn
from cvfl.report.table import Cell, Row, Table, column
from cvfl.runs.record import Run
from cvfl.studies.study import Preset, Study
from cvfl.studies.suite import BASELINE
from cvfl.studies.tables import MISSED, rows_of, to_target, told_missed

HEAD = (
    *("", "setting", "target", "MB to target", "times fewer", "epochs to target"),
    *("final test metric", f"within one deviation of {BASELINE}", "seeds"),
)
NOTE = (
    f"Bold is the best of a study; {MISSED} is a target that not every seed reached, with how many did. Bytes are "
    f"those of all training frames, counted where they leave; times fewer is against {BASELINE}. The final metric is "
    f"that of the last evaluation; its mean is compared with that of {BASELINE}, whose deviation over seeds is taken."
)


@dataclass(frozen=True)
class Member:
    """A study of a suite with its recorded runs."""

    name: str
    study: Study
    preset: Preset
    runs: Sequence[Run]


def suite_table(members: Sequence[Member]) -> Table:
    """All members in one table: bytes to the target, and what they cost in epochs and in the metric."""
    return Table("", HEAD, tuple(row for member in members for row in _rows(member)), NOTE)


def suite_figures(members: Sequence[Member]) -> list[Drawn]:
    """A figure a member with all of its cells; on a linear axis a hundredth of the bytes could not be seen."""
    return [_drawn(member) for member in members]


def _rows(member: Member) -> list[Row]:
    study, preset, rows = member.study, member.preset, rows_of(member.study, member.runs)
    cost = {name: to_target(study, preset, runs, lambda line: line.sent.training / MB) for name, runs in rows.items()}
    epochs = [to_target(study, preset, runs, lambda line: line.epoch) for runs in rows.values()]
    final = {name: spread([_final(run, study.metric) for run in runs]) for name, runs in rows.items()}
    amount = digits(places((value.mean for value in cost.values() if value), least=2, most=5))
    missed = told_missed(study, preset, rows)
    columns: tuple[Sequence[Cell], ...] = (
        [member.name] * len(rows),
        list(rows),
        [f"{study.metric} {preset.target:g}"] * len(rows),
        column(list(cost.values()), amount, min, missing=missed),
        _fewer(cost),
        column(epochs, digits(1), min, missing=missed),
        column(list(final.values()), digits(3), max),
        [_within(name, final) for name in rows],
        [str(len(runs)) for runs in rows.values()],
    )
    return list(zip(*columns, strict=True))


def _final(run: Run, metric: str) -> float:
    return run.metrics.test.get(metric, float("nan"))


def _fewer(cost: Mapping[str, Spread | None]) -> list[Cell]:
    """How many times fewer bytes than the baseline."""
    base = cost.get(BASELINE)
    factors = [
        Spread(base.mean / own.mean) if base and own and name != BASELINE else None for name, own in cost.items()
    ]
    return column(factors, times, max, missing=["" if name == BASELINE else MISSED for name in cost])


def _within(name: str, final: Mapping[str, Spread]) -> str:
    """Whether the final metric is as good as the baseline's, as far as its seeds can tell."""
    base = final.get(BASELINE)
    if name == BASELINE or base is None:
        return "" if base else MISSED
    if base.deviation is None:
        return "one seed"
    change = final[name].mean - base.mean
    return "yes" if abs(change) <= base.deviation else "no: better" if change > 0 else "no: worse"


def _drawn(member: Member) -> Drawn:
    study, label = member.study, f"test {metric_label(member.study.metric)}"
    series = to_series([run for runs in rows_of(study, member.runs).values() for run in runs])
    ident = f"figure-{member.name}"
    svg = metric_by_megabytes(series, study.metric, label, ident, member.preset.target, log=True)
    return Drawn(f"{study.title}: {label} by megabytes sent", svg, name=member.name)
