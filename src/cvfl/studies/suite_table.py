"""The table of a suite: bytes to the target of every cell, and what they cost in epochs and in the metric.

Cells are compared with the cell without compression that reaches the target with the fewest bytes, whatever its Q is,
and metrics seed by seed: seeds share rows and initial weights, so their differences say more than two means do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cvfl.lazy import lazy
from cvfl.report.format import MB, change, digits, times
from cvfl.report.series import Spread, spread
from cvfl.report.table import Cell, Table, column
from cvfl.runs.record import Run
from cvfl.studies.study import BASELINE, Preset, Study, is_baseline
from cvfl.studies.tables import (
    ALL,
    MISSED,
    ONLY,
    TRAINING,
    Rows,
    amounts,
    costs,
    counted,
    rows_of,
    to_target,
    told_missed,
)

special = lazy("scipy.special")

_CONFIDENCE = 0.95
_WAYS = 2  # up and down
FLOOR = "floor"
"""The row of what no method of this kind can go below."""


def suite_table(name: str, study: Study, preset: Preset, runs: Sequence[Run]) -> Table:
    """The rows of a suite's member."""
    rows = rows_of(study, runs)
    cost, training = (costs(study, preset, rows, figure, MB) for figure in (ALL, TRAINING))
    base = baseline(cost, rows)
    epochs = [to_target(study, preset, found, lambda line: line.epoch) for found in rows.values()]
    final = [spread([_final(run, study.metric) for run in found]) for found in rows.values()]
    whole = {cell: spread([run.sent.total / MB for run in found]) for cell, found in rows.items()}
    missed = told_missed(study, preset, rows)
    compared = {
        f"{label} minus {BASELINE}, by seed": [_compared(rows, cell, base, metric) for cell in rows]
        for label, metric in (("metric", study.metric), ("ROC AUC", "roc_auc"), ("loss", "loss"))
    }
    columns: dict[str, Sequence[Cell]] = {
        "": [name] * len(rows),
        "setting": list(rows),
        "target": [f"{study.metric} {preset.target:g}"] * len(rows),
        "MB to target": column(list(cost.values()), amounts(cost), min, missing=missed),
        "times fewer": _times_fewer(cost, base),
        f"MB, {ONLY}": column(list(training.values()), amounts(training), min, missing=missed),
        f"times fewer, {ONLY}": _times_fewer(training, base),
        "MB of the whole run": column(list(whole.values()), amounts(whole), min),
        "epochs to target": column(epochs, digits(1), min, missing=missed),
        "final test metric": column(final, digits(4), max),
        **compared,
        "seeds": [str(len(found)) for found in rows.values()],
    }
    table = Table.of(columns, note=_note(counted(rows)))
    return table if (least := _floor(study, rows)) is None else _with_floor(table, name, least)


def baseline(cost: Mapping[str, Spread | None], rows: Rows) -> str | None:
    """The cell without compression that needs the fewest bytes; the first one if none reaches the target.

    Where some have more seeds than others, it is one of those: the others were tried to find it.
    """
    most = max((len(runs) for cell, runs in rows.items() if is_baseline(cell)), default=0)
    plain = [cell for cell in cost if is_baseline(cell) and len(rows[cell]) == most]
    reached = {cell: found.mean for cell in plain if (found := cost[cell]) is not None}
    return min(reached, key=reached.__getitem__) if reached else next(iter(plain), None)


def _compared(rows: Rows, cell: str, base: str | None, metric: str) -> str:
    if base is None or cell == base:
        return MISSED if base is None else ""
    return difference(rows[cell], rows[base], metric)


def difference(own: Sequence[Run], base: Sequence[Run], metric: str) -> str:
    """Mean of own minus base over the seeds that both have, its interval, and the lowest and highest of them."""
    theirs = {run.seed: _final(run, metric) for run in base}
    found = [_final(run, metric) - theirs[run.seed] for run in own if run.seed in theirs]
    return paired(found)


def paired(found: Sequence[float]) -> str:
    """The mean of differences by seed, its interval by Student's t, and the lowest and highest of them."""
    if not found or any(map(math.isnan, found)):
        return MISSED
    mean = spread(found)
    if mean.deviation is None:
        return f"{change(mean.mean)} (one seed)"
    reach = float(special.stdtrit(len(found) - 1, (1 + _CONFIDENCE) / 2)) * mean.deviation / math.sqrt(len(found))
    return f"{change(mean.mean)} ± {reach:.4f} ({change(min(found))} to {change(max(found))})"


def _final(run: Run, metric: str) -> float:
    return run.metrics.test.get(metric, math.nan)


def _times_fewer(cost: Mapping[str, Spread | None], base: str | None) -> list[Cell]:
    """How many times fewer bytes than the baseline."""
    least = cost.get(base) if base else None
    factors = [
        Spread(least.mean / own.mean) if least and own and not is_baseline(name) else None for name, own in cost.items()
    ]
    return column(factors, times, max, missing=["" if is_baseline(name) else MISSED for name in cost])


def _floor(study: Study, rows: Rows) -> float | None:
    """MB of one bit for each direction that the loss sees, once for every training row and party, each way."""
    (run, *_) = next(iter(rows.values()))
    bits = run.rows.get("train", 0) * len(run.sent.by_party) * _WAYS * study.directions
    return bits / 8 / MB or None


def _with_floor(table: Table, name: str, least: float) -> Table:
    shown = digits(4)(least)
    row = (name, FLOOR, *(shown if head.startswith(("MB to", f"MB, {ONLY}")) else "" for head in table.head[2:]))
    return Table(table.title, table.head, (*table.rows, row), table.note)


def _note(bytes_: str) -> str:
    return (
        f"Bold is the best of a study; {MISSED} is a target that not every seed reached, with how many did. {bytes_} "
        f"Times fewer is against {BASELINE} at the Q with which it needs the fewest bytes. The final metric is that of "
        f"the last evaluation; differences from the same {BASELINE} are by seed: their mean with the half width of its "
        f"{_CONFIDENCE:.0%} interval (Student's t), and the lowest and the highest. The {FLOOR} is one bit for each "
        "direction that the loss sees, once for every training row and party, each way: a method that sends less has "
        "not told of every row."
    )
