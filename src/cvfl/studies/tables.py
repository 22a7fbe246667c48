"""The tables of a study, from recorded runs: best metric, bytes to the target, time under latency."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from cvfl import theory
from cvfl.report.format import Table, decimals
from cvfl.report.series import Spread, spread
from cvfl.runs.record import Round, Run
from cvfl.studies.latency import ROUND_TRIPS, Measured
from cvfl.studies.study import Preset, Study

UNITS = {"MB": 1e6, "GB": 1e9}
COMPUTE = 10
"""Milliseconds a local iteration, as the paper assumes."""
MISSED = "--"

Rows = Mapping[str, Sequence[Run]]


def rows_of(study: Study, runs: Sequence[Run]) -> Rows:
    """The runs of every cell that has any, in the study's order."""
    found = {cell.name: [run for run in runs if run.name == cell.name] for cell in study.cell}
    return {name: there for name, there in found.items() if there}


def study_tables(study: Study, preset: Preset, runs: Sequence[Run], measured: Sequence[Measured] = ()) -> list[Table]:
    """The study's tables; every figure is a mean over seeds with its standard deviation."""
    rows = rows_of(study, runs)
    match study.table:
        case "target":
            return [_target(study, preset, rows)]
        case "latency":
            found = rounds_to_target(study, preset, rows)
            tables = [_computed(study, preset, rows, found)]
            return [*tables, *([_measured(rows, found, measured)] if measured else []), _target(study, preset, rows)]
        case "formula":
            return [_formula(study, rows)]


def reached(run: Run, metric: str, target: float) -> Round | None:
    """The first evaluated round whose test metric is at the target or above."""
    return next((line for line in run.history if line.test.get(metric, float("-inf")) >= target), None)


def best(run: Run, metric: str) -> float:
    """The highest test metric of a run."""
    return max((line.test[metric] for line in run.history if metric in line.test), default=float("nan"))


def rounds_to_target(study: Study, preset: Preset, rows: Rows) -> dict[str, Spread | None]:
    """Rounds to the target, where every seed reached it."""
    return {name: to_target(study, preset, runs, lambda line: line.number + 1.0) for name, runs in rows.items()}


def computed_times(rows: Rows, found: Mapping[str, Spread | None]) -> dict[str, list[Spread]]:
    """Seconds to the target by round trip, as the paper computes them."""
    return {
        name: [scaled(value, theory.latency(1, _q(rows[name]), COMPUTE, t) / 1e3) for t in ROUND_TRIPS]
        for name, value in found.items()
        if value is not None
    }


def measured_times(found: Mapping[str, Spread | None], measured: Sequence[Measured]) -> dict[str, list[Spread]]:
    """Seconds to the target by round trip: rounds that the runs took, times seconds a round as measured."""
    seconds = {(one.cell, one.round_trip_ms): one.seconds_a_round for one in measured}
    return {
        name: [scaled(value, seconds[name, t]) for t in ROUND_TRIPS]
        for name, value in found.items()
        if value is not None and all((name, t) in seconds for t in ROUND_TRIPS)
    }


def _target(study: Study, preset: Preset, rows: Rows) -> Table:
    unit, metric = UNITS[study.unit], study.metric
    cost = {name: to_target(study, preset, runs, lambda line: line.sent.training / unit) for name, runs in rows.items()}
    places = min(5, max([2, *(decimals(value.mean) for value in cost.values() if value)]))
    highest = [spread([best(run, metric) for run in runs]) for runs in rows.values()]
    fewer = [_fewer(name, rows, cost) for name in rows]
    whole = [spread([run.sent.training / unit for run in runs]) for runs in rows.values()]
    columns = {
        "": list(rows),
        f"max test {metric}": told_column(highest, 3, max),
        f"{study.unit} to {metric} {preset.target:g}": told_column(
            list(cost.values()), places, min, told_missed(study, preset, rows)
        ),
        "fewer than none": _shares(fewer, [runs[0].compressed for runs in rows.values()]),
        f"{study.unit} of the whole run": told_column(whole, places),
        "seconds": told_column([_seconds(runs, "seconds") for runs in rows.values()], 0),
        "seconds a round": told_column([_seconds(runs, "round_seconds") for runs in rows.values()], 3),
        "seeds": [str(len(runs)) for runs in rows.values()],
    }
    if all(runs[0].compressed for runs in rows.values()):
        del columns["fewer than none"]
    note = (
        f"Bold is the best of a column; {MISSED} is a target that not every seed reached, with how many did. Bytes are "
        "those of all training frames, counted where they leave. Seconds a round are a median without evaluation."
    )
    return Table("", tuple(columns), tuple(zip(*columns.values(), strict=True)), note)


def _seconds(runs: Sequence[Run], figure: str) -> Spread | None:
    return _all([attrgetter(figure)(run) for run in runs])


def _fewer(name: str, rows: Rows, cost: Mapping[str, Spread | None]) -> float | None:
    """The share of bytes to the target that a cell saves against the one that differs in compression only."""
    run = rows[name][0]
    plain = [other for other, runs in rows.items() if not runs[0].compressed]
    alike = [other for other in plain if _frame(rows[other][0]) == _frame(run)] or plain
    own, base = cost[name], cost[alike[0]] if alike else None
    return None if own is None or base is None or not run.compressed else 1 - own.mean / base.mean


def _frame(run: Run) -> tuple[object, ...]:
    return run.settings.get("local_iterations"), len(run.sent.by_party)


