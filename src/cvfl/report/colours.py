"""The colours of figures and tables."""

from __future__ import annotations

INK = "#010203"
"""Drawn as currentColor: a colour that nothing else uses."""
# Okabe and Ito's palette, those with the best contrast to white and to black first; brown and grey for yellow, which
# has none to white. Nine colours and four dashes make 36 lines that differ.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
BROWN, GREY = "#96602c", "#777f8a"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK, BROWN, GREY)
PARTS = {
    "up": (BLUE, 1.0),
    "down": (ORANGE, 1.0),
    "evaluation": (INK, 0.35),
    "alignment": (GREEN, 1.0),
    "setup": (PURPLE, 1.0),
}
"""How bytes by what they were for are drawn: a colour and its opacity."""


def colour(n: int) -> str:
    """The CSS colour of the nth series."""
    return COLOURS[n % len(COLOURS)].replace(INK, "currentColor")
