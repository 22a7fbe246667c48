"""Draws series as SVG text: one function a figure. `svg.py` says how it fits into a page or a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.report.colours import COLOURS, INK, PARTS
from cvfl.report.format import MB, PURPOSES, plain
from cvfl.report.series import Curve, Series, Spread
from cvfl.report.svg import inline
from cvfl.runs.record import Round

_DASHES = ("-", (0, (5, 1.6)), (0, (7, 1.6, 1.4, 1.6)), (0, (1.6, 1.4)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MARKS = 8
_STEPS = (1, 2, 5, 10)
_DOTS = (0, (1.4, 1.4))
_ERRORS: dict[str, Any] = {"bound": _DOTS, "expected": _DASHES[1], "measured": "-"}

# In points. A phone shows a figure at about this width, where the text is then as large as it says.
_WIDTH, _NARROW = 360.0, 310.0
_FONT = 10.5
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cvfl",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.family": "DejaVu Sans",  # wider than what browsers choose, so what fits here fits there
    "font.size": _FONT,
    "xtick.labelsize": _FONT - 0.5,
    "ytick.labelsize": _FONT - 0.5,
    "legend.fontsize": _FONT,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.alpha": 0.16,
    "grid.linewidth": 0.8,
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color", "hatch.color"), INK
)


def _style(n: int) -> dict[str, Any]:
    """How the nth series is drawn: lines differ in dashes and markers, too, for who does not tell colours apart."""
    parts = {"linestyle": _DASHES, "marker": _MARKERS, "color": COLOURS}
    return {part: choices[n % len(choices)] for part, choices in parts.items()}


def metric_by_epoch(series: Sequence[Series], metric: str, label: str, ident: str, target: float | None = None) -> str:
    """A test metric over epochs, with a line at the target of a study."""
    curves = [one.curve(lambda line: line.epoch, lambda line: line.test.get(metric)) for one in series]
    return _lines(series, curves, ("epoch", label), ident, target=target, limits=_limits(metric))


def metric_by_megabytes(
    series: Sequence[Series],
    metric: str,
    label: str,
    ident: str,
    target: float | None = None,
    log: bool | None = None,
) -> str:
    """A test metric over all bytes so far; the axis is logarithmic if asked, or if the series lie far apart."""
    curves = [one.curve(lambda line: line.sent.total / MB, lambda line: line.test.get(metric)) for one in series]
    ends = [curve.x[-1] for curve in curves if curve.x and curve.x[-1] > 0]
    log = bool(ends) and max(ends) > 5 * min(ends) if log is None else log
    labels = (f"MB sent in all{' (log)' if log else ''}", label)
    return _lines(series, curves, labels, ident, log, target, _limits(metric))


def _limits(metric: str) -> tuple[float, float]:
    """What a metric can be."""
    return (0.0, math.inf) if metric in BETTER_LOW else (-math.inf if metric == "r2" else 0.0, 1.0)


def loss_by_epoch(series: Sequence[Series], ident: str) -> str:
    """The loss on the batches, which every round has."""
    curves = [one.curve(lambda line: line.epoch, lambda line: line.loss) for one in series]
    return _lines(series, curves, ("epoch", "loss on the batch"), ident)


def time_by_round_trip(
    round_trips: Sequence[int],
    computed: Mapping[str, Sequence[Spread]],
    measured: Mapping[str, Sequence[Spread]],
    ident: str,
) -> str:
    """Seconds to the target over milliseconds a round trip: a colour a cell, dashed as computed, full as measured."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(236)
        entries: list[tuple[Line2D | Patch, str]] = []
        for n, name in enumerate(computed):
            for kind, found, dash in (("computed", computed, _DASHES[1]), ("measured", measured, _DASHES[0])):
                if name in found:
                    style = _style(n) | {"linestyle": dash}
                    means = [value.mean for value in found[name]]
                    bars = [value.deviation or 0.0 for value in found[name]]
                    axes.errorbar(round_trips, means, bars, capsize=2, elinewidth=1, **style)
                    entries.append((Line2D([], [], **style), f"{name}, {kind}"))
        axes.set(xlabel="round trip, ms (log)", ylabel="seconds to target (log)", xscale="log", yscale="log")
        axes.set_xticks(round_trips, [str(t) for t in round_trips])
        axes.xaxis.set_minor_locator(NullLocator())
        _log_ticks(axes, "y", [value.mean for found in (computed, measured) for row in found.values() for value in row])
        legend(figure, entries)
        return inline(figure, ident, "seconds to target by round trip")


def bytes_by_party(one: Series, widest: float, ident: str) -> str:
    """Bytes of each party, stacked by what they were for; `widest` is the largest total of the figures to compare."""
    parties = one.by_party()
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(64 + 20 * len(parties))
        start = [0.0] * len(parties)
        counted = [part for part in PARTS if any(getattr(sent, part) for sent in parties.values())]
        parts = [(PURPOSES.get(part, part), *PARTS[part]) for part in counted]
        for part, (_, colour_, alpha) in zip(counted, parts, strict=True):
            widths = [(getattr(sent, part) or 0) / MB for sent in parties.values()]
            axes.barh(range(len(parties)), widths, 0.66, left=start, color=colour_, alpha=alpha, linewidth=0)
            start = [left + width for left, width in zip(start, widths, strict=True)]
        for row, total in enumerate(start):
            axes.annotate(
                f"{total:#.3g}".removesuffix("."), (total, row), (4, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(parties)), [short(name, 18) for name in parties])
        axes.set_ylim(len(parties) - 0.5, -0.5)
        axes.set_xlim(0, max(widest / MB, 1e-9) * 1.16)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
        axes.set_xlabel("MB")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend(figure, [(Patch(color=colour_, alpha=alpha, linewidth=0), name) for name, colour_, alpha in parts])
        return inline(figure, ident, f"Bytes by party and purpose: {one.label}")


