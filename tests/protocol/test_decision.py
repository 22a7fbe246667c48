"""Thresholds and calibration: by hand, against scikit-learn, and without validation rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import f1_score, log_loss

from cvfl.protocol import Decision, Loss
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.metrics import evaluate

DRAW = torch.Generator().manual_seed(0)
Z = torch.round(3 * torch.randn(500, 1, generator=DRAW), decimals=1)
Y = (torch.rand(500, generator=DRAW) < torch.sigmoid(Z[:, 0] / 3 - 1)).float()


def likely(p: np.ndarray, y: torch.Tensor = Y) -> np.ndarray:
    """Labels, and beside them what the probabilities say, as much as thirty rows of the rarer class would."""
    labels = y.double().numpy()
    weight = 30 / min(labels.sum(), (1 - labels).sum())
    return (labels + weight * p) / (1 + weight)


def cost(p: np.ndarray, threshold: float, fp: float, fn: float) -> float:
    chosen, y = p >= threshold, likely(p)
    return float(fp * (chosen * (1 - y)).sum() + fn * (~chosen * y).sum())


def likely_f1(p: np.ndarray, threshold: float) -> float:
    chosen, y = p >= threshold, likely(p)
    return float(2 * (chosen * y).sum() / (chosen.sum() + y.sum()))


@pytest.mark.parametrize("calibration", ["temperature", "isotonic", "none"])
def test_the_threshold_is_the_best_one_for_f1(calibration: str) -> None:
    found = Decision(calibration=calibration).fit(Loss.BINARY, Z, Y)
    p = found.probabilities(Loss.BINARY, Z)
    best = max(likely_f1(p, threshold) for threshold in np.unique(p))
    assert likely_f1(p, found.threshold) == pytest.approx(best, abs=1e-12)
    assert (
        f1_score(Y, p >= found.threshold)
        == evaluate(Loss.BINARY, Z, Y, found)["f1"]
        > evaluate(Loss.BINARY, Z, Y)["f1"]
    )


def test_by_youden_and_by_cost() -> None:
    youden = Decision(threshold="youden", calibration="none").fit(Loss.BINARY, Z, Y)
    p = youden.probabilities(Loss.BINARY, Z)
    positives = likely(p).sum()
    weights = 1 / (500 - positives), 1 / positives  # J is 1 less these two
    every = np.append(np.unique(p), 1.0)
    assert cost(p, youden.threshold, *weights) == pytest.approx(min(cost(p, t, *weights) for t in every))
    rare = Decision(threshold="cost", cost=(1.0, 8.0), calibration="none").fit(Loss.BINARY, Z, Y)
    assert cost(p, rare.threshold, 1, 8) == pytest.approx(min(cost(p, t, 1, 8) for t in every))
    assert rare.threshold < youden.threshold
    assert Decision(threshold=0.3).fit(Loss.BINARY, Z, Y).threshold == 0.3


def test_many_rows_have_their_own_way() -> None:
    """Probabilities that are wrong do not keep the labels of many rows from the threshold that is best for them."""
    z, y = Z.repeat(400, 1), Y.repeat(400)
    found = Decision(calibration="none").fit(Loss.BINARY, z + 2, y)
    p = found.probabilities(Loss.BINARY, Z + 2)
    assert f1_score(Y, p >= found.threshold) > max(f1_score(Y, p >= t) for t in np.unique(p)) - 0.003


def f1(y: np.ndarray, chosen: np.ndarray) -> float:
    """As scikit-learn has it, in a thousandth of the time."""
    return float(2 * (chosen * y).sum() / (chosen.sum() + y.sum()))


def test_of_few_rows_the_threshold_is_nearer_to_the_best_one() -> None:
    """Sixty rows at a time: the threshold that is best for their labels alone is worse for all others."""
    draw = np.random.default_rng(1)
    z = draw.normal(-1, 2, 40_000)
    p, y = 1 / (1 + np.exp(-z)), (draw.random(40_000) < 1 / (1 + np.exp(-z))).astype(float)
    found, alone = [], []
    for some in np.split(np.arange(6000), 100):
        ours = Decision().fit(Loss.BINARY, torch.tensor(z[some, None]), torch.tensor(y[some]))
        theirs = max(p[some], key=lambda t: f1(y[some], p[some] >= t))
        rest = p[6000:], y[6000:]
        found.append(f1(rest[1], ours.probabilities(Loss.BINARY, torch.tensor(z[6000:, None])) >= ours.threshold))
        alone.append(f1(rest[1], rest[0] >= theirs))
    assert np.mean(found) > np.mean(alone) + 0.003


def test_a_temperature_is_found_again() -> None:
    y = (torch.rand(500, generator=DRAW) < torch.sigmoid(Z[:, 0] / 3)).float()
    found = Decision().fit(Loss.BINARY, Z, y)
    assert found.temperature == pytest.approx(3, rel=0.2)
    losses = [log_loss(y, Decided(temperature=T).probabilities(Loss.BINARY, Z)) for T in (found.temperature, 3.0, 1.0)]
    assert losses[0] == min(losses)
    three = torch.cat([Z, -Z, torch.zeros_like(Z)], 1)
    of_three = Decision(calibration="isotonic").fit(Loss.MULTICLASS, three, torch.arange(500) % 3)
    assert of_three.calibration == "temperature"
    assert of_three.probabilities(Loss.MULTICLASS, three).sum(1) == pytest.approx(np.ones(500))


def test_isotonic_calibration_is_that_of_scikit_learn() -> None:
    found = Decision(calibration="isotonic").fit(Loss.BINARY, Z, Y)
    exact = IsotonicRegression(out_of_bounds="clip").fit(Z[:, 0].double(), Y).predict(2 * Z[:, 0].double())
    assert found.probabilities(Loss.BINARY, 2 * Z) == pytest.approx(exact, abs=1e-6)


def test_without_validation_rows_nothing_is_fitted() -> None:
    assert Decision().fit(Loss.BINARY, Z[:0], Y[:0]) == Decided()
    assert Decision().fit(Loss.BINARY, Z, torch.ones(500)) == Decided()
    assert Decision(threshold=0.2).fit(Loss.BINARY, Z[:0], Y[:0]) == Decided(threshold=0.2)
    assert Decision().fit(Loss.SQUARED, Z, Y) == Decided()


@pytest.mark.parametrize("wrong", [{"threshold": "cost"}, {"threshold": 1.5}, {"cost": (0, 0)}, {"calibration": "x"}])
def test_what_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Decision(**wrong)
