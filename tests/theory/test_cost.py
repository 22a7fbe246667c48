"""Cost formulas: values by hand, and the paper's own tables rebuilt from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.errors import ConfigError
from cvfl.theory.cost import (
    Traffic,
    algorithm1_order,
    algorithm1_traffic,
    algorithm2_order,
    algorithm2_traffic,
    authors_cost,
    authors_imagenet_cost,
    computing,
    latency,
    transfer,
)

counts = st.integers(1, 50)
sizes = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def test_algorithm1_by_hand():
    # Two parties with 3 and 5 components, batch 10: 80 words up; 80 + 7 words to each of two.
    assert algorithm1_order(1, 10, [3, 5], 7) == 2 * 87 * 4
    assert algorithm1_traffic(1, 10, [3, 5], 7) == Traffic(80 * 4, 174 * 4)
    assert algorithm1_traffic(1, 10, [3, 5], 7).total == 254 * 4
    assert algorithm1_order(100, 10, [3, 5], 7, bits=2) == 100 * 174 / 4


def test_algorithm2_by_hand():
    assert algorithm2_order(3, 10, [3, 5]) == 3 * 80 * 4
    assert algorithm2_traffic(1, 10, [3, 5], bits=2) == Traffic(20, 320)
    assert algorithm2_traffic(1, 10, [3, 5], bits=2, gradient_bits=2).total == 40


def test_authors_formulas_by_hand():
    assert authors_cost(1, 4, 1000, 16, 65) == 32 * (2 * 16 * 1000 * 16 + 65 * 4) / 8
    assert authors_imagenet_cost(2, 4, 256, 128, 51_300, bits=4) == 2 * 4 * (128 * 256 * 20 + 51_300 * 4) / 8


@given(R=counts, M=counts, B=counts, P=counts, theta_0=st.integers(0, 100))
def test_the_imagenet_formula_is_algorithm_1(R, M, B, P, theta_0):
    assert authors_imagenet_cost(R, M, B, P, theta_0) == algorithm1_traffic(R, B, [P] * M, theta_0).total


@given(R=counts, M=counts, B=counts, P=counts, theta_0=st.integers(0, 100))
def test_the_other_formula_counts_each_upload_m_times(R, M, B, P, theta_0):
    extra = (M - 1) * algorithm1_traffic(R, B, [P] * M, theta_0).up
    assert authors_cost(R, M, B, P, theta_0) == algorithm1_traffic(R, B, [P] * M, theta_0).total + extra


@given(R=counts, B=counts, P=sizes, theta_0=st.integers(0, 100))
def test_cost_is_linear_in_rounds_and_bits_and_algorithm_2_is_never_dearer(R, B, P, theta_0):
    once = algorithm1_traffic(1, B, P, theta_0, 1).total
    assert algorithm1_traffic(R, B, P, theta_0, 4).total == R * 4 * once
    assert algorithm2_traffic(1, B, P).total <= algorithm1_traffic(1, B, P, theta_0).total


@pytest.mark.parametrize(
    ("bits", "megabytes", "epochs"),
    [
        (32, 9604.80, 87),
        (2, 1932.00, 280),
        (2, 593.40, 86),
        (2, 1317.90, 191),
        (3, 1738.80, 168),
        (3, 900.45, 87),
        (3, 1593.90, 154),
        (4, 2194.20, 159),
        (4, 1200.60, 87),
        (4, 1821.60, 132),
    ],
)
def test_the_papers_modelnet10_table_is_the_authors_formula(bits, megabytes, epochs):
    """Each row is whole epochs over five runs: 16 batches of 64, 16384 x 10 weights, MB = 2^20."""
    assert authors_cost(epochs * 16, 4, 64, 4096, 163_840, bits) / 5 / 2**20 == pytest.approx(megabytes)


@pytest.mark.parametrize(
    ("Q", "seconds"),
    [
        (1, {1: 694.53, 10: 1262.78, 50: 3788.32, 200: 13259.14}),
        (10, {1: 470.86, 10: 512.82, 50: 699.30, 200: 1398.60}),
        (25, {1: 445.21, 10: 461.17, 50: 532.12, 200: 798.19}),
    ],
)
def test_the_papers_latency_table_is_the_model(Q, seconds):
    """The four times of a column are means of five runs of the same rounds, 10 ms an iteration."""
    five_runs = round(5 * seconds[200] / latency(1, Q, 0.010, 0.200))
    for round_trip, time in seconds.items():
        assert latency(five_runs, Q, 0.010, round_trip / 1000) / 5 == pytest.approx(time, rel=2e-4)


def test_nonsense_is_refused():
    for call in (
        lambda: algorithm1_order(0, 1, [1], 0),
        lambda: algorithm1_traffic(1, 0, [1], 0),
        lambda: algorithm1_traffic(1, 1, [], 0),
        lambda: algorithm1_traffic(1, 1, [0], 0),
        lambda: algorithm1_traffic(1, 1, [1], -1),
        lambda: algorithm1_traffic(1, 1, [1], 0, bits=math.nan),
        lambda: algorithm2_order(1, 1, [1], bits=0),
        lambda: algorithm2_traffic(True, 1, [1]),
        lambda: authors_cost(1, 0, 1, 1, 1),
        lambda: authors_imagenet_cost(1, 1, 1, -1, 1),
        lambda: latency(0, 1, 1.0, 1.0),
        lambda: latency(1, 1, -1.0, 1.0),
        lambda: latency(1, 1, 1.0, math.nan),
    ):
        with pytest.raises(ConfigError, match="must"):
            call()


def test_a_round_waits_for_the_slowest_role_and_for_every_byte():
    assert computing(0.5, 2.0, [1.0, 3.0]) == 3.5
    assert computing(0.5, 4.0, [1.0, 3.0]) == 4.5
    assert transfer(Traffic(1000, 3000), 32_000) == 1.0
    with pytest.raises(ConfigError, match="bandwidth must be a finite number above 0"):
        transfer(Traffic(1, 1), 0)
    with pytest.raises(ConfigError, match="parties must be"):
        computing(0, 0, [-1.0])
