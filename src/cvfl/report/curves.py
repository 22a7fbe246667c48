"""Draws the figures of an analysis: one function a figure."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cvfl.report.colours import BLUE, GREY, INK, ORANGE
from cvfl.report.figures import STYLE, legend, new_axes, short
from cvfl.report.svg import inline
from cvfl.runs.analysis import Bar, Bucket, Parties, Points, Tenth

_HEIGHT = 250.0
_DASH = (0, (5, 1.6))
_WHOLE = (0.0, 1.0)
_EDGE = 0.015
"""A little room, so that a line along the edge can be seen."""


def curve(points: Points, labels: tuple[str, str], chance: Sequence[float], ident: str) -> str:
    """A curve between 0 and 1 with its interval, and dashed what guessing gives, from left to right."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(_HEIGHT)
        axes.fill_between(points.x, points.low, points.high, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(points.x, points.y, color=BLUE)
        axes.plot(_WHOLE, chance, color=GREY, linestyle=_DASH, linewidth=1.2)
        _unit(axes, labels)
        legend(figure, [(Line2D([], [], color=BLUE), "model, 95% interval"), _guess()])
        return inline(figure, ident, f"{labels[1]} by {labels[0]}")


def calibration(buckets: Sequence[Bucket], ident: str) -> str:
    """The share of positives by the probability that was predicted."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(_HEIGHT)
        axes.plot(_WHOLE, _WHOLE, color=GREY, linestyle=_DASH, linewidth=1.2)
        axes.plot([one.predicted for one in buckets], [one.actual for one in buckets], color=BLUE, marker="o")
        _unit(axes, ("predicted probability", "share of positives"))
        perfect = Line2D([], [], color=GREY, linestyle=_DASH)
        legend(figure, [(Line2D([], [], color=BLUE, marker="o"), "model"), (perfect, "perfect")])
        return inline(figure, ident, "Share of positives by predicted probability")


def gain(tenths: Sequence[Tenth], ident: str) -> str:
    """The share of positives that are found among those with the highest scores."""
    people, total = [0], sum(one.people for one in tenths)
    for one in tenths:
        people.append(people[-1] + one.people)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(_HEIGHT)
        axes.plot(_WHOLE, _WHOLE, color=GREY, linestyle=_DASH, linewidth=1.2)
        axes.plot([n / total for n in people], [0.0, *(one.gain for one in tenths)], color=BLUE, marker="o")
        _unit(axes, ("share of people, highest scores first", "positives found"))
        legend(figure, [(Line2D([], [], color=BLUE, marker="o"), "model"), _guess()])
        return inline(figure, ident, "Share of positives found by share of people")


def residuals(bars: Sequence[Bar], ident: str) -> str:
    """How many people have which residual; a bar that was merged is as high as its people are dense."""
    usual = min(bar.end - bar.start for bar in bars)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(_HEIGHT)
        heights = [bar.people * usual / (bar.end - bar.start) for bar in bars]
        widths = [bar.end - bar.start for bar in bars]
        axes.bar(
            [bar.start for bar in bars], heights, widths, align="edge", color=BLUE, edgecolor="white", linewidth=0.6
        )
        axes.axvline(0, color=INK, linewidth=1)
        axes.set(xlabel="actual less predicted", ylabel="people")
        axes.grid(visible=False, axis="x")
        return inline(figure, ident, "People by residual")


def fit(buckets: Sequence[Bucket], ident: str) -> str:
    """What is true by what was predicted, in groups."""
    values = [value for one in buckets for value in (one.predicted, one.actual)]
    ends = (min(values), max(values))
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(_HEIGHT)
        axes.plot(ends, ends, color=GREY, linestyle=_DASH, linewidth=1.2)
        axes.plot([one.predicted for one in buckets], [one.actual for one in buckets], color=BLUE, marker="o")
        axes.set(xlabel="predicted, mean of a tenth", ylabel="actual, mean")
        perfect = Line2D([], [], color=GREY, linestyle=_DASH)
        legend(figure, [(Line2D([], [], color=BLUE, marker="o"), "model"), (perfect, "perfect")])
        return inline(figure, ident, "Actual by predicted")


def brought(parties: Parties, better_low: bool, label: str, ident: str) -> str:
    """For each party how much worse the metric is without it, with the interval, and its Shapley value."""
    sign = 1 if better_low else -1
    rows = range(len(parties.each))
    losses = [sign * (one.without.value - parties.together) for one in parties.each]
    spans = [
        sorted(sign * (end - parties.together) for end in (one.without.low, one.without.high)) for one in parties.each
    ]
    errors = [
        [max(0.0, loss - low) for loss, (low, _) in zip(losses, spans, strict=True)],
        [max(0.0, high - loss) for loss, (_, high) in zip(losses, spans, strict=True)],
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(64 + 34 * len(rows))
        axes.barh([row - 0.18 for row in rows], losses, 0.34, color=BLUE, linewidth=0, xerr=errors, ecolor=INK)
        entries: list[tuple[Line2D | Patch, str]] = [(Patch(color=BLUE), "lost without it")]
        if all(one.shapley is not None for one in parties.each):
            values = [one.shapley or 0.0 for one in parties.each]
            axes.barh([row + 0.18 for row in rows], values, 0.34, color=ORANGE, linewidth=0)
            entries.append((Patch(color=ORANGE), "Shapley value"))
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(rows, [short(one.party, 18) for one in parties.each])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend(figure, entries)
        return inline(figure, ident, f"What each party brings: {label}")


def _guess() -> tuple[Line2D, str]:
    return Line2D([], [], color=GREY, linestyle=_DASH), "guessing"


def _unit(axes: Axes, labels: tuple[str, str]) -> None:
    """Axes from 0 to 1."""
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(-_EDGE, 1 + _EDGE), ylim=(-_EDGE, 1 + _EDGE))
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
