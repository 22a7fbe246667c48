"""Numbers as people read them: how many digits, which unit, which sign. No other module decides that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

MB = 1e6
NOTHING = "–"
NOT_RECORDED = "not recorded"
PURPOSES = {"training": "training", "evaluation": "evaluation", "alignment": "alignment", "setup": "set-up"}
"""What bytes are for, as people write it."""
METRICS = {"roc_auc": "ROC AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "top5": "top-5 accuracy"} | {
    "average_precision": "average precision",
    "brier": "Brier score",
}
Form = Callable[[float], str]
"""A way to write the numbers of a column."""


def digits(places: int) -> Form:
    """So many digits after the point."""
    return lambda value: f"{value:.{places}f}"


def fixed(values: Iterable[float], most: int = 4, unit: float = 1.0) -> Form:
    """In units, with as many places as the smallest of the values needs for three digits, up to `most`."""
    count = places((value / unit for value in values), most=most)
    return lambda value: "NaN" if math.isnan(value) else f"{value / unit:,.{count}f}"


def megabytes(values: Iterable[float]) -> Form:
    """Bytes as MB."""
    return fixed(values, unit=MB)


def scores(values: Iterable[float]) -> Form:
    """Metrics and losses: four decimals, or four digits where one of the values is far from 1."""
    usual = all(math.isnan(value) or value == 0 or 1e-3 <= abs(value) < 1e3 for value in values)
    return lambda value: "NaN" if math.isnan(value) else f"{value:.4f}" if usual else f"{value:.4g}"


def score(value: float) -> str:
    """A metric that stands alone."""
    return scores([value])(value)


def metric_label(metric: str | None) -> str:
    """A metric's name as people write it."""
    return "metric" if metric is None else METRICS.get(metric, metric.replace("_", " "))


def change(value: float) -> str:
    """By how much a metric differs from another one."""
    text = f"{abs(value):.4f}"
    return "the same" if text == f"{0:.4f}" else f"{'+' if value > 0 else '−'}{text}"


def amount(value: float) -> str:
    """A quantity of any size to three digits: 0.0123, 4.56, 789, 12,345, 1.2×10⁷."""
    if not math.isfinite(value):
        return "NaN"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{decimals(value)}f}"
    return plain(value)


def brief(value: float) -> str:
    """Three digits, of which two at most come after the point, or all before it: 0.01, 4.56, 78.9, 12,345."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def plain(value: float) -> str:
    """A number without zeros to count: 0.05, 20, 3,000, and 10⁻⁵ or 2×10⁷."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.10g}"
    factor, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    factor = factor.removesuffix(".0")
    return f"10{raised}" if factor == "1" else f"{factor}×10{raised}"


def clock(seconds: float) -> str:
    """A time span: 12 s, 3:05, 2:03:05, 4 d 02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def share(value: float) -> str:
    """A part of a whole."""
    return f"{value:.1%}"


def shares(purposes: Mapping[str, float | None]) -> str:
    """What bytes were for, in percent; what is nothing is left out, and what was not counted is named."""
    total = sum(value or 0 for value in purposes.values())
    known = [f"{_percent(value / total)} {PURPOSES[name]}" for name, value in purposes.items() if value]
    missing = [PURPOSES[name] for name, value in purposes.items() if value is None]
    return ", ".join([*known, *([f"{' and '.join(missing)} {NOT_RECORDED}"] if missing else [])])


def _percent(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 else f"{value:.1%}" if value >= 0.0005 else "under 0.1%"


def times(value: float) -> str:
    """A factor."""
    return f"{value:,.{0 if value >= 100 else 1}f}×"


def places(values: Iterable[float], least: int = 0, most: int = 4) -> int:
    """Places after the point that show three digits of the smallest value above 0, within limits."""
    needed = [decimals(value) for value in values if value > 0] or [1]
    return min(most, max(least, *needed))


def decimals(value: float) -> int:
    """Places after the point that show three digits of a value."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
