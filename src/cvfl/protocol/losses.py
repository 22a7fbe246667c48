"""The loss l of the paper's objective: binary and multi-class cross-entropy, squared error."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F


class Loss(StrEnum):
    """Mean loss over a batch; models give logits, not probabilities."""

    BINARY = "binary"
    MULTICLASS = "multiclass"
    SQUARED = "squared"

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of outputs (B x classes, or B x 1) against labels (B)."""
        match self:
            case Loss.BINARY:
                return F.binary_cross_entropy_with_logits(outputs.reshape(-1), labels)
            case Loss.MULTICLASS:
                return F.cross_entropy(outputs, labels)
            case Loss.SQUARED:
                return F.mse_loss(outputs.reshape(-1), labels)

    @property
    def curvature(self) -> float:
        """Largest second derivative of a row's loss in its outputs, whatever the label: exact for the squared error.

        1/4 is the maximum of p (1 - p); 1/2 bounds the eigenvalues of diag(p) - p p^T.
        """
        return {Loss.BINARY: 0.25, Loss.MULTICLASS: 0.5, Loss.SQUARED: 2.0}[self]

    def labels(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the type that the loss wants."""
        return values.to(torch.int64) if self is Loss.MULTICLASS else values.to(dtype)
