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

    def labels(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the type that the loss wants."""
        return values.to(torch.int64) if self is Loss.MULTICLASS else values.to(dtype)
