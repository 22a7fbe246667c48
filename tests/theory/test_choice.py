"""Parameter choice: Table 1 by hand, minimality of every choice, and shrinking that the bounds confirm."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cvfl.theory
from cvfl.errors import ConfigError
from cvfl.theory.bounds import lattice_error, lattice_volume, scalar_error, topk_error
from cvfl.theory.choice import (
    bits_for_error,
    diminished,
    extra_bits,
    k_for_error,
    kept_for_factor,
    rate_target,
    table1_bits,
    table1_k,
    table1_lattice_error,
    table1_scalar_error,
    table1_topk_error,
    table1_volume,
    volume_for_error,
)
from cvfl.theory.convergence import power_law_conditions
from cvfl.theory.overview import Setting, compressor_rows, rate_rows

quantizers = pytest.mark.parametrize("error", [scalar_error, lattice_error])
factors = st.floats(1e-9, 1.0)
MIMIC = Setting(M=4, B=1000, P=16, low=-1.0, high=1.0, R=150, Q=10, theta_0=65)


def test_table1_by_hand():
    assert table1_scalar_error(10, 3, 2, -1.0, 1.0) == pytest.approx(30 * 4 / 12 / 16)
    assert table1_lattice_error(10, 3, 0.8) == pytest.approx(1.0)
    assert table1_topk_error(10, 4, 1, 2.0) == pytest.approx(15.0)
    assert table1_bits(16, 2, 8, 0.0, 0.5) == pytest.approx(4.0)
    assert table1_volume(16, 2, 8) == pytest.approx(1 / 64)
    assert table1_k(16, 2, 8, 1.0) == pytest.approx(7.0)


def test_choices_by_hand():
    # One component in [0, 3]: cells of 3, 1, 3/7; a twelfth of their squares is 0.75, 0.083, 0.015.
    assert [bits_for_error(scalar_error, 1, 0.0, 3.0, e) for e in (1.0, 0.5, 0.1, 0.05)] == [1, 2, 2, 3]
    assert bits_for_error(scalar_error, 1, 0.0, 3.0, 1e-12) is None
    assert bits_for_error(lattice_error, 2, 0.0, 1.0, 1 / 500) == 4  # 4/(3 * 256) / 3 = 1/576
    assert volume_for_error(2, 0.0, 1.0, 1 / 500) == lattice_volume(4)
    assert volume_for_error(2, 0.0, 1.0, 1e-15) is None
    # Each dropped column of 10 samples costs 10; with a little room for rounding.
    assert [k_for_error(10, 8, 1.0, e) for e in (9.0, 10.1, 39.0, 40.1, 1e9)] == [8, 7, 5, 4, 1]
    assert k_for_error(10, 8, 0.0, 1.0) == 1


@quantizers
@given(n=st.integers(1, 10**6), width=st.floats(0.01, 100), target=st.floats(1e-6, 1e6))
def test_bits_are_enough_and_fewest(error, n, width, target):
    b = bits_for_error(error, n, 0.0, width, target)
    if b is None:
        assert error(n, 16, 0.0, width).expected > target
    else:
        assert error(n, b, 0.0, width).expected <= target
        assert b == 1 or error(n, b - 1, 0.0, width).expected > target


@given(B=st.integers(1, 1000), P=st.integers(1, 5000), peak=st.floats(0, 100), target=st.floats(1e-6, 1e6))
def test_k_is_enough_and_fewest(B, P, peak, target):
    k = k_for_error(B, P, peak, target)
    assert 1 <= k <= P
    assert topk_error(B * (P - k), peak).expected <= target
    assert k == 1 or topk_error(B * (P - k + 1), peak).expected > target


@given(T=st.integers(1, 10**6), B=st.integers(1, 1000), P=st.integers(1, 100))
def test_rate_choices_meet_the_rate_and_grow_slowly(T, B, P):
    assert rate_target(T, 3.0) == pytest.approx(3 / math.sqrt(T))
    b = bits_for_error(scalar_error, B * P, -1.0, 1.0, rate_target(T))
    assert b is not None
    assert scalar_error(B * P, b, -1.0, 1.0).expected <= 1 / math.sqrt(T)
    later = bits_for_error(scalar_error, B * P, -1.0, 1.0, rate_target(4 * T))
    assert later in {b, b + 1}  # half the error is half a bit
    lattice_bits = bits_for_error(lattice_error, B * P, -1.0, 1.0, rate_target(T))
    assert volume_for_error(B * P, -1.0, 1.0, rate_target(T)) == lattice_volume(lattice_bits, -1.0, 1.0)
    k = k_for_error(B, P, 1.0, rate_target(T))
    assert topk_error(B * (P - k), 1.0).expected <= 1 / math.sqrt(T)


def test_diminished():
    assert diminished(0) == 1.0
    assert diminished(99) == pytest.approx(0.1)
    assert diminished(9, rate=1.0) == pytest.approx(0.1)
    assert diminished(1000, rate=0.0) == 1.0
    assert power_law_conditions(0.1, 1.0, 1.0, 0.5).hold  # eta = O(1/t0) with this default rate


def test_extra_bits_by_hand():
    assert [extra_bits(f) for f in (1.0, 0.99, 0.25, 0.2499, 1 / 16, 4.0**-10)] == [0, 1, 1, 2, 2, 10]
    assert extra_bits(5e-324) == 537  # the smallest float, 2^-1074


@given(factor=factors)
def test_extra_bits_are_enough_and_fewest(factor):
    e = extra_bits(factor)
    assert 4.0**-e <= factor
    assert e == 0 or 4.0 ** -(e - 1) > factor


@quantizers
@pytest.mark.parametrize("b", range(1, 17))
@pytest.mark.parametrize("extra", range(9))
def test_bounds_shrink_by_at_least_four_a_bit(error, b, extra):
    """What `extra_bits` relies on, with the 2^b - 1 of the scalar grid and the lattice's border included."""
    before, after = error(1001, b, -1.0, 1.0), error(1001, b + extra, -1.0, 1.0)
    assert after.expected <= before.expected * 4.0**-extra * (1 + 1e-12)
    assert after.worst <= before.worst * 4.0**-extra * (1 + 1e-12)


