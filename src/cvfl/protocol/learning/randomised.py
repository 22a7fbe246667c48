"""Labels that their holder randomised before anybody was told: what training makes of them, and what metrics.

    y  ──the holder's draw──▶  y~  ──▶  training: how likely it is that y~ was told, -log(q + (p - q) P(y~))
                                   ──▶  metrics: a target t(y~) whose mean over draws is y

A class is told as it is with probability p and as each other one with q, where p = e^epsilon q. A model of true labels
that says P of a class says q + (p - q) P of its being told, so the likelihood of what was told is highest where that of
true labels is. It is bounded: rows that were told wrong pull no harder the surer the model is of them.

The target of class c is (1[y~ = c] - q) / (p - q); of two classes (y~ - rho) / (1 - 2 rho). It may be negative, or
above one. Metrics are linear in it, so each is what a large number of rows would show by their true labels. A quantity
has noise of mean zero and a known variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cvfl.protocol.learning.losses import Loss

GRID = 1 << 12
"""Steps from the lowest to the highest quantity that is told: noise is a whole number of them."""


@dataclass(frozen=True)
class Randomised:
    """How labels were randomised: with which epsilon, and of a quantity between which limits."""

    epsilon: float
    range: tuple[float, float] | None = None

    def keep(self, classes: int) -> float:
        """p: how likely a class is told as it is."""
        return 1 / (1 + (classes - 1) * math.exp(-self.epsilon))

    def other(self, classes: int) -> float:
        """q: how likely it is told as a certain other one; of two classes this is rho."""
        return (1 - self.keep(classes)) / (classes - 1)

    def tells(self, classes: int) -> float:
        """p - q: what is left of a difference between classes; of two tanh(epsilon / 2)."""
        return self.keep(classes) - self.other(classes)

    def variance(self, scale: float) -> float:
        """That of the noise on a quantity whose unit is `scale` of its table's."""
        assert self.range is not None
        low, high = self.range
        decay = math.exp(-self.epsilon / GRID)
        return 2 * decay / (1 - decay) ** 2 * ((high - low) / GRID / scale) ** 2

    def likelihood(self, loss: Loss, outputs: Tensor, told: Tensor) -> Tensor:
        """-log of how likely it is that these labels were told, a mean over rows; of a quantity the squared error."""
        if loss is Loss.SQUARED:
            return loss(outputs, told)
        z = outputs.reshape(len(outputs), -1)
        if loss is Loss.BINARY:
            z = torch.cat([torch.zeros_like(z), z], 1)
        log_p = F.log_softmax(z, 1).gather(1, told.long()[:, None])
        classes = z.shape[1]
        by_chance = log_p.new_tensor(self.other(classes)).log()
        return -torch.logaddexp(by_chance, log_p + math.log(self.tells(classes))).mean()

    def targets(self, loss: Loss, told: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """Unbiased targets for what was told: a number a row, or one for each of several classes."""
        match loss:
            case Loss.BINARY:
                return (told.to(dtype) - self.other(2)) / self.tells(2)
            case Loss.MULTICLASS:
                return (F.one_hot(told.long(), classes).to(dtype) - self.other(classes)) / self.tells(classes)
            case Loss.SQUARED:
                return told.to(dtype)

    def shares(self, loss: Loss, told: Tensor, classes: int) -> Tensor:
        """The estimated share of each class among the rows, none below zero."""
        t = self.targets(loss, told, classes, torch.float64).mean(0)
        shares = (torch.stack([1 - t, t]) if loss is Loss.BINARY else t).clamp_min(0)
        return shares / shares.sum()

    def effective(self, rows: int) -> float:
        """How many true labels of two classes say as much as so many randomised ones, near an even chance."""
        return rows * math.tanh(self.epsilon / 2) ** 2


def classes_of(loss: Loss, outputs: Tensor) -> int:
    """How many classes outputs are for; a quantity has none."""
    return {Loss.BINARY: 2, Loss.MULTICLASS: outputs.shape[-1], Loss.SQUARED: 0}[loss]
