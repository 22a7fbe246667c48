"""A run that goes wrong without ending: its loss on held-out rows is far above that of always saying the mean.

A loss, or an embedding, that is no number ends a run with a line of its own; this is for those that stay finite.
"""

from __future__ import annotations

import torch

from cvfl.protocol import Evaluated, Labels, Loss, Plan
from cvfl.protocol.learning.randomised import Randomised

FAR = 2.0
TIMES = 3
"""Evaluations in a row whose loss is so many times that of saying the mean."""


class Divergence:
    """Looks at every evaluation of a run; `line` is what to tell its people once there is something to tell."""

    def __init__(self, plan: Plan, labels: Labels) -> None:
        self._plan, self._mean = plan, loss_of_the_mean(plan.loss, labels.train, plan.randomised)
        self._far, self.line = 0, ""

    def see(self, evaluation: Evaluated | None) -> str:
        """The line, if this evaluation is the one after which it is due; else nothing."""
        if evaluation is None or self.line:
            return ""
        found = (evaluation.validation or evaluation.test).get("loss", 0.0)
        self._far = self._far + 1 if found > FAR * self._mean > 0 else 0
        if self._far < TIMES:
            return ""
        eta, clip = self._plan.eta(evaluation.t0), self._plan.optimizer.clip
        more = "" if clip is not None else ", or set optimizer.clip = 1"
        self.line = (
            f"round {evaluation.t0}: the loss on held-out rows is {found:.3g}, and was at least {FAR:g} times that of "
            f"always saying the mean ({self._mean:.3g}) in {TIMES} evaluations: training diverges, or learns rows by "
            f"heart; lower step_size.eta ({eta:.3g}){more}, or stop at the best round with stopping.patience"
        )
        return self.line


def loss_of_the_mean(loss: Loss, labels: torch.Tensor, noise: Randomised | None = None) -> float:
    """The loss of a model that says the same of every row, the best that it can: the share of each class, the mean.

    Of classes that were randomised by their estimated shares.
    """
    if loss is Loss.SQUARED:
        return float(labels.double().var(correction=0))
    shares = torch.bincount(labels.long().reshape(-1)).double() / len(labels)
    if noise is not None:
        shares = noise.shares(loss, labels.reshape(-1), max(2, len(shares)))
    return float(torch.special.entr(shares).sum())
