"""The tables of a study, from recorded runs: best metric, bytes to the target, time under latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean

from cvfl import theory
from cvfl.report.format import MB, Form, digits, places, share
from cvfl.report.series import Spread, spread
from cvfl.report.table import Cell, Table, column
from cvfl.runs.record import Round, Run, Sent
from cvfl.studies.latency import ROUND_TRIPS, Measured
from cvfl.studies.study import Preset, Study

UNITS = {"MB": MB, "GB": 1e9}
COMPUTE = 10
"""Milliseconds a local iteration, as the paper assumes."""
MISSED = "--"

ONLY = "training frames only"
Rows = Mapping[str, Sequence[Run]]
Figure = Callable[[Sent], float]
ALL: Figure = attrgetter("total")
TRAINING: Figure = attrgetter("training")


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
    return next((line for line in run.history if line.test.get(metric, -math.inf) >= target), None)


def best(run: Run, metric: str) -> float:
    """The highest test metric of a run."""
    return max((line.test[metric] for line in run.history if metric in line.test), default=math.nan)


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
    cost, training = (costs(study, preset, rows, figure, unit) for figure in (ALL, TRAINING))
    amount, fine = amounts(cost), amounts(training)
    highest = [spread([best(run, metric) for run in runs]) for runs in rows.values()]
    whole = [spread([run.sent.total / unit for run in runs]) for runs in rows.values()]
    rounds = [_all([run.round_seconds for run in runs]) for runs in rows.values()]
    lossy = [runs[0].compressed for runs in rows.values()]
    # A cell without compression saves nothing against itself.
    unsaved = [MISSED if compressed else "" for compressed in lossy]
    missed = told_missed(study, preset, rows)
    fewer, saved = "fewer than none", f"fewer, {ONLY}"
    columns: dict[str, Sequence[Cell]] = {
        "": list(rows),
        f"max test {metric}": column(highest, digits(3), max),
        f"{study.unit} to {metric} {preset.target:g}": column(list(cost.values()), amount, min, missing=missed),
        fewer: column([_fewer(name, rows, cost) for name in rows], share, max, missing=unsaved),
        f"{study.unit} to it, {ONLY}": column(list(training.values()), fine, min, missing=missed),
        saved: column([_fewer(name, rows, training) for name in rows], share, max, missing=unsaved),
        f"{study.unit} of the whole run": column(whole, amount),
        **_shares(rows),
        "seconds": column([_all([run.seconds for run in runs]) for runs in rows.values()], digits(0)),
        "seconds a round": column(rounds, digits(3), missing=MISSED),
        "seeds": [str(len(runs)) for runs in rows.values()],
    }
    if all(lossy):
        del columns[fewer], columns[saved]
    note = (
        f"Bold is the best of a column; {MISSED} is a target that not every seed reached, with how many did. "
        f"{counted(rows)} Seconds a round are a median without evaluation."
    )
    return Table.of(columns, note=note)


def costs(study: Study, preset: Preset, rows: Rows, figure: Figure, unit: float) -> dict[str, Spread | None]:
    """Bytes to the target, where every seed reached it."""
    return {name: to_target(study, preset, runs, lambda line: figure(line.sent) / unit) for name, runs in rows.items()}


def amounts(cost: Mapping[str, Spread | None]) -> Form:
    """With as many places as the least of them needs."""
    return digits(places((value.mean for value in cost.values() if value), least=2, most=5))


def _shares(rows: Rows) -> dict[str, Sequence[Cell]]:
    """Of the bytes of whole runs, those that are not training's."""
    figures: dict[str, Figure] = {"evaluation": attrgetter("evaluation")}
    if _recorded(rows):
        figures["alignment and set-up"] = lambda sent: sent.total - sent.training - sent.evaluation
    return {
        f"of it {name}": column(
            [Spread(fmean(figure(run.sent) / run.sent.total for run in runs)) for runs in rows.values()], share
        )
        for name, figure in figures.items()
    }


