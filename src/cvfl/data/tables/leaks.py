"""Columns that tell the label: a copy of it, or what is known only when the label is."""

from __future__ import annotations

import torch
from torch import Tensor

from cvfl.protocol import Loss

_ENOUGH = 20  # rows; in fewer a column agrees with the label by chance
_ALIKE = 1 - 1e-6
_VALUES = 1 << 23  # compared at a time


def telling(x: Tensor, labels: Tensor, loss: Loss) -> list[int]:
    """Which columns of numbers go along exactly with the label, or with one of its classes."""
    if len(labels) < _ENOUGH:
        return []
    y = labels.double()[:, None]
    if loss is Loss.MULTICLASS:
        y = torch.hstack([y, torch.nn.functional.one_hot(labels.long()).double()])
    wanted = _normed(y)
    blocks = torch.split(x, max(1, _VALUES // len(x)), dim=1)
    alike = torch.cat([(_normed(block.double()).T @ wanted).abs().amax(1) for block in blocks])
    return [int(at) for at in (alike > _ALIKE).nonzero()]


def _normed(x: Tensor) -> Tensor:
    """Columns of mean 0 and length 1; constant ones are 0."""
    centred = x - x.mean(0)
    length: Tensor = torch.linalg.vector_norm(centred, dim=0)
    return centred / length.clamp(min=1e-12)
