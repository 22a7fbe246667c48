"""A last layer that is fitted to embeddings as they are: outputs = W [h_1, ..., h_M] + b.

    training rows   ──▶ a regression for each strength of its penalty ──▶ the one with the lowest loss on other rows
    validation rows ──▶ choose it, then calibration and the threshold

Where there are no validation rows, every fifth training row takes their place in the choice. Rows are weighed by their
class where training is.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.lazy import lazy
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.objective import ClassWeight, Objective

linear_model = lazy("sklearn.linear_model")

Floats = NDArray[np.float64]
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Of what a penalty leaves of the fit: scikit-learn's C, and one over its alpha. Columns have a deviation of one."""
_STEPS = 200
_FIFTH = 5
_SURE = 20.0
"""The output for a class that all training rows have, and below zero for one that none has."""


@dataclass(frozen=True)
class LastLayer:
    """W, outputs x embeddings, and b."""

    W: Floats
    b: Floats

    def outputs(self, phi: Tensor) -> Tensor:
        """Of rows of embeddings side by side, those of all classes, or one."""
        return torch.from_numpy(phi.double().cpu().numpy() @ self.W.T + self.b)

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """As the parameters of a linear layer."""
        return {"weight": torch.from_numpy(self.W).to(dtype), "bias": torch.from_numpy(self.b).to(dtype)}


def fit_last_layer(
    loss: Loss,
    outputs: int,
    train: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
    weights: ClassWeight | None = None,
) -> LastLayer:
    """The layer for these rows and labels; `other` rows, if there are any, choose how strongly it is held back."""
    phi, y = train[0].double().cpu().numpy(), train[1].cpu().numpy()
    objective = Objective.of(loss, weights, train[1].cpu())
    mean, scale = phi.mean(0), phi.std(0)
    scale[scale == 0] = 1.0  # a number that all rows share tells nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a strength that has not come to rest is not chosen, or good enough
        X = (phi - mean) / scale
        chosen = _chosen(objective, outputs, (X, y), ((other[0].double().cpu().numpy() - mean) / scale, other[1].cpu()))
        found = _fitted(objective, outputs, X, y, chosen)
    W = found.W / scale
    return LastLayer(W, found.b - W @ mean)


def _chosen(objective: Objective, outputs: int, train: tuple[Floats, Any], other: tuple[Floats, Tensor]) -> float:
    """The strength with the lowest loss on rows that were not fitted; the first one if there are none."""
    (X, y), (Z, labels) = train, other
    if len(labels) == 0 and len(y) < 2:
        return STRENGTHS[0]
    if len(labels) == 0:
        held = np.arange(len(y)) % _FIFTH == 0
        (X, y), (Z, labels) = (X[~held], y[~held]), (X[held], torch.from_numpy(y[held]))

    def lost(C: float) -> float:
        layer = _fitted(objective, outputs, X, y, C)
        return float(objective(layer.outputs(torch.from_numpy(Z)), objective.loss.labels(labels, torch.float64)))

    return min(STRENGTHS, key=lost)


def _fitted(objective: Objective, outputs: int, X: Floats, y: Any, C: float) -> LastLayer:
    """The regression of this strength on columns that are scaled."""
    if objective.loss is Loss.SQUARED:
        found = linear_model.Ridge(alpha=1 / C).fit(X, y.reshape(len(y), -1))
        return LastLayer(found.coef_.reshape(outputs, -1), np.atleast_1d(found.intercept_))
    classes = np.unique(y).astype(np.int64)
    W, b = np.zeros((outputs, X.shape[1])), np.full(outputs, -_SURE)
    if len(classes) == 1:  # nothing can be told from nothing else
        b[...] = np.where(np.arange(outputs) == classes[0], _SURE, -_SURE) if outputs > 1 else _SURE * (2 * classes - 1)
        return LastLayer(W, b)
    weights = None if objective.weights is None else {c: float(objective.weights[int(c)]) for c in np.unique(y)}
    found = linear_model.LogisticRegression(C=C, max_iter=_STEPS, class_weight=weights).fit(X, y)
    if outputs == 1:
        return LastLayer(found.coef_, found.intercept_)
    two = len(classes) == 2  # of which scikit-learn gives one row
    W[classes] = np.vstack([np.zeros_like(found.coef_), found.coef_]) if two else found.coef_
    b[classes] = np.append(0.0, found.intercept_) if two else found.intercept_
    return LastLayer(W, b)
