"""What figures draw of a run: columns brought down to as many points as a screen shows, of all rounds or of a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from cvfl.report.format import MB
from cvfl.report.series import windows
from cvfl.runs.columns import Column, Columns
from cvfl.runs.record import Round

POINTS = 500
"""Most points of a line; more rounds are averaged in windows of equal length, as in reports."""
Axis = Literal["epoch", "bytes", "round", "seconds"]
AXES: tuple[Axis, ...] = get_args(Axis)
Numbers = list[float | None]
Line = dict[str, Numbers]
"""x and y; of averages also the least and the largest value of each window, low and high."""
Span = tuple[float, float]


def curves(columns: Columns, axis: Axis, span: Span = (-math.inf, math.inf)) -> dict[str, Any]:
    """The lines of a run over an axis: loss, metrics by kind of rows, errors by role."""
    x = _axis(columns, axis)
    inside = _inside(x, span)
    rounds = [line for line in columns.evaluated if not line.aside]
    xs = x[np.searchsorted(columns["round"], [line.number for line in rounds])]
    kept = _inside(xs, span)
    rounds, xs = rounds[kept], xs[kept]
    roles = dict.fromkeys(role for line in rounds for role in line.errors)
    return {
        "sent": _averaged(x[inside], columns["bytes"][inside] / MB, False),
        "loss": _averaged(x[inside], columns["loss"][inside]),
        "metrics": {part: _metrics(rounds, xs, part) for part in ("test", "validation", "train")},
        "errors": {
            role: {part: _line(rounds, xs, _error(role, part)) for part in ("measured", "expected", "bound")}
            for role in roles
        },
        "rounds": len(columns),
        "damaged": len(columns.damaged),
    }


def _axis(columns: Columns, axis: Axis) -> Column:
    match axis:
        case "bytes":
            return columns["bytes"] / MB
        case "round":
            return columns["round"] + 1
        case "seconds":
            seconds: Column = np.nancumsum(columns["seconds"])
            return seconds
    return columns["epoch"]


def _inside(x: Column, span: Span) -> slice:
    """The points within a span, and one on each side, so that lines go on to the edges."""
    low, high = np.searchsorted(x, span[0], "left"), np.searchsorted(x, span[1], "right")
    return slice(max(0, int(low) - 1), int(high) + 1)


def _averaged(x: Column, y: Column, band: bool = True) -> Line:
    parts = list(windows(len(x), POINTS))
    line = {"x": numbers(x[part].mean() for part in parts), "y": numbers(y[part].mean() for part in parts)}
    if len(parts) == len(x) or not band:
        return line
    return line | {"low": numbers(y[part].min() for part in parts), "high": numbers(y[part].max() for part in parts)}


def _metrics(rounds: Sequence[Round], xs: Column, part: str) -> Mapping[str, Line]:
    names = dict.fromkeys(name for line in rounds for name in getattr(line, part))
    return {name: _line(rounds, xs, _metric(part, name)) for name in names}


def _metric(part: str, name: str) -> Callable[[Round], float | None]:
    return lambda line: getattr(line, part).get(name)


def _error(role: str, part: str) -> Callable[[Round], float | None]:
    return lambda line: getattr(line.errors[role], part) if role in line.errors else None


def _line(rounds: Sequence[Round], xs: Column, value: Callable[[Round], float | None]) -> Line:
    points = [(float(x), y) for x, line in zip(xs, rounds, strict=True) if (y := value(line)) is not None]
    return _averaged(np.array([x for x, _ in points]), np.array([y for _, y in points]), False)


def numbers(values: Iterable[float]) -> Numbers:
    """Values for JSON, to six digits: what is no number there is left out."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