@quantizers
@given(b=st.integers(1, 16), t0=st.integers(0, 10**6))
def test_a_schedule_of_extra_bits_diminishes_the_bound(error, b, t0):
    factor = diminished(t0)
    before, after = error(64, b, -1.0, 1.0), error(64, b + extra_bits(factor), -1.0, 1.0)
    assert after.expected <= factor * before.expected * (1 + 1e-12)


def test_kept_by_hand():
    assert [kept_for_factor(16, 2, f) for f in (1.0, 0.5, 0.1, 0.01)] == [2, 9, 15, 16]


@given(P=st.integers(1, 5000), share=st.floats(0, 1), factor=factors)
def test_kept_shrinks_the_bound(P, share, factor):
    k = max(1, round(share * P))
    kept = kept_for_factor(P, k, factor)
    assert k <= kept <= P
    assert P - kept <= factor * (P - k)
    assert kept == k or P - kept + 1 > factor * (P - k)


def test_overview_rows():
    rows = compressor_rows(MIMIC, [2, 4])
    assert [(r.compressor, r.bits) for r in rows] == [
        ("none", 32),
        *[(name, b) for b in (2, 4) for name in ("scalar", "lattice", "top-k")],
    ]
    none, scalar, _, topk, *_ = rows
    assert none.error.worst == none.table1_error == 0
    assert none.algorithm1_round == 4 * (64_000 + 4 * 64_065)
    assert none.algorithm2_total == 1500 * 2 * 64_000 * 4
    assert none.authors_total == 150 * 4 * (2 * 16 * 1000 * 16 + 65 * 4)
    assert scalar.algorithm1_total == none.algorithm1_total / 16
    assert scalar.algorithm2_round == 64_000 / 4 + 64_000 * 4
    # Top-k of b = 2: one of 16 components and 4 of 65 server parameters, 32 bits each.
    assert (topk.parameter, topk.algorithm1_round) == (1, 4 * (4000 + 4 * 4004))
    assert topk.algorithm2_round == 4 * (4000 + 64_000)


def test_overview_of_the_rate():
    scalar, lattice, topk = rate_rows(MIMIC)
    assert scalar.parameter == scalar.bits == 9
    assert scalar.error.expected <= rate_target(1500)
    assert lattice.parameter == lattice_volume(lattice.bits, -1.0, 1.0)
    assert (topk.parameter, topk.bits) == (16, 32)
    assert [row.parameter for row in rate_rows(MIMIC, c=1e-9)] == [None, None, 16]


def test_exports_are_unique_and_real():
    names = cvfl.theory.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(cvfl.theory, name) for name in names)


def test_nonsense_is_refused():
    for call in (
        lambda: bits_for_error(scalar_error, 0, 0.0, 1.0, 1.0),
        lambda: bits_for_error(scalar_error, 1, 1.0, 1.0, 1.0),
        lambda: bits_for_error(scalar_error, 1, 0.0, math.inf, 1.0),
        lambda: bits_for_error(scalar_error, 1, 0.0, 1.0, math.nan),
        lambda: bits_for_error(scalar_error, 1, 0.0, 1.0, 0.0),
        lambda: volume_for_error(1, 0.0, 1.0, -1.0),
        lambda: k_for_error(1, 0, 1.0, 1.0),
        lambda: k_for_error(1, 1, -1.0, 1.0),
        lambda: rate_target(0),
        lambda: rate_target(1, c=0.0),
        lambda: rate_target(-1),
        lambda: diminished(-1),
        lambda: diminished(1, rate=-0.5),
        lambda: extra_bits(0.0),
        lambda: extra_bits(1.5),
        lambda: extra_bits(math.nan),
        lambda: kept_for_factor(4, 5, 0.5),
        lambda: kept_for_factor(4, 0, 0.5),
        lambda: table1_topk_error(1, 4, 5, 1.0),
        lambda: table1_k(1, 1, 1, 0.0),
        lambda: table1_lattice_error(1, 1, 0.0),
        lambda: Setting(M=0, B=1, P=1, low=0.0, high=1.0, R=1, Q=1, theta_0=0),
        lambda: compressor_rows(MIMIC, [17]),
        lambda: compressor_rows(MIMIC, [0]),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert "\n" not in str(caught.value)
