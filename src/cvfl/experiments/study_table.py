"""The tables of a study in Markdown, from recorded runs: best metric, bytes to the target, time under latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cvfl import theory
from cvfl.experiments.recorded import Round, Run
from cvfl.experiments.series import Spread, spread
from cvfl.experiments.study import Preset, Study

UNITS = {"MB": 1e6, "GB": 1e9}
ROUND_TRIPS = (1, 10, 50, 200)
"""Milliseconds, as in the paper's Table 5."""
COMPUTE = 10
"""Milliseconds a local iteration, as the paper assumes."""
MISSED = "--"


def study_tables(study: Study, preset: Preset, runs: Sequence[Run]) -> str:
    """The study's tables; every figure is a mean over seeds with its standard deviation."""
    rows = {cell.name: [run for run in runs if run.name == cell.name] for cell in study.cell}
    known = {name: found for name, found in rows.items() if found}
    match study.table:
        case "target":
            return _target(study, preset, known)
        case "latency":
            return _latency(study, preset, known)
        case "formula":
            return _formula(study, known)


def reached(run: Run, metric: str, target: float) -> Round | None:
    """The first evaluated round whose test metric is at the target or above."""
    return next((line for line in run.history if line.test.get(metric, float("-inf")) >= target), None)


def best(run: Run, metric: str) -> float:
    """The highest test metric of a run."""
    return max((line.test[metric] for line in run.history if metric in line.test), default=float("nan"))


def _target(study: Study, preset: Preset, rows: dict[str, list[Run]]) -> str:
    unit, metric = UNITS[study.unit], study.metric
    to_target = {
        name: _all(
            [None if (r := reached(run, metric, preset.target)) is None else r.sent.training / unit for run in runs]
        )
        for name, runs in rows.items()
    }
    baseline = next((to_target[name] for name, runs in rows.items() if not runs[0].compressed), None)
    lines = [
        f"| | max test {metric} | {study.unit} to {metric} {preset.target:g} | fewer than none "
        f"| {study.unit} of the whole run | seconds | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        cost = to_target[name]
        fewer = MISSED if cost is None or baseline is None else f"{1 - cost.mean / baseline.mean:.1%}"
        whole = spread([run.sent.training / unit for run in runs])
        cells = [
            name,
            told(spread([best(run, metric) for run in runs]), 3),
            told(cost, 2),
            fewer if runs[0].compressed else "",
            told(whole, 2),
            told(spread([run.seconds for run in runs]), 0),
            str(len(runs)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _latency(study: Study, preset: Preset, rows: dict[str, list[Run]]) -> str:
    """Seconds to the target for each round trip: rounds as measured, time as the paper computes it."""
    head = " | ".join(f"{t} ms" for t in ROUND_TRIPS)
    lines = [f"| | rounds to {study.metric} {preset.target:g} | {head} |", "|---" * (2 + len(ROUND_TRIPS)) + "|"]
    for name, runs in rows.items():
        q = int(runs[0].settings["local_iterations"])
        found = _all(
            [None if (r := reached(run, study.metric, preset.target)) is None else r.number + 1.0 for run in runs]
        )
        times = [
            MISSED if found is None else told(_scaled(found, theory.latency(1, q, COMPUTE, t) / 1e3), 1)
            for t in ROUND_TRIPS
        ]
        lines.append(f"| {name} | {told(found, 0)} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


def _formula(study: Study, rows: dict[str, list[Run]]) -> str:
    """What the authors' formula says beside what crossed the wire."""
    unit = UNITS[study.unit]
    lines = [
        f"| | formula {study.unit} | measured {study.unit} | measured / formula | up | down | evaluation |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        run = runs[0]
        formula, measured = (run.formula_bytes or float("nan")) / unit, run.sent.training / unit
        parts = (run.sent.up / unit, run.sent.down / unit, run.sent.evaluation / unit)
        figures = [f"{formula:.3f}", f"{measured:.3f}", f"{measured / formula:.3f}", *(f"{part:.3f}" for part in parts)]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def _all(values: Sequence[float | None]) -> Spread | None:
    """Mean and deviation if every seed has a value."""
    there = [value for value in values if value is not None]
    return spread(there) if there and len(there) == len(values) else None


def _scaled(value: Spread, factor: float) -> Spread:
    return Spread(value.mean * factor, None if value.deviation is None else value.deviation * factor)


def told(value: Spread | None, digits: int) -> str:
    """Mean ± deviation, or the sign for a target that was missed."""
    if value is None:
        return MISSED
    form: Callable[[float], str] = lambda x: f"{x:.{digits}f}"  # noqa: E731
    return form(value.mean) if value.deviation is None else f"{form(value.mean)} ± {form(value.deviation)}"
