"""Metrics of true labels, estimated from randomised ones: no figure here needs to know whose label was changed.

Counts become sums of unbiased targets. The ROC AUC of told labels is nearer to 1/2 than that of true ones by a factor
that follows from the shares of the classes, since labels are changed alike in all rows; so is that of each of several
classes against the rest. Of a quantity the variance of the noise is taken off the squared error; of absolute errors
nothing can be said.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.lazy import lazy
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.randomised import Randomised, classes_of
from cvfl.protocol.learning.units import Units

known = lazy("sklearn.metrics")
Floats = NDArray[np.float64]
_TOP = 5


def estimate(
    noise: Randomised, loss: Loss, outputs: Tensor, told: Tensor, decided: Decided, units: Units
) -> dict[str, float]:
    """The metrics that `evaluate` finds by true labels, as far as told ones show them."""
    if loss is Loss.SQUARED:
        return _quantity(noise, outputs, told, units)
    classes = classes_of(loss, outputs)
    targets = noise.targets(loss, told, classes, torch.float64)
    value = float(loss(outputs.double(), targets))
    t, y = targets.cpu().numpy(), told.cpu().numpy().astype(np.int64)
    p = decided.probabilities(loss, outputs)
    if loss is Loss.BINARY:
        chosen, t, scores = p >= decided.threshold, np.stack([1 - t, t], 1), outputs.reshape(-1).cpu().numpy()
        figures = {"accuracy": float(np.mean(t[np.arange(len(y)), chosen.astype(int)])), "f1": _f1(t[:, 1], chosen)}
        figures |= _within("roc_auc", _auc(noise, 2, y == 1, scores, t[:, 1].mean()))
    else:
        p, every = torch.softmax(outputs.double(), 1).cpu().numpy(), range(classes)
        best = p.argmax(1)
        figures = {"accuracy": float(np.mean(t[np.arange(len(y)), best]))}
        figures["f1"] = float(np.mean([_f1(t[:, c], best == c) for c in every]))
        if classes > _TOP:
            figures["top5"] = float(np.mean(np.take_along_axis(t, np.argsort(-p, 1)[:, :_TOP], 1).sum(1)))
        found = [_auc(noise, classes, y == c, p[:, c], t[:, c].mean()) for c in every]
        figures |= _within("roc_auc", None if None in found else float(np.mean(found)))  # type: ignore[arg-type]
    return {"loss": value} | {name: min(1.0, max(0.0, figure)) for name, figure in figures.items()}


def _within(name: str, figure: float | None) -> dict[str, float]:
    return {} if figure is None else {name: figure}


def _f1(target: Floats, chosen: NDArray[np.bool_]) -> float:
    """2 TP / (2 TP + FP + FN), by the estimated counts."""
    positives, found = float(target.sum()), float(target[chosen].sum())
    size = positives + int(chosen.sum())
    return 2 * found / size if size > 0 else 0.0


def corrected_auc(noise: Randomised, classes: int, share: float, found: float) -> float | None:
    """The ROC AUC by true labels of which this share is positive, where told ones show `found`.

    Told positives are true ones with probability a, told negatives with b, whatever their scores: so what is found
    above 1/2 is (a - b) of what there is. Without a share that can be there is nothing to correct by.
    """
    if not 0 < share < 1:
        return None
    p, q = noise.keep(classes), noise.other(classes)
    a = share * p / (share * p + (1 - share) * q)
    b = share * (1 - p) / (share * (1 - p) + (1 - share) * (1 - q))
    return 0.5 + (found - 0.5) / (a - b)


def _auc(noise: Randomised, classes: int, told: NDArray[np.bool_], scores: Floats, share: float) -> float | None:
    if told.all() or not told.any():
        return None
    return corrected_auc(noise, classes, float(share), float(known.roc_auc_score(told, scores)))


def _quantity(noise: Randomised, outputs: Tensor, told: Tensor, units: Units) -> dict[str, float]:
    z, y, added = outputs.reshape(-1).double(), told.double(), noise.variance(units.scale)
    error = float((z - y).square().mean()) - added
    spread = float(y.var(correction=0)) - added
    figures = {"loss": error, "rmse": units.scale * math.sqrt(max(0.0, error))}
    return figures | ({"r2": 1 - error / spread} if spread > 0 else {})
