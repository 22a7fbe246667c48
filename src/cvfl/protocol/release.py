"""What an embedding becomes before others use it: rows of bounded norm, and what of them leaves the party.

    h = clip(model(x)) ──release──▶ h + noise ──C_m──▶ packet
        │
        └──▶ the party's own local steps

Clipping belongs to h itself: the party, the server and the gradients mean the same. A release belongs to sending alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cvfl.compress import Compressor

EMBEDDING, EVALUATION = "embedding", "evaluation"
"""Why something is released: for training, or for an evaluation."""


class Release(Protocol):
    """Makes of an embedding what may leave the party; the same embedding of a round always becomes the same."""

    def __call__(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        """What leaves in place of h, without its graph."""

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs to release the same again."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Release as where `state_dict` was taken."""


@dataclass(frozen=True)
class Secret:
    """What a party's releases are drawn from, and who hears of each: why, of which round, and a digest of it."""

    key: bytes
    note: Callable[[str, int, bytes], None] = lambda purpose, t0, digest: None


MakeRelease = Callable[[nn.Module, Compressor, Secret | None], Release]
"""The release for a party's model and compressor, by the party's secret; without one it draws its own."""


class Clipped(nn.Module):
    """A model whose rows are scaled to an L2 norm of at most C; shorter ones stay as they are."""

    def __init__(self, model: nn.Module, C: float) -> None:
        super().__init__()
        self.model, self.C = model, C

    def forward(self, x: Tensor) -> Tensor:
        """h min(1, C / |h|), row by row."""
        return clipped(self.model(x), self.C)


def clipped(h: Tensor, C: float) -> Tensor:
    """Rows scaled to a norm of at most C; NaN stays NaN, and infinity becomes it, for the compressor to refuse."""
    norm: Tensor = torch.linalg.vector_norm(h.double(), dim=-1, keepdim=True)
    # h / max(1, |h| / C): short rows are divided by exactly 1, and zero has a gradient, which min(1, C / |h|) has not.
    return h / (norm / C).clamp_min(1.0).to(h.dtype)
