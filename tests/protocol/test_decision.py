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


def cost(p: np.ndarray, threshold: float, fp: float, fn: float) -> float:
    chosen, y = p >= threshold, Y.numpy() > 0
    return float(fp * (chosen & ~y).sum() + fn * (~chosen & y).sum())


@pytest.mark.parametrize("calibration", ["temperature", "isotonic", "none"])
def test_the_threshold_is_the_best_one_for_f1(calibration: str) -> None:
    found = Decision(calibration=calibration).fit(Loss.BINARY, Z, Y)
    p = found.probabilities(Loss.BINARY, Z)
    best = max(f1_score(Y, p >= threshold) for threshold in np.unique(p))
    assert f1_score(Y, p >= found.threshold) == best == evaluate(Loss.BINARY, Z, Y, found)["f1"]
    assert best > evaluate(Loss.BINARY, Z, Y)["f1"]


def test_by_youden_and_by_cost() -> None:
    positives = int(Y.sum())
    youden = Decision(threshold="youden", calibration="none").fit(Loss.BINARY, Z, Y)
    p = youden.probabilities(Loss.BINARY, Z)
    weights = 1 / (500 - positives), 1 / positives  # J is 1 less these two
    every = np.append(np.unique(p), 1.0)
    assert cost(p, youden.threshold, *weights) == pytest.approx(min(cost(p, t, *weights) for t in every))
    rare = Decision(threshold="cost", cost=(1.0, 8.0), calibration="none").fit(Loss.BINARY, Z, Y)
    assert cost(p, rare.threshold, 1, 8) == min(cost(p, t, 1, 8) for t in every)
    assert rare.threshold < youden.threshold
    assert Decision(threshold=0.3).fit(Loss.BINARY, Z, Y).threshold == 0.3


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
