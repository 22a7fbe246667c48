"""Compression error: Table 1 of the paper, restated for the quantizers that are implemented here.

Each function gives the squared error of a whole message, ||C(h) - h||^2 summed over its n components,
as two numbers: `expected` bounds the mean over the dither (the paper's E_m for one message) and
`worst` is never exceeded, whatever the dither. All of them are for real arithmetic; `ROUNDING`
is the relative allowance for floating point that `worst` and `expected` include.

Where Table 1 differs, and why:
- Scalar: the paper's cell is range * 2^-b. With subtractive dither 2^b levels without overload need
  range / (2^b - 1), so that an input at the border keeps its dither inside the grid.
- Lattice: the paper states V/24 a component. The hexagonal cell's second moment is 5 V / (36 sqrt(3)),
  about V/12.5, and no two-dimensional cell has less, so V/24 cannot hold; 2^(2b) codewords also overload
  at the border.
- Top-k: (1 - k/P) ||h||^2 holds when the largest components are kept. Ranked by gradients the kept
  ones may be the smallest, so the peak component takes the place of the mean one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUNDING = 2.0**-10
HEXAGON_SECOND_MOMENT = 5 / (36 * math.sqrt(3))
"""Normalised second moment of the hexagonal cell: mean squared error a component over the cell's area."""


@dataclass(frozen=True)
class ErrorBound:
    """Bounds of a message's squared error: of its mean over the dither, and of any single outcome."""

    expected: float
    worst: float

    def __add__(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound(self.expected + other.expected, self.worst + other.worst)


EXACT = ErrorBound(0.0, 0.0)


def scalar_step(bits: int, low: float, high: float) -> float:
    """Width of a quantization cell: 2^b levels that cover the range and half a cell of dither."""
    return (high - low) / (2.0**bits - 1)


def scalar_error(n: int, bits: int, low: float, high: float) -> ErrorBound:
    """n Delta^2/12 expected, n Delta^2/4 at worst: the error is uniform over one cell."""
    step = scalar_step(bits, low, high)
    cell = step * step * (1 + ROUNDING)
    return ErrorBound(n * cell / 12, n * cell / 4)


def lattice_spacing(bits: int) -> float:
    """Distance of neighbours, in units of the range, that lets 2^b rows of cells span it: 2 / (sqrt(3) 2^b)."""
    return 2 / (math.sqrt(3) * 2.0**bits)


def lattice_volume(bits: int, low: float = 0.0, high: float = 1.0) -> float:
    """Area V of a cell of the hexagonal lattice: (sqrt(3)/2) s^2."""
    return math.sqrt(3) / 2 * (lattice_spacing(bits) * (high - low)) ** 2


def lattice_error(n: int, bits: int, low: float, high: float) -> ErrorBound:
    r"""Error of n components in pairs, each pair sent as one of 2^(2b) points in 2^b staggered rows.

    In units of the spacing s, the dithered pair leaves the grid by at most sqrt(3)/2 vertically and by
    `over` + 1/2 horizontally, where `over` is how far the range itself passes the shorter end of a row
    (positive for b <= 3 only). Choosing the nearest row, then its nearest point, bounds the exact search:

        expected <= s^2 (1/4 + 1/12 + max(over, 0)^2)        worst <= s^2 (3/4 + (max(over, 0) + 1/2)^2)

    Away from the border the expected error is that of the hexagon, s^2 5/36 a pair, whatever the pair. At the border
    it is up to the bound, and depends on the pair: dither makes it independent of the input inside only.
    """
    over = max(0.0, 0.75 - (0.5 - math.sqrt(3) / 4) * 2**bits)
    s = lattice_spacing(bits) * (high - low)
    pair = s * s * (1 + ROUNDING)
    pairs = (n + 1) // 2
    return ErrorBound(pairs * pair * (1 / 3 + over**2), pairs * pair * (3 / 4 + (over + 0.5) ** 2))


def topk_count(components: int, bits: float) -> int:
    """k = P b / 32 rounded down, at least one: the components whose 32-bit values fit b bits a component."""
    return min(components, max(1, math.floor(components * bits / 32))) if components else 0


def topk_error(dropped: int, peak: float) -> ErrorBound:
    """Every dropped component costs its square, and none is larger than the peak."""
    error = dropped * (peak * peak) * (1 + ROUNDING)
    return ErrorBound(error, error)


def deadzone_error(n: int, cell: float, dead: float, energy: float) -> ErrorBound:
    """A component moves by at most (1/2 + dead) cells and never past zero, so that energy = ||h||^2 is a bound, too."""
    error = min(energy, n * ((0.5 + dead) * cell) ** 2) * (1 + ROUNDING)
    return ErrorBound(error, error)
