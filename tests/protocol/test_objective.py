"""Weights of classes: those of scikit-learn, in the loss that is trained on and in no metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight

from cvfl.config.files import parse_config
from cvfl.errors import ConfigError
from cvfl.federation.train import train
from cvfl.protocol import Loss
from cvfl.protocol.learning.objective import Objective

BINARY = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 2, 2, 2, 0, 2])


@pytest.mark.parametrize(("loss", "labels"), [(Loss.BINARY, BINARY), (Loss.MULTICLASS, CLASSES)])
@pytest.mark.parametrize("how", ["balanced", "given"])
def test_rows_are_weighed_as_scikit_learn_does(loss: Loss, labels: torch.Tensor, how: str) -> None:
    y = labels.long().numpy()
    classes = np.unique(y)
    given = compute_class_weight("balanced", classes=classes, y=y) if how == "balanced" else 2.0 + classes
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 1 if loss is Loss.BINARY else 3)))
    p = torch.sigmoid(z).numpy()[:, 0] if loss is Loss.BINARY else torch.softmax(z, 1).numpy()
    weights = given[y]
    expected = log_loss(y, p, sample_weight=weights) * weights.mean()
    objective = Objective.of(loss, "balanced" if how == "balanced" else tuple(given.tolist()), labels)
    assert float(objective(z, labels)) == pytest.approx(expected, rel=1e-9)


def test_without_weights_it_is_the_loss() -> None:
    z = torch.linspace(-2, 2, 8, dtype=torch.float64)[:, None]
    for objective in (Objective.of(Loss.BINARY, None, BINARY), Objective.of(Loss.BINARY, "balanced", None)):
        assert torch.equal(objective(z, BINARY), Loss.BINARY(z, BINARY))


def test_a_class_that_training_lacks_can_be_drawn() -> None:
    objective = Objective.of(Loss.MULTICLASS, "balanced", torch.tensor([0, 1, 1]))
    assert bool(objective(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([3])).isfinite())


def trained(**changes: Any) -> Any:
    values = {
        "data": {"name": "breast_cancer", "parties": 2},
        "rounds": 12,
        "batch_size": 64,
        "local_iterations": 2,
        "step_size": {"eta": 0.1},
    }
    return train(parse_config(values | changes), workers=1)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_a_class_that_weighs_more_is_found_more_often(algorithm: int) -> None:
    chosen = []
    for weights in ([20.0, 1.0], None, [1.0, 20.0]):
        changes = {} if weights is None else {"class_weight": weights}
        chosen.append(trained(algorithm=algorithm, **changes).models["server"].state_dict())
    bias = [float(next(value for key, value in state.items() if key.endswith(("b", "bias"))).sum()) for state in chosen]
    assert bias[0] < bias[1] < bias[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_weight": [1.0, 2.0, 3.0]}, "class_weight has 3 weights for 2 classes"),
        ({"class_weight": "balanced", "data": {"name": "diabetes", "parties": 2}}, "the label is a quantity"),
    ],
)
def test_weights_that_fit_no_class_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(**changes)
