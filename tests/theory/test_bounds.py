"""Compression error bounds: hand-computed values, and brute-force quantizers that must stay within them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.theory.bounds import (
    EXACT,
    HEXAGON_SECOND_MOMENT,
    ROUNDING,
    ErrorBound,
    lattice_error,
    lattice_spacing,
    lattice_volume,
    scalar_error,
    scalar_step,
    topk_count,
    topk_error,
)
from cvfl.theory.choice import table1_lattice_error

bits = st.integers(1, 16)
sizes = st.integers(0, 10_000)


def test_scalar_by_hand():
    assert scalar_step(2, -1.0, 2.0) == 1.0  # 4 levels over a range of 3
    bound = scalar_error(12, 2, -1.0, 2.0)
    assert bound.expected == pytest.approx(1.0 * (1 + ROUNDING))
    assert bound.worst == pytest.approx(3.0 * (1 + ROUNDING))


def test_lattice_by_hand():
    assert lattice_spacing(1) == pytest.approx(1 / math.sqrt(3))
    assert lattice_volume(1) == pytest.approx(math.sqrt(3) / 6)
    assert lattice_volume(3, -1.0, 1.0) == pytest.approx(4 * lattice_volume(3))
    # b = 4: every row is wider than the range, only the top and bottom rows are left; s^2 = 4/(3 * 256).
    s2 = 4 / (3 * 256) * (1 + ROUNDING)
    assert lattice_error(2, 4, 0.0, 1.0).expected == pytest.approx(s2 / 3)
    assert lattice_error(2, 4, 0.0, 1.0).worst == pytest.approx(s2)
    # b = 1: the shorter end of a row is 3/4 - (1 - sqrt(3)/2) spacings inside the range.
    over = 0.75 - (1 - math.sqrt(3) / 2)
    s2 = (1 / 3) * (1 + ROUNDING)
    assert lattice_error(2, 1, 0.0, 1.0).expected == pytest.approx(s2 * (1 / 3 + over**2))
    assert lattice_error(2, 1, 0.0, 1.0).worst == pytest.approx(s2 * (3 / 4 + (over + 0.5) ** 2))


def test_an_odd_component_costs_a_pair():
    assert lattice_error(3, 2, 0.0, 1.0) == lattice_error(4, 2, 0.0, 1.0)


def test_topk_by_hand():
    assert [topk_count(16, b) for b in (1, 2, 3, 4, 32, 64)] == [1, 1, 1, 2, 16, 16]
    assert topk_count(4096, 3) == 384
    assert topk_count(0, 4) == 0
    assert topk_error(3, 2.0).expected == pytest.approx(12 * (1 + ROUNDING))
    assert topk_error(0, 2.0) == EXACT


def test_bounds_add():
    assert ErrorBound(1.0, 2.0) + ErrorBound(3.0, 5.0) == ErrorBound(4.0, 7.0)
    assert ErrorBound(1.0, 2.0) + EXACT == ErrorBound(1.0, 2.0)


@pytest.mark.parametrize("error", [scalar_error, lattice_error])
@given(n=sizes, b=st.integers(1, 15), low=st.floats(-10, 0), width=st.floats(0.01, 10))
def test_quantizers_order_and_shrink(error, n, b, low, width):
    bound = error(n, b, low, low + width)
    finer = error(n, b + 1, low, low + width)
    assert 0 <= bound.expected <= bound.worst
    assert finer.expected <= bound.expected
    assert finer.worst <= bound.worst


@given(n=sizes, b=bits)
def test_scalar_bound_is_above_table_1(n, b):
    """Table 1 puts the cell at range 2^-b, one level more than the 2^b that b bits can name."""
    assert scalar_error(n, b, 0.0, 1.0).expected >= n / 12 * 4.0**-b


@given(components=st.integers(1, 5000), b=st.floats(0.01, 64))
def test_topk_count_is_a_count(components, b):
    k = topk_count(components, b)
    assert 1 <= k <= components
    assert k == 1 or 32 * k <= components * b


@pytest.mark.parametrize("b", range(1, 7))
def test_scalar_quantizer_stays_within(b):
    """Subtractive dither on 2^b levels, at the borders and between: no overload, a cell of uniform error."""
    rng = np.random.default_rng(b)
    step = scalar_step(b, -1.0, 1.0)
    levels = -1.0 + step * np.arange(2**b)
    for x in (-1.0, 1.0, 0.0, -1.0 + step / 2, 0.37):
        dithered = x + rng.uniform(-step / 2, step / 2, 20_000)
        error2 = np.min(np.abs(dithered[:, None] - levels), axis=1) ** 2
        bound = scalar_error(1, b, -1.0, 1.0)
        assert error2.max() <= bound.worst
        assert error2.mean() <= bound.expected * 1.05  # five deviations of a mean of 20,000
        assert error2.mean() == pytest.approx(step**2 / 12, rel=0.05)


def hexagonal_codebook(b: int) -> tuple[np.ndarray, float]:
    """All 2^(2b) points: staggered rows, centred on the unit square."""
    s = 2 / (math.sqrt(3) * 2**b)
    points = np.array([((i + 0.5 * (j % 2)) * s, j * math.sqrt(3) / 2 * s) for j in range(2**b) for i in range(2**b)])
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    return points - middle + 0.5, s


def lattice_errors(b: int, pair: tuple[float, float], dither: np.ndarray) -> np.ndarray:
    """Squared errors of one pair, dither in units of the brick; the nearest point by looking at each."""
    points, s = hexagonal_codebook(b)
    dithered = np.asarray(pair) + dither * np.array([s, math.sqrt(3) / 2 * s])
    return np.min(((dithered[:, None, :] - points) ** 2).sum(axis=2), axis=1)


def random_dither(draws: int) -> np.ndarray:
    return np.random.default_rng(draws).uniform(-0.5, 0.5, (draws, 2))


def dither_quadrature(cells: int = 16) -> np.ndarray:
    """Equal-weight Gauss nodes over the brick: the mean is exact where the nearest point does not change.

    The bound is reached at the corners of the square, where a sampled mean would pass it by chance.
    """
    middle = (np.arange(cells) + 0.5) / cells - 0.5
    nodes = np.concatenate([middle - 1 / (math.sqrt(12) * cells), middle + 1 / (math.sqrt(12) * cells)])
    return np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)


@pytest.mark.parametrize("b", range(1, 6))
def test_lattice_quantizer_stays_within(b):
    points, _ = hexagonal_codebook(b)
    assert len(points) == 4**b
    bound = lattice_error(2, b, 0.0, 1.0)
    ends_and_middle = [(x, y) for x in (0.0, 0.5, 1.0) for y in (0.0, 0.5, 1.0)]
    means = [lattice_errors(b, pair, dither_quadrature()).mean() for pair in ends_and_middle]
    assert max(means) <= bound.expected
    assert max(means) == pytest.approx(bound.expected, rel=2 * ROUNDING)  # the bound is reached
    worst = max(lattice_errors(b, pair, random_dither(2000)).max() for pair in ends_and_middle)
    assert 0.9 * bound.worst < worst <= bound.worst


@pytest.mark.parametrize("b", range(1, 5))
def test_lattice_bound_holds_all_over_the_square(b):
    bound = lattice_error(2, b, 0.0, 1.0)
    for pair in np.random.default_rng(7).uniform(0.0, 1.0, (40, 2)):
        assert lattice_errors(b, pair, random_dither(500)).max() <= bound.worst
        assert lattice_errors(b, pair, dither_quadrature()).mean() <= bound.expected


def test_inside_the_lattice_the_error_is_the_hexagons_and_twice_table_1():
    mean = lattice_errors(4, (0.5, 0.5), dither_quadrature()).mean()
    V = lattice_volume(4)
    assert mean / 2 == pytest.approx(HEXAGON_SECOND_MOMENT * V, rel=0.01)
    assert mean / table1_lattice_error(1, 2, V) == pytest.approx(1.92, abs=0.02)
