"""What training minimises: the loss, with rows weighed by their class where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.randomised import Randomised, classes_of

ClassWeight = Literal["balanced"] | tuple[Annotated[float, Field(gt=0, lt=1e6)], ...]


@dataclass(frozen=True)
class Objective:
    """The mean over a batch of the weights of classes times the losses of rows; metrics know no weights.

    Of labels that were randomised it is how likely it is that they were told; that has no place for weights, with which
    it is an unbiased estimate of the weighed loss by true labels.
    """

    loss: Loss
    weights: Tensor | None = None
    noise: Randomised | None = None
    """How the labels were randomised, if they were."""

    @classmethod
    def of(
        cls, loss: Loss, how: ClassWeight | None, labels: Tensor | None, noise: Randomised | None = None
    ) -> Objective:
        """For a role that has these training labels; with `balanced` a class of n_c rows weighs n / (classes n_c)."""
        if how is None or labels is None:
            return cls(loss, noise=noise)
        if how != "balanced":
            return cls(loss, torch.tensor(how, dtype=torch.float64, device=labels.device), noise)
        counts = labels.long().bincount().double()
        if noise is not None:
            counts = len(labels) * noise.shares(loss, labels, max(2, len(counts)))
        return cls(loss, counts.sum() / (counts.count_nonzero() * counts.clamp_min(1)), noise)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of outputs against labels as they were told."""
        if self.noise is None:
            return self.by_class(outputs, labels)
        if self.weights is None:
            return self.noise.likelihood(self.loss, outputs, labels)
        targets = self.noise.targets(self.loss, labels, classes_of(self.loss, outputs), outputs.dtype)
        return self._weighed(outputs, targets)

    def _weighed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss against targets, each of which counts as its class does."""
        weights, z = self._of(outputs), outputs.reshape(len(outputs), -1)
        if self.loss is Loss.BINARY:
            z, targets = torch.cat([torch.zeros_like(z), z], 1), torch.stack([1 - targets, targets], 1)
        return -(weights * targets * F.log_softmax(z, 1)).sum(1).mean()

    def by_class(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss against labels that nobody randomised, such as those that a model drew itself."""
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