def error_by_round(series: Sequence[Series], role: str, ident: str) -> str:
    """Squared compression error of one role's message: measured, expected and bound. See `error_legend`."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(170, _NARROW)
        ends: list[float] = []
        for n, one in enumerate(series):
            for part, dash in _ERRORS.items():
                curve = one.curve(lambda line: line.number + 1, _error_of(role, part))
                points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y > 0]
                if not points:
                    continue  # without compression there is no error, and no place for it on a log axis
                ends += [y for _, y in points]
                xs, ys = zip(*points, strict=True)
                allowed = {"linewidth": 1.4, "marker": ""} if part != "measured" else {}
                axes.plot(xs, ys, markevery=_every(len(xs), n), **_style(n) | {"linestyle": dash} | allowed)
        axes.set(xlabel="round", ylabel="squared error (log)", yscale="log")
        _log_ticks(axes, "y", ends)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=_STEPS))
        return inline(figure, ident, f"Compression error by round: {role}")


def error_legend(series: Sequence[Series], ident: str) -> str:
    """The legend that the figures of `error_by_round` share."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH / 72, 4 / 72), facecolor="none")
        entries: list[tuple[Line2D | Patch, str]] = [
            (Line2D([], [], **_style(n) | {"linestyle": "-"}), one.label) for n, one in enumerate(series) if one.lossy
        ]
        entries += [(Line2D([], [], color=INK, linestyle=_ERRORS[part]), part) for part in ("expected", "bound")]
        legend(figure, entries)
        return inline(figure, ident, "Legend: a colour for each run, a line style for each figure")


def _error_of(role: str, part: str) -> Callable[[Round], float | None]:
    return lambda line: float(getattr(line.errors[role], part)) if role in line.errors else None


def _lines(
    series: Sequence[Series],
    curves: Sequence[Curve],
    labels: tuple[str, str],
    ident: str,
    log: bool = False,
    target: float | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(236)
        entries: list[tuple[Line2D | Patch, str]] = []
        for n, (one, curve) in enumerate(zip(series, curves, strict=True)):
            style, points = _style(n), len(curve.x)
            axes.plot(curve.x, curve.y, markevery=_every(points, n), **style)
            if curve.deviation:
                low, high = zip(*((y - d, y + d) for y, d in zip(curve.y, curve.deviation, strict=True)), strict=True)
                axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.18, linewidth=0)
            if points and len(series) > 1:
                entries.append((Line2D([], [], **style), one.label))
        if target is not None:
            style = {"color": INK, "linestyle": _DOTS, "linewidth": 1.2}
            axes.axhline(target, **style)
            entries.append((Line2D([], [], **style), f"target {target:g}"))
        bottom, top = axes.get_ylim()
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(max(bottom, limits[0]), min(top, limits[1])))
        longest = max((curve.x[-1] for curve in curves if curve.x), default=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=longest >= 5, steps=_STEPS))
        if log:
            axes.set_xscale("log")
            _log_ticks(axes, "x", [x for curve in curves for x in curve.x])
        legend(figure, entries)
        return inline(figure, ident, f"{labels[1]} by {labels[0]}")


def new_axes(height: float, width: float = _WIDTH) -> tuple[Figure, Axes]:
    """A figure of this size in points, and its axes."""
    figure = Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def _every(points: int, n: int) -> tuple[int, int]:
    """Some eight markers a line, shifted from line to line so that they do not cover each other."""
    step = max(1, points // _MARKS)
    return (n * max(1, step // 4)) % step, step


def legend(figure: Figure, entries: Sequence[tuple[Line2D | Patch, str]]) -> None:
    """Put the legend above the axes, in as many columns as fit, and make room for it."""
    if not entries:
        return
    labels = [short(label, 50) for _, label in entries]
    columns = max(1, min(len(labels), int(_WIDTH / (44 + 0.62 * _FONT * max(map(len, labels))))))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)  # four entries are two and two rather than three and one
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + (4 + rows * 1.5 * _FONT) / 72)
    figure.legend(
        [handle for handle, _ in entries],
        labels,
        loc="outside upper left" if figure.axes else "center left",
        ncols=columns,
        handlelength=2.8,
        columnspacing=1.6,
        borderpad=0,
        labelspacing=0.4,
    )


def _log_ticks(axes: Axes, side: str, values: Sequence[float]) -> None:
    """Label powers of ten and, where there is room, their doubles and fives."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    positive = [value for value in values if value > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0
    crowded = decades > (2.6 if side == "x" else 1.6)
    axis.set_major_locator(LogLocator(subs=(1.0,) if crowded else (1.0, 2.0, 5.0), numticks=9 if side == "x" else 6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=60))
    axis.set_minor_formatter(NullFormatter())


def short(text: str, limit: int) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
