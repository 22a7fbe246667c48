from __future__ import annotations

import math

import pytest
import torch

from cvfl.protocol import Loss, Units
from cvfl.protocol.learning.metrics import evaluate


def test_binary_by_hand() -> None:
    logits, y = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    metrics = evaluate(Loss.BINARY, logits, y)
    assert metrics["accuracy"] == 0.5
    assert metrics["f1"] == 0.5
    assert metrics["roc_auc"] == 0.75
    expected = sum(math.log1p(math.exp(-z)) for z in (2, -1, -0.5, 3)) / 4
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)


def test_multiclass_by_hand() -> None:
    outputs = torch.eye(7)[[0, 1, 2, 3, 4, 5, 5]] * 5
    outputs[6] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 0.0])
    metrics = evaluate(Loss.MULTICLASS, outputs, torch.arange(7))
    assert metrics["accuracy"] == pytest.approx(6 / 7)
    assert metrics["top5"] == pytest.approx(6 / 7)  # the last row puts its class last
    assert metrics["f1"] == pytest.approx((5 * 1 + 2 / 3 + 0) / 7)
    assert 0.5 < metrics["roc_auc"] < 1


def test_squared_by_hand() -> None:
    metrics = evaluate(Loss.SQUARED, torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 2.0]))
    assert metrics == {"loss": 2.5, "rmse": pytest.approx(math.sqrt(2.5)), "mae": 1.5, "r2": pytest.approx(-1.5)}
    own = evaluate(Loss.SQUARED, torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 2.0]), units=Units(50.0, 10.0))
    assert own == metrics | {"rmse": pytest.approx(10 * math.sqrt(2.5)), "mae": 15.0}


def test_what_is_not_defined_is_left_out() -> None:
    assert "roc_auc" not in evaluate(Loss.BINARY, torch.tensor([[1.0]]), torch.tensor([1.0]))
    three = evaluate(Loss.MULTICLASS, torch.eye(3), torch.tensor([0, 1, 1]))
    assert "roc_auc" not in three
    assert "top5" not in three
