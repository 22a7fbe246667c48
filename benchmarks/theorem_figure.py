"""The figure and the table of theorem.py, from its lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cvfl.report.colours import BLUE, GREEN, GREY, VERMILLION
from cvfl.report.figures import STYLE, legend, new_axes
from cvfl.report.svg import inline, standalone

Line = Mapping[str, Any]
_COLOURS = {"none": BLUE, "b = 2": VERMILLION, "falling": GREEN}
_DASHED, _DOTTED = (0, (5, 1.6)), (0, (1.4, 1.4))


def drawn(lines: Sequence[Line]) -> str:
    """Mean squared gradients by rounds, and the theorem's terms, of the first seed at the step size that it allows."""
    eta = min(line["eta"] for line in lines)
    some = {line["cell"]: line["shown"] for line in lines if (line["eta"], line["seed"]) == (eta, 0)}
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(300)
        entries: list[tuple[Line2D | Patch, str]] = []

        def draw(shown: Sequence[Line], key: str, label: str, **style: Any) -> None:
            points = [(one["round"], one[key]) for one in shown if one[key] > 0]
            axes.plot([x for x, _ in points], [y for _, y in points], **style)
            entries.append((Line2D([], [], **style), label))

        for cell, shown in some.items():
            draw(shown, "mean", f"measured, {cell}", color=_COLOURS[cell])
        draw(some["none"], "gap", "first term, none", color=GREY, linestyle=_DASHED)
        for cell in ("b = 2", "falling"):
            draw(some[cell], "compression", f"third term, {cell}", color=_COLOURS[cell], linestyle=_DOTTED)
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="mean square of the gradient")
        legend(figure, entries)
        return standalone(inline(figure, "figure-theorem", "Theorem 1 beside a run"))


def table(lines: Sequence[Line]) -> Iterator[str]:
    """A row a run."""
    yield (
        "| step size | messages | seed | rounds | loss, end | mean square of the gradient | of the last tenth | "
        "first term | third term, printed | as proved | largest step size allowed |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for line in sorted(lines, key=lambda one: (-one["eta"], one["seed"])):
        end, known = line["shown"][-1], line["constants"]
        allowed = 1 / (16 * line["Q"] * max(known["L"], *known["L_m"]))
        found = (end["mean"], line["last"], *(end.get(key) for key in ("gap", "compression", "proved")), allowed)
        cells = " | ".join("" if one is None else f"{one:.2g}" for one in found)
        yield (
            f"| {line['eta']:g} | {line['cell']} | {line['seed']} | {line['rounds']:,} | {line['loss'][1]:.4f} | "
            f"{cells} |"
        )
