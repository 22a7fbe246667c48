"""From outputs to probabilities and decisions: both are fitted on validation rows, which no step has seen.

outputs z ──calibration──▶ probability p ──threshold──▶ p >= threshold: the positive class

Without validation rows probabilities are those of the model as it is, and the threshold is 0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from cvfl.lazy import lazy
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.randomised import Randomised, classes_of
from cvfl.types import Section

optimize, special = lazy("scipy.optimize"), lazy("scipy.special")
isotonic = lazy("sklearn.isotonic")

Floats = NDArray[np.float64]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
HALF = 0.5
_FEW = 30
"""Rows of the rarer class whose labels count as much as probabilities do when a threshold is chosen."""
_TEMPERATURES = (math.log(0.05), math.log(20.0))
"""Between what a temperature is looked for."""


class Decision(Section):
    """When a row counts as positive, and how outputs become probabilities. Both follow from validation rows."""

    threshold: Literal["f1", "youden", "cost"] | Annotated[float, Field(gt=0, lt=1)] = "f1"
    """The probability from which on a row is positive: best for F1, for Youden's J, for `cost`, or a number."""
    cost: tuple[Cost, Cost] | None = None
    """What a false positive costs, and what a false negative; for `threshold = "cost"`."""
    calibration: Literal["temperature", "isotonic", "none"] = "temperature"
    """How outputs are corrected to probabilities; of several classes by a temperature, or not at all."""

    @model_validator(mode="after")
    def _has_cost(self) -> Self:
        if self.threshold == "cost" and self.cost is None:
            raise ValueError("decision.threshold = 'cost' needs decision.cost = [false positive, false negative]")
        if self.cost is not None and not sum(self.cost) > 0:
            raise ValueError("decision.cost: one of the two must cost something")
        return self

    def fit(self, loss: Loss, outputs: Tensor, labels: Tensor, noise: Randomised | None = None) -> Decided:
        """What these validation rows say; without rows, or with those of one class, nothing is fitted.

        Labels that were randomised with `noise` count by their unbiased targets.
        """
        start = Decided(threshold=self.threshold if isinstance(self.threshold, float) else HALF)
        y = labels.cpu().numpy()
        if loss is Loss.SQUARED or len(np.unique(y)) < 2:
            return start
        targets, telling = loss.labels(labels, torch.float64), 1.0
        if noise is not None:
            classes = classes_of(loss, outputs)
            targets, telling = noise.targets(loss, labels, classes, torch.float64), noise.tells(classes) ** 2
        calibrated = replace(self._calibrated(loss, outputs, targets), threshold=start.threshold, fitted=True)
        if loss is Loss.MULTICLASS or isinstance(self.threshold, float):
            return calibrated
        return replace(
            calibrated, threshold=self._best(calibrated.probabilities(loss, outputs), targets.cpu().numpy(), telling)
        )

    def _calibrated(self, loss: Loss, outputs: Tensor, targets: Tensor) -> Decided:
        if self.calibration == "none":
            return Decided()
        if self.calibration == "isotonic" and loss is Loss.BINARY:
            curve = isotonic.IsotonicRegression(y_min=0.0, y_max=1.0).fit(_rows(outputs)[:, 0], targets.cpu().numpy())
            return Decided("isotonic", steps=(tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())))
        return Decided("temperature", temperature=_temperature(loss, outputs, targets))

    def _best(self, p: Floats, y: Floats, telling: float) -> float:
        """The threshold halfway between the last row that is to be positive and the next one.

        Labels of few rows are noise to a choice as fine as that: what the probabilities say counts beside them, as much
        as `_FEW` rows of the rarer class would.
        """
        order = np.argsort(-p, kind="stable")
        scores, labels = np.append(1.0, p[order]), y[order]
        weight = _FEW / max(1.0, telling * min(labels.sum(), (1 - labels).sum()))
        likely = (labels + weight * scores[1:]) / (1 + weight)
        tp, fp = np.append(0.0, likely.cumsum()), np.append(0.0, (1 - likely).cumsum())
        positives, negatives = tp[-1], fp[-1]
        match self.threshold:
            case "youden":
                gain = tp / positives - fp / negatives
            case "cost":
                assert self.cost is not None
                gain = -self.cost[0] * fp - self.cost[1] * (positives - tp)
            case _:
                gain = 2 * tp / (tp + fp + positives)
        following = np.append(scores[1:], 0.0)
        best = int(np.argmax(np.where(scores > following, gain, -np.inf)))  # rows that are alike are decided alike
        return float(scores[best] + following[best]) / 2


@dataclass(frozen=True)
class Decided:
    """A fitted decision; as it starts it is that of the model itself."""

    calibration: str = "none"
    threshold: float = HALF
    temperature: float = 1.0
    steps: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Outputs and their probabilities, between which isotonic calibration goes straight."""
    fitted: bool = False
    """Whether there were validation rows to fit it on."""

    def probabilities(self, loss: Loss, outputs: Tensor) -> Floats:
        """Those of the positive class, or of every class."""
        z = _rows(outputs)
        if loss is Loss.MULTICLASS:
            every: Floats = special.softmax(z / self.temperature, axis=1)
            return every
        if self.calibration == "isotonic":
            return np.interp(z[:, 0], *self.steps)
        positive: Floats = special.expit(z[:, 0] / self.temperature)
        return positive


def _rows(outputs: Tensor) -> Floats:
    """Outputs as rows of 64-bit numbers."""
    return outputs.detach().cpu().numpy().astype(np.float64).reshape(len(outputs), -1)


def _temperature(loss: Loss, outputs: Tensor, y: Tensor) -> float:
    """The T for which outputs / T have the smallest loss on these rows."""
    z = outputs.detach().double()
    found = optimize.minimize_scalar(
        lambda logarithm: float(loss(z / math.exp(logarithm), y)),
        bounds=_TEMPERATURES,
        method="bounded",
        options={"xatol": 1e-4},
    )
    return math.exp(float(found.x))
