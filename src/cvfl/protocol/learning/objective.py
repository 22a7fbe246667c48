"""What training minimises: the loss, with rows weighed by their class where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from cvfl.protocol.learning.losses import Loss

ClassWeight = Literal["balanced"] | tuple[Annotated[float, Field(gt=0, lt=1e6)], ...]


@dataclass(frozen=True)
class Objective:
    """The mean over a batch of the weights of classes times the losses of rows; metrics know no weights."""

    loss: Loss
    weights: Tensor | None = None

    @classmethod
    def of(cls, loss: Loss, how: ClassWeight | None, labels: Tensor | None) -> Objective:
        """For a role that has these training labels; with `balanced` a class of n_c rows weighs n / (classes n_c)."""
        if how is None or labels is None:
            return cls(loss)
        if how != "balanced":
            return cls(loss, torch.tensor(how, dtype=torch.float64, device=labels.device))
        counts = labels.long().bincount().double()
        return cls(loss, counts.sum() / (counts.count_nonzero() * counts.clamp_min(1)))

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of outputs against labels."""
        if self.weights is None:
            return self.loss(outputs, labels)
        if self.loss is Loss.BINARY:
            each = F.binary_cross_entropy_with_logits(outputs.reshape(-1), labels, reduction="none")
        else:
            each = F.cross_entropy(outputs, labels, reduction="none")
        return (self._of(outputs)[labels.long()] * each).mean()

    def _of(self, outputs: Tensor) -> Tensor:
        """A weight for every class; one that training has no row of weighs 1."""
        assert self.weights is not None
        classes = max(2, outputs.shape[-1] if outputs.ndim > 1 else 1)
        return F.pad(self.weights, (0, max(0, classes - len(self.weights))), value=1.0).to(outputs.dtype)

    def draw(self, outputs: Tensor, u: Tensor) -> Tensor:
        """Labels that the model itself would draw."""
        return self.loss.draw(outputs, u)

    def learned(self, outputs: Tensor) -> float:
        """What a model has learned, as the loss has it."""
        return self.loss.learned(outputs)
