"""Theorems 1 and 2: values by hand, the slips of the proof as numbers, a run that stays below the bound."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.errors import ConfigError
from cvfl.theory.convergence import (
    Conditions,
    Constants,
    average_error,
    lemma1,
    max_step_size,
    min_iterations,
    power_law_conditions,
    remark_rate,
    theorem1,
    theorem1_proved,
    theorem2,
)

TWO_PARTIES = Constants(L=1.0, L_m=(0.5, 1.0, 2.0), sigma_m=(1.0, 2.0, 3.0), H_m=(1.0, 2.0, 3.0), G_m=(1.0, 1.0, 2.0))
ERRORS = [[1.0, 2.0, 4.0], [3.0, 0.0, 0.0]]


def test_step_size_by_hand():
    assert max_step_size(10, 0.5, [0.25, 0.125]) == 1 / 80
    assert max_step_size(1, 0.5, [2.0]) == 1 / 32
    assert max_step_size(1, 2.0, []) == 1 / 32


def test_the_remark_needs_enough_iterations():
    assert min_iterations(10, 1.0, [1.0]) == 25_600
    T = min_iterations(3, 1.3, [0.7])
    assert 1 / math.sqrt(T) <= max_step_size(3, 1.3, [0.7]) < 1 / math.sqrt(T - 1)


def test_remark_by_hand():
    assert remark_rate(100, 0.25) == pytest.approx(0.35)
    assert average_error(ERRORS) == 5.0


def test_lemma1_leaves_the_own_message_out():
    # H_m^2 G_m^2 is 1, 4, 36; the others' errors are 6, 5, 3.
    assert [lemma1(TWO_PARTIES, m, ERRORS[0]) for m in range(3)] == [6.0, 20.0, 108.0]


def test_theorem1_by_hand():
    terms = theorem1(TWO_PARTIES, eta=1 / 64, Q=2, B=7, gap=3.0, errors=ERRORS)
    assert terms.gap == pytest.approx(4 * 3 * 64 / 4)
    assert terms.variance == pytest.approx(6 / 64 * 2 * 1.0 * 14 / 7)
    # Lemma 1 summed over m: round 0 gives 134, round 1 gives 0 + 12 + 108; their mean is 127.
    assert terms.compression == pytest.approx(92 * 4 * 127)
    assert terms.total == pytest.approx(terms.gap + terms.variance + terms.compression)


def test_theorem1_proved_by_hand():
    terms = theorem1_proved(TWO_PARTIES, eta=1 / 64, Q=2, B=7, gap=3.0, errors=ERRORS)
    assert terms.gap == pytest.approx(8 / 3 * 3 * 64 / 4)
    # eta Q = 1/32: L + L_m^2/4 + L L_m^2/64 for L_m = 1/2, 1, 2.
    noise = (1 + 17 / 256) * 1 + (1 + 17 / 64) * 4 + (1 + 17 / 16) * 9
    assert terms.variance == pytest.approx(8 / 3 / 32 * noise / 7)
    assert terms.compression == pytest.approx(48 * (1 + 1 / 16) * 4 * 127)


def test_without_compression_or_noise_only_the_gap_is_left():
    quiet = Constants(L=1.0, L_m=(1.0, 1.0), sigma_m=(0.0, 0.0), H_m=(1.0, 1.0), G_m=(1.0, 1.0))
    terms = theorem1(quiet, eta=0.01, Q=1, B=1, gap=1.0, errors=[[0.0, 0.0]] * 10)
    assert (terms.variance, terms.compression) == (0.0, 0.0)
    assert terms.total == pytest.approx(40.0)


@given(
    L=st.floats(0.1, 10),
    ratios=st.lists(st.floats(0.01, 19 / 8), min_size=2, max_size=5),
    Q=st.integers(1, 30),
    share=st.floats(0.01, 1),
    error=st.floats(0, 100),
)
def test_the_printed_theorem_follows_while_l_m_is_at_most_19_eighths_of_l(L, ratios, Q, share, error):
    n = len(ratios)
    constants = Constants(L, tuple(r * L for r in ratios), (1.0,) * n, (1.0,) * n, (1.0,) * n)
    eta = share * max_step_size(Q, L, constants.L_m)
    arguments = {"eta": eta, "Q": Q, "B": 8, "gap": 1.0, "errors": [[error] * n] * 3}
    printed, proved = theorem1(constants, **arguments), theorem1_proved(constants, **arguments)
    assert proved.gap <= printed.gap
    assert proved.variance <= printed.variance * (1 + 1e-12)
    assert proved.compression <= printed.compression


def test_the_printed_variance_is_below_the_proved_one_when_l_m_is_large():
    rough = Constants(L=1.0, L_m=(10.0, 10.0), sigma_m=(1.0, 1.0), H_m=(1.0, 1.0), G_m=(1.0, 1.0))
    arguments = {"eta": 1 / 160, "Q": 1, "B": 1, "gap": 1.0, "errors": [[0.0, 0.0]]}
    ratio = theorem1_proved(rough, **arguments).variance / theorem1(rough, **arguments).variance
    assert ratio == pytest.approx(8 / 3 * (1 + 5 + 1 / 16) / 6)  # 2.69


def test_the_printed_92_is_short_of_what_its_own_line_gives():
    """32 Q^3 over 3/8 Q, times 1 + 2 L Q eta at the largest step."""
    assert 32 / (3 / 8) * (1 + 2 / 16) == 96
    for Q in range(1, 100):  # what saves the theorem: Lemma 2 needs 36 Q^3, not 64 Q^3
        assert 4 * (4 * Q**2 * (1 + Q) + Q) <= 36 * Q**3
    assert 36 / 2 / (3 / 8) * (1 + 2 / 16) == 54


def test_a_run_stays_below_theorem_1():
    """Algorithm 1 on least squares with noisy embeddings: every constant is known exactly."""
    rng = np.random.default_rng(0)
    B, Q, R, M, spread = 6, 3, 40, 2, 0.1
    X = [np.ones((B, 1))] + [rng.normal(size=(B, 2)) for _ in range(M)]  # m = 0: an offset theta_0
    y = rng.normal(size=(B, 1))
    # F = ||sum_m X_m theta_m - y||^2 / (2B). theta_0 is one number, so its error is one number, too.
    joined = np.hstack(X)
    L = float(np.linalg.norm(joined.T @ joined, 2)) / B
    L_m = tuple(float(np.linalg.norm(x.T @ joined, 2)) / B for x in X)
    # Mixed second derivatives by the messages: 1/B times the identity for each party, ones for theta_0.
    H = float(np.sqrt((M + 1) * B)) / B
    G_m = tuple(float(np.linalg.norm(x)) for x in X)
    constants = Constants(L, L_m, (0.0,) * (M + 1), (H,) * (M + 1), G_m)
    eta = max_step_size(Q, L, L_m)
    theta = [rng.normal(size=(x.shape[1], 1)) for x in X]

    def loss() -> float:
        return float(np.sum((sum(x @ t for x, t in zip(X, theta, strict=True)) - y) ** 2)) / (2 * B)

    start, squared, errors = loss(), [], []
    for _ in range(R):
        residual = sum(x @ t for x, t in zip(X, theta, strict=True)) - y
        squared.append(float(np.sum((joined.T @ residual / B) ** 2)))
        noise = [rng.normal(scale=spread, size=1) * np.ones((B, 1))]
        noise += [rng.normal(scale=spread, size=(B, 1)) for _ in range(M)]
        sent = [x @ t + e for x, t, e in zip(X, theta, noise, strict=True)]
        errors.append([float(noise[0][0, 0] ** 2)] + [float(np.sum(e**2)) for e in noise[1:]])
        for _ in range(Q):
            grads = [
                X[m].T @ (X[m] @ theta[m] + sum(s for j, s in enumerate(sent) if j != m) - y) / B for m in range(M + 1)
            ]
            theta = [t - eta * g for t, g in zip(theta, grads, strict=True)]
    gap = max(0.0, start - loss())
    for bound in (theorem1, theorem1_proved):
        assert np.mean(squared) <= bound(constants, eta=eta, Q=Q, B=B, gap=gap, errors=errors).total


def test_theorem2_by_hand():
    terms = theorem2([0.5, 0.25], [2.0, 4.0])
    assert terms.gap == pytest.approx(4 / 3)
    assert terms.variance == pytest.approx((0.25 + 0.0625) / 0.75)
    assert terms.compression == pytest.approx(2 / 0.75)


@pytest.mark.parametrize(
    ("p", "r", "failed"),
    [
        (1.0, 0.5, ()),  # the paper's choice
        (0.75, 0.5, ()),
        (1.0, 1e-300, ()),
        (1.0, 0.0, ("sum of eta * E must converge",)),
        (0.75, 0.25, ("sum of eta * E must converge",)),
        (1.5, 0.5, ("sum of eta must diverge",)),
        (0.5, 2.0, ("sum of eta^2 must converge",)),
        (0.0, 0.0, ("sum of eta^2 must converge", "sum of eta * E must converge")),
    ],
)
def test_power_laws(p, r, failed):
    conditions = power_law_conditions(0.1, p, 1.0, r)
    assert conditions.failed == failed
    assert conditions.hold == (not failed)


def test_no_error_needs_no_diminishing():
    assert power_law_conditions(0.1, 1.0, 0.0, 0.0) == Conditions(True, True, True)


@given(p=st.floats(0.55, 0.95), r=st.floats(0.5, 2))
def test_sequences_that_meet_the_conditions_make_theorem_2_shrink(p, r):
    assert power_law_conditions(0.1, p, 1.0, r).hold

    def total(R: int) -> float:
        return theorem2([0.1 * (t + 1) ** -p for t in range(R)], [(t + 1) ** -r for t in range(R)]).total

    assert total(400) < total(40) < total(4)


@pytest.mark.parametrize(
    "change",
    [
        {"L": 0.0},
        {"L": math.nan},
        {"L_m": (1.0,)},
        {"L_m": (1.0, 0.0)},
        {"sigma_m": (1.0, -1.0)},
        {"H_m": (1.0, math.inf)},
        {"G_m": (1.0, 1.0, 1.0)},
    ],
)
def test_constants_refuse(change):
    good = {"L": 1.0, "L_m": (1.0, 1.0), "sigma_m": (1.0, 1.0), "H_m": (1.0, 1.0), "G_m": (1.0, 1.0)}
    assert Constants(**good).parties == 1
    with pytest.raises(ConfigError, match=next(iter(change))):
        Constants(**(good | change))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"eta": 1 / 32}, "largest allowed"),
        ({"eta": 0.0}, "eta"),
        ({"Q": 0}, "Q must"),
        ({"B": 0}, "B must"),
        ({"gap": -1.0}, "gap"),
        ({"errors": []}, "at least one round"),
        ({"errors": [[1.0, 1.0]]}, "round 0 has 2 errors, not 3"),
        ({"errors": [[1.0, 1.0, math.nan]]}, "E_2 of round 0"),
    ],
)
def test_theorem1_refuses(change, match):
    good = {"eta": 1 / 64, "Q": 2, "B": 7, "gap": 3.0, "errors": ERRORS}
    for bound in (theorem1, theorem1_proved):
        with pytest.raises(ConfigError, match=match):
            bound(TWO_PARTIES, **(good | change))


def test_the_rest_refuses():
    for call in (
        lambda: max_step_size(0, 1.0, [1.0]),
        lambda: max_step_size(1, -1.0, [1.0]),
        lambda: max_step_size(1, 1.0, [math.nan]),
        lambda: lemma1(TWO_PARTIES, 3, ERRORS[0]),
        lambda: lemma1(TWO_PARTIES, -1, ERRORS[0]),
        lambda: remark_rate(0, 1.0),
        lambda: remark_rate(1, -1.0),
        lambda: average_error([]),
        lambda: theorem2([], []),
        lambda: theorem2([0.1], [1.0, 2.0]),
        lambda: theorem2([1.0], [1.0]),
        lambda: theorem2([0.1], [math.nan]),
        lambda: power_law_conditions(0.0, 1.0, 1.0, 1.0),
        lambda: power_law_conditions(1.0, math.nan, 1.0, 1.0),
        lambda: power_law_conditions(1.0, 1.0, -1.0, 1.0),
    ):
        with pytest.raises(ConfigError):
            call()
