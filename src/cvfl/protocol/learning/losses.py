"""The loss l of the paper's objective: binary and multi-class cross-entropy, squared error."""

from __future__ import annotations

import math
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

    def draw(self, outputs: Tensor, u: Tensor) -> Tensor:
        """Labels that the model itself would draw, by numbers uniform over [0, 1): one a row.

        The gradients for them have the curvature of the loss as their mean outer product (Gauss-Newton).
        """
        u = u.to(outputs)
        match self:
            case Loss.BINARY:
                return (u < outputs.detach().reshape(-1).sigmoid()).to(outputs.dtype)
            case Loss.MULTICLASS:
                beyond = outputs.detach().softmax(1).cumsum(1) < u[:, None]
                return beyond.sum(1).clamp_max(outputs.shape[1] - 1)
            case Loss.SQUARED:
                return outputs.detach().reshape(-1) + math.sqrt(0.5) * torch.where(u < 0.5, -1.0, 1.0).to(outputs)

    def learned(self, outputs: Tensor) -> float:
        """What a model has learned: by how much the loss would rise if all rows had the mean output."""
        with torch.no_grad():
            z = outputs.detach().reshape(len(outputs), -1).double()
            away = z - z.mean(0)
            match self:
                case Loss.BINARY:
                    p = z.sigmoid()
                    learned = (p * (1 - p) * away.square()).sum(1)
                case Loss.MULTICLASS:
                    p = z.softmax(1)
                    learned = (p * away.square()).sum(1) - (p * away).sum(1).square()
                case Loss.SQUARED:
                    learned = 2 * away.square().sum(1)
            return 0.5 * float(learned.mean())