def _computed(study: Study, preset: Preset, rows: Rows, found: Mapping[str, Spread | None]) -> Table:
    times = computed_times(rows, found)
    table = _times("Seconds to the target, as the paper computes them", rows, times)
    rounds = [told(found[name], 0, told_missed(study, preset, rows)[n]) for n, name in enumerate(rows)]
    cells = tuple((row[0], count, *row[1:]) for row, count in zip(table.rows, rounds, strict=True))
    note = f"Rounds as recorded, {COMPUTE} ms a local iteration, one round trip a round."
    return Table(table.title, ("", f"rounds to {study.metric} {preset.target:g}", *table.head[1:]), cells, note)


def _measured(rows: Rows, found: Mapping[str, Spread | None], measured: Sequence[Measured]) -> Table:
    table = _times(
        "Seconds to the target, measured over gRPC with emulated latency", rows, measured_times(found, measured)
    )
    nearest = {one.cell: one for one in measured if one.round_trip_ms == ROUND_TRIPS[0]}
    own = [nearest[name].seconds_a_round * 1e3 if name in nearest else None for name in rows]
    step = [
        MISSED if ms is None else f"{(ms - ROUND_TRIPS[0]) / _q(runs):.1f}"
        for ms, runs in zip(own, rows.values(), strict=True)
    ]
    cells = tuple((row[0], ms, *row[1:]) for row, ms in zip(table.rows, step, strict=True))
    note = (
        "Rounds as recorded times the median seconds of a round over gRPC with mutual TLS; a run is the same bits on "
        "every runtime. Server and parties are processes of one machine and share its cores; a proxy delays all bytes. "
        f"A local iteration is that of all parties: a round at {ROUND_TRIPS[0]} ms, less the round trip, divided by Q."
    )
    return Table(table.title, ("", "ms a local iteration here", *table.head[1:]), cells, note)


def _times(title: str, rows: Rows, times: Mapping[str, Sequence[Spread]]) -> Table:
    columns = [
        told_column([times[name][n] if name in times else None for name in rows], 1, min)
        for n in range(len(ROUND_TRIPS))
    ]
    return Table(title, ("", *(f"{t} ms" for t in ROUND_TRIPS)), tuple(zip(rows, *columns, strict=True)))


def _formula(study: Study, rows: Rows) -> Table:
    """What the authors' formula says beside what crossed the wire."""
    unit, cells = UNITS[study.unit], []
    for name, runs in rows.items():
        run = runs[0]
        formula, measured = (run.formula_bytes or float("nan")) / unit, run.sent.training / unit
        parts = (run.sent.up / unit, run.sent.down / unit, run.sent.evaluation / unit)
        figures = (formula, measured, measured / formula, *parts)
        cells.append((name, *(f"{figure:.3f}" for figure in figures)))
    head = ("", f"formula {study.unit}", f"measured {study.unit}", "measured / formula", "up", "down", "evaluation")
    return Table("", head, tuple(cells))


def to_target(study: Study, preset: Preset, runs: Sequence[Run], figure: Callable[[Round], float]) -> Spread | None:
    """A figure of the round that reached the target, if every seed did."""
    found = [reached(run, study.metric, preset.target) for run in runs]
    return _all([None if line is None else figure(line) for line in found])


def told_missed(study: Study, preset: Preset, rows: Rows) -> list[str]:
    """What to say of a target that not every seed reached."""
    counts = [
        (sum(reached(run, study.metric, preset.target) is not None for run in runs), len(runs))
        for runs in rows.values()
    ]
    return [f"{MISSED} ({n} of {total})" if n else MISSED for n, total in counts]


def _all(values: Sequence[float | None]) -> Spread | None:
    """Mean and deviation if every seed has a value."""
    there = [value for value in values if value is not None]
    return spread(there) if there and len(there) == len(values) else None


def _q(runs: Sequence[Run]) -> int:
    return int(runs[0].settings["local_iterations"])


def scaled(value: Spread, factor: float) -> Spread:
    """Mean and deviation times a constant."""
    return Spread(value.mean * factor, None if value.deviation is None else value.deviation * factor)


def told_column(
    values: Sequence[Spread | None],
    digits: int,
    better: Callable[[Sequence[float]], float] | None = None,
    missed: Sequence[str] = (),
) -> list[str]:
    """The cells of a column; what looks the same as the best is as good, and where all are the same none is best."""
    shown = {f"{v.mean:.{digits}f}" for v in values if v and not math.isnan(v.mean)}
    best_ = f"{better([float(text) for text in shown]):.{digits}f}" if better and len(shown) > 1 else None
    cells = [told(value, digits, missed[n] if missed else MISSED) for n, value in enumerate(values)]
    return [
        f"**{best_}**{cell.removeprefix(best_)}" if best_ and value and f"{value.mean:.{digits}f}" == best_ else cell
        for value, cell in zip(values, cells, strict=True)
    ]


def _shares(values: Sequence[float | None], compressed: Sequence[bool]) -> list[str]:
    """The column of savings; a cell without compression has none."""
    cells = told_column([None if value is None else Spread(100 * value) for value in values], 1, max)
    signed = [re.sub(r"(-?[\d.]+)", r"\1%", cell, count=1) if cell != MISSED else cell for cell in cells]
    return [cell if lossy else "" for cell, lossy in zip(signed, compressed, strict=True)]


def told(value: Spread | None, digits: int, missed: str = MISSED) -> str:
    """Mean ± deviation, or the sign for a target that was missed."""
    if value is None:
        return missed
    mean = f"{value.mean:.{digits}f}"
    return mean if value.deviation is None else f"{mean} ± {value.deviation:.{digits}f}"