def _recorded(rows: Rows) -> bool:
    return all(run.sent.whole for runs in rows.values() for run in runs)


def counted(rows: Rows) -> str:
    """What bytes are, in a note."""
    lacking = "" if _recorded(rows) else " Alignment and set-up were not recorded, and are not in them."
    return (
        "Bytes are those of all frames, counted where they leave: training, evaluation so far, alignment and set-up; "
        f"{ONLY} stand beside them.{lacking}"
    )


def _fewer(name: str, rows: Rows, cost: Mapping[str, Spread | None]) -> Spread | None:
    """The share of bytes to the target that a cell saves against the one that differs in compression only."""
    run = rows[name][0]
    plain = [other for other, runs in rows.items() if not runs[0].compressed]
    alike = [other for other in plain if _frame(rows[other][0]) == _frame(run)] or plain
    own, base = cost[name], cost[alike[0]] if alike else None
    return None if own is None or base is None or not run.compressed else Spread(1 - own.mean / base.mean)


def _frame(run: Run) -> tuple[object, ...]:
    return run.settings.get("local_iterations"), len(run.sent.by_party)


def _computed(study: Study, preset: Preset, rows: Rows, found: Mapping[str, Spread | None]) -> Table:
    rounds = column([found[name] for name in rows], digits(0), missing=told_missed(study, preset, rows))
    columns: dict[str, Sequence[Cell]] = {"": list(rows), f"rounds to {study.metric} {preset.target:g}": rounds}
    note = f"Rounds as recorded, {COMPUTE} ms a local iteration, one round trip a round."
    seconds = _seconds(rows, computed_times(rows, found))
    return Table.of(columns | seconds, "Seconds to the target, as the paper computes them", note)


def _measured(rows: Rows, found: Mapping[str, Spread | None], measured: Sequence[Measured]) -> Table:
    nearest = {one.cell: 1e3 * one.seconds_a_round for one in measured if one.round_trip_ms == ROUND_TRIPS[0]}
    steps = [
        Spread((nearest[name] - ROUND_TRIPS[0]) / _q(runs)) if name in nearest else None for name, runs in rows.items()
    ]
    here = column(steps, digits(1), missing=MISSED)
    columns: dict[str, Sequence[Cell]] = {"": list(rows), "ms a local iteration here": here}
    note = (
        "Rounds as recorded times the median seconds of a round over gRPC with mutual TLS; a run is the same bits on "
        "every runtime. Server and parties are processes of one machine and share its cores; a proxy delays all bytes. "
        f"A local iteration is that of all parties: a round at {ROUND_TRIPS[0]} ms, less the round trip, divided by Q."
    )
    seconds = _seconds(rows, measured_times(found, measured))
    return Table.of(columns | seconds, "Seconds to the target, measured over gRPC with emulated latency", note)


def _seconds(rows: Rows, known: Mapping[str, Sequence[Spread]]) -> dict[str, Sequence[Cell]]:
    """A column for each round trip."""
    return {
        f"{t} ms": column([known[name][n] if name in known else None for name in rows], digits(1), min, missing=MISSED)
        for n, t in enumerate(ROUND_TRIPS)
    }


def _formula(study: Study, rows: Rows) -> Table:
    """What the authors' formula says beside what crossed the wire."""
    unit, runs = UNITS[study.unit], [runs[0] for runs in rows.values()]
    formula = [(run.formula_bytes or math.nan) / unit for run in runs]
    measured = [run.sent.training / unit for run in runs]
    figures = {
        f"formula {study.unit}": formula,
        f"measured {study.unit} in training": measured,
        "measured / formula": [sent / computed for sent, computed in zip(measured, formula, strict=True)],
        **{part: [getattr(run.sent, part) / unit for run in runs] for part in ("up", "down", "evaluation", "total")},
    }
    columns = {name: column([Spread(value) for value in values], digits(3)) for name, values in figures.items()}
    return Table.of({"": list(rows), **columns})


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
