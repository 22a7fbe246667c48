"""Parties that are away: who holds which rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Presence:
    """Which rows each party holds: a tensor of bools a party, of training rows, and of validation, then test rows."""

    train: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]

    def to(self, device: torch.device) -> Presence:
        """The same on this device."""
        return Presence(*(tuple(one.to(device) for one in part) for part in (self.train, self.held_out)))
