"""What training makes of randomised labels, and metrics that have those by true ones as their mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cvfl.privacy.label_draw import tell_classes, tell_quantities
from cvfl.protocol import Decision, Loss, Units
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.estimates import estimate
from cvfl.protocol.learning.metrics import evaluate
from cvfl.protocol.learning.objective import Objective
from cvfl.protocol.learning.randomised import Randomised

N = 60_000
KINDS = [(Loss.BINARY, 2), (Loss.MULTICLASS, 3)]


def outputs_for(loss: Loss, classes: int, rows: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(0, 2, (rows, 1 if loss is Loss.BINARY else classes)))


@pytest.mark.parametrize(("loss", "classes"), KINDS)
def test_with_weights_the_mean_gradient_over_draws_is_that_of_the_true_labels(loss: Loss, classes: int) -> None:
    """By enumeration of what may be told of a row: the mean, each with its probability, to rounding."""
    noise, how = Randomised(1.0), (0.5, 3.0, 1.5)[:classes]
    plain = Objective.of(loss, how, torch.tensor([0]))
    unbiased = Objective.of(loss, how, torch.tensor([0]), noise)
    for own in range(classes):
        z = outputs_for(loss, classes, 1).requires_grad_()

        def gradient(objective: Objective, label: int, z: Tensor = z) -> Tensor:
            value = objective(z, loss.labels(torch.tensor([label]), torch.float64))
            return torch.cat([torch.autograd.grad(value, z, retain_graph=True)[0].reshape(-1), value.detach()[None]])

        mean = sum(p * gradient(unbiased, c) for c, p in enumerate(chances(noise, own, classes)))
        assert torch.allclose(torch.as_tensor(mean), gradient(plain, own), atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 20.0])
@pytest.mark.parametrize(("loss", "classes"), KINDS)
def test_what_is_told_is_likeliest_by_a_model_that_knows_how_likely_true_labels_are(
    loss: Loss, classes: int, epsilon: float
) -> None:
    """Where the model's probabilities are the true ones the mean gradient over labels and draws is zero."""
    noise, objective = Randomised(epsilon), Objective.of(loss, None, torch.tensor([0]), Randomised(epsilon))
    z = outputs_for(loss, classes, 1).requires_grad_()
    p = torch.cat([1 - z.sigmoid(), z.sigmoid()], 1) if loss is Loss.BINARY else z.softmax(1)
    told = sum(p[0, own].item() * torch.tensor(chances(noise, own, classes)) for own in range(classes))
    each = [objective(z, loss.labels(torch.tensor([c]), torch.float64)) for c in range(classes)]
    assert [value.item() for value in each] == pytest.approx([-math.log(chance) for chance in told], rel=1e-6)
    mean = torch.stack([chance * value for chance, value in zip(told, each, strict=True)]).sum()
    (gradient,) = torch.autograd.grad(mean, z)
    assert float(gradient.abs().max()) < 1e-6
    sure = Objective.of(loss, None, None, noise)(100 * z.detach(), loss.labels(z.argmin(1), torch.float64))
    assert math.isfinite(sure)  # however sure the model is, and whatever was told


def chances(noise: Randomised, own: int, classes: int) -> list[float]:
    """How likely each class is to be told of a row of class `own`."""
    return [noise.keep(classes) if c == own else noise.other(classes) for c in range(classes)]


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize(("loss", "classes"), KINDS)
def test_metrics_are_estimates_of_those_by_true_labels(loss: Loss, classes: int, epsilon: float) -> None:
    noise, rng = Randomised(epsilon), np.random.default_rng(1)
    z = outputs_for(loss, classes, N)
    p = torch.cat([1 - z.sigmoid(), z.sigmoid()], 1) if loss is Loss.BINARY else (z / 2).softmax(1)
    y = (p.cumsum(1) < torch.from_numpy(rng.random((N, 1)))).sum(1).clamp_max(classes - 1).numpy()
    told = tell_classes(bytes(32), noise, "y", map(str, range(N)), y, [str(c) for c in range(classes)])
    true = evaluate(loss, z, loss.labels(torch.from_numpy(y), torch.float64), Decided(threshold=0.4))
    found = estimate(
        noise, loss, z, loss.labels(torch.from_numpy(told), torch.float64), Decided(threshold=0.4), Units()
    )
    assert found.keys() == true.keys()
    off = 5 / (noise.tells(classes) * N**0.5)
    assert {
        name: value for name, value in found.items() if abs(value - true[name]) > (4 * off if name == "loss" else off)
    } == {}


def test_of_a_quantity_the_noise_is_taken_off() -> None:
    noise, rng = Randomised(4.0, (-3.0, 3.0)), np.random.default_rng(2)
    y = rng.normal(0, 0.7, N)
    z = torch.from_numpy(y + rng.normal(0, 0.4, N))
    told = tell_quantities(bytes(32), noise, "y", map(str, range(N)), y)
    units = Units(10.0, 2.0)
    true = evaluate(Loss.SQUARED, z, torch.from_numpy(y), units=units)
    told_in_units = Randomised(4.0, (-6.0, 6.0))  # of the table, in which a label of the model counts twice
    found = estimate(told_in_units, Loss.SQUARED, z, torch.from_numpy(told), Decided(), units)
    assert "mae" not in found
    assert found["rmse"] == pytest.approx(true["rmse"], rel=0.1)
    assert found["r2"] == pytest.approx(true["r2"], abs=0.05)


def test_balanced_weights_are_those_of_the_estimated_shares() -> None:
    noise, y = Randomised(1.0), np.repeat([0, 1], [N - N // 10, N // 10])
    told = torch.from_numpy(tell_classes(bytes(32), noise, "y", map(str, range(N)), y, ["0", "1"]))
    weights = Objective.of(Loss.BINARY, "balanced", told.double(), noise).weights
    assert weights is not None
    assert weights.numpy() == pytest.approx([1 / 1.8, 5.0], rel=0.15)


@pytest.mark.parametrize("calibration", ["temperature", "isotonic"])
def test_decisions_by_told_labels_are_near_those_by_true_ones(calibration: str) -> None:
    noise, rng = Randomised(2.0), np.random.default_rng(3)
    z = torch.from_numpy(rng.normal(-1, 1.5, N))
    y = (rng.random(N) < (z / 2).sigmoid().numpy()).astype(np.int64)
    told = tell_classes(bytes(32), noise, "y", map(str, range(N)), y, ["0", "1"])
    decision = Decision(calibration=calibration)  # type: ignore[arg-type]
    true, found = (
        decision.fit(Loss.BINARY, z, torch.from_numpy(labels).double(), how)
        for labels, how in ((y, None), (told, noise))
    )
    assert found.fitted
    assert found.threshold == pytest.approx(true.threshold, abs=0.05)
    p, q = (one.probabilities(Loss.BINARY, z) for one in (true, found))
    assert float(np.abs(p - q).mean()) < 0.03
