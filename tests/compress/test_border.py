"""Scalar or lattice: which errs less depends on how near to the ends of the range components lie.

The scalar grid keeps dithered values at the ends within it. The codebook of the lattice does not: there its error is
larger and points inwards, so that it knows the input. docs/theory.md has these figures.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cvfl.compress import Context, build

N = 200_000
NOISE = 5 / N**0.5
"""Of a correlation of independent numbers."""


def random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def normal() -> Tensor:
    return torch.randn(N, generator=random(), dtype=torch.float64)


INPUTS = {
    "uniform": lambda: 2 * torch.rand(N, generator=random(), dtype=torch.float64) - 1,
    "tanh(z)": lambda: torch.tanh(normal()),
    "tanh(2 z)": lambda: torch.tanh(2 * normal()),
    "the ends": lambda: torch.sign(normal()),
}
"""Embeddings in [-1, 1], z normal; of tanh(2 z) half have a magnitude above 0.87."""


def error(spec: str, bits: int, h: Tensor) -> Tensor:
    compressor, context = build(f"{spec}:bits={bits},low=-1,high=1"), Context(seed=3, t0=1, m=1)
    found = compressor.decompress(compressor.compress(h, context), context) - h
    assert float(found.square().sum()) <= compressor.bound(h, context).worst
    return found


def knows(found: Tensor, h: Tensor) -> float:
    """Correlation of the error with the input."""
    return float(torch.corrcoef(torch.stack([found, h]))[0, 1])


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_error_of_the_scalar_is_the_same_everywhere_and_knows_nothing(bits: int, inputs: str) -> None:
    h = INPUTS[inputs]()
    found = error("scalar", bits, h)
    assert float(found.square().mean()) == pytest.approx((2 / (2**bits - 1)) ** 2 / 12, rel=0.01)
    assert abs(knows(found, h)) < NOISE


@pytest.mark.parametrize(
    ("bits", "inputs", "ratio", "correlation"),
    [
        (1, "uniform", 0.42, -0.45),
        (1, "the ends", 1.06, -0.78),
        (2, "uniform", 0.74, -0.22),
        (2, "tanh(z)", 0.78, -0.28),
        (2, "tanh(2 z)", 1.16, -0.51),
        (2, "the ends", 2.03, -0.71),
        (3, "uniform", 0.91, -0.09),
        (3, "tanh(2 z)", 1.25, -0.35),
        (3, "the ends", 2.18, -0.64),
        (4, "uniform", 1.01, -0.04),
        (4, "tanh(2 z)", 1.30, -0.25),
        (4, "the ends", 2.34, -0.53),
    ],
)
def test_the_error_of_the_lattice_grows_at_the_border_and_points_inwards(
    bits: int, inputs: str, ratio: float, correlation: float
) -> None:
    """Beside the scalar's of as many bits: less for components all over the range at up to 3 bits, more at its ends."""
    h = INPUTS[inputs]()
    scalar, lattice = error("scalar", bits, h), error("lattice", bits, h)
    assert float(lattice.square().mean() / scalar.square().mean()) == pytest.approx(ratio, abs=0.02)
    assert knows(lattice, h) == pytest.approx(correlation, abs=0.02)
