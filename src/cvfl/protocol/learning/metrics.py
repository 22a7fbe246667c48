"""How good the outputs are: loss, accuracy, top-5, F1, ROC AUC for classes; loss, RMSE, MAE and R² for numbers.

The loss is that of training. F1 and accuracy of two classes are those of decisions at a threshold, RMSE and MAE are in
the label's own units.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cvfl.lazy import lazy
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.units import Units

known = lazy("sklearn.metrics")

BETTER_LOW = frozenset({"loss", "rmse", "mae"})
METRICS = {
    Loss.SQUARED: ("loss", "rmse", "mae", "r2"),
    Loss.BINARY: ("loss", "accuracy", "f1", "roc_auc"),
    Loss.MULTICLASS: ("loss", "accuracy", "f1", "top5", "roc_auc"),
}
"""What `evaluate` may find, by loss."""


def evaluate(
    loss: Loss, outputs: Tensor, labels: Tensor, decided: Decided | None = None, units: Units | None = None
) -> dict[str, float]:
    """All metrics that the task has; one that is not defined for these labels is left out."""
    value = float(loss(outputs, labels))
    y, decided = labels.cpu().numpy(), decided or Decided()
    match loss:
        case Loss.SQUARED:
            metrics = _quantity(math.sqrt(value), outputs, labels, units or Units())
        case Loss.BINARY:
            p = decided.probabilities(loss, outputs)
            chosen = p >= decided.threshold
            metrics = {"accuracy": known.accuracy_score(y, chosen), "f1": known.f1_score(y, chosen, zero_division=0.0)}
            if len(np.unique(y)) == 2:
                metrics["roc_auc"] = known.roc_auc_score(y, outputs.reshape(-1).cpu().numpy())
        case Loss.MULTICLASS:
            metrics = _multiclass(torch.softmax(outputs.double(), 1).cpu().numpy(), y)
    return {"loss": value} | {name: float(figure) for name, figure in metrics.items()}


def _quantity(rmse: float, outputs: Tensor, labels: Tensor, units: Units) -> dict[str, float]:
    z, y = (values.detach().cpu().double().reshape(-1) for values in (outputs, labels))
    metrics = {"rmse": units.scale * rmse, "mae": units.scale * float((z - y).abs().mean())}
    if bool((y != y[0]).any()):
        metrics["r2"] = known.r2_score(y.numpy(), z.numpy())
    return metrics


def _multiclass(
    p: np.ndarray[tuple[int, int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> dict[str, float]:
    chosen, classes = p.argmax(1), np.arange(p.shape[1])
    metrics = {
        "accuracy": known.accuracy_score(y, chosen),
        "f1": known.f1_score(y, chosen, average="macro", zero_division=0.0),
    }
    if len(classes) > 5:
        metrics["top5"] = known.top_k_accuracy_score(y, p, k=5, labels=classes)
    if len(np.unique(y)) == len(classes):
        metrics["roc_auc"] = (
            known.roc_auc_score(y, p, multi_class="ovr", labels=classes)
            if len(classes) > 2
            else known.roc_auc_score(y, p[:, 1])
        )
    return metrics


def headline(loss: Loss) -> str:
    """The one metric to show when there is room for one."""
    match loss:
        case Loss.BINARY:
            return "roc_auc"
        case Loss.MULTICLASS:
            return "accuracy"
        case Loss.SQUARED:
            return "rmse"
