"""A small line plot for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_MARKS = "●▲■◆○"
_COLOURS = ("bright_white", "orange3", "deep_sky_blue1", "spring_green3")


@dataclass(frozen=True)
class Line:
    """A named series of points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def plot(lines: Sequence[Line], x_label: str, y_label: str, width: int = 72, height: int = 14) -> Text:
    """Draw the lines over a logarithmic x axis; later lines lie on top."""
    xs = [math.log10(x) for line in lines for x in line.x]
    ys = [y for line in lines for y in line.y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for n, line in enumerate(lines):
        for x, y in zip(line.x, line.y, strict=True):
            column = round((math.log10(x) - left) / ((right - left) or 1) * (width - 1))
            row = round((y - low) / ((high - low) or 1) * (height - 1))
            cells[row, column] = (_MARKS[n % len(_MARKS)], _COLOURS[n % len(_COLOURS)])
    text = Text(f"{y_label}\n")
    for row in reversed(range(height)):
        label = f"{low + (high - low) * row / (height - 1):6.3f}" if row % 4 == (height - 1) % 4 else " " * 6
        text.append(f"{label} │")
        for column in range(width):
            mark, colour = cells.get((row, column), (" ", ""))
            text.append(mark, style=colour)
        text.append("\n")
    text.append(" " * 7 + "└" + "─" * width + "\n")
    ends = f"{10**left:.2g}", f"{10 ** ((left + right) / 2):.2g}", f"{10**right:.2g}"
    text.append(
        " " * 8 + ends[0].ljust(width // 2 - 2) + ends[1].ljust(width - width // 2 - len(ends[2]) + 2) + ends[2]
    )
    text.append(f"\n{x_label:>{width + 8}}\n")
    for n, line in enumerate(lines):
        text.append(f"  {_MARKS[n % len(_MARKS)]} {line.name}", style=_COLOURS[n % len(_COLOURS)])
    return text
