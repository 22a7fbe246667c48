"""How far the noise of a party's layers, such as dropout, moves its embeddings: where messages leave it out.

    party    h without noise  ──message──▶  server          n = h with noise - h without
             root of the mean of n n', some rows a round ──▶  u root, u drawn anew at every step, is noise like it

What a party sends is then the same at every visit but for what was learned, which feedback makes small; and the server
model, which would learn rows by heart that never change, still sees them change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cvfl.rng import Stream

_MEMORY = 0.9  # of earlier rounds
_UNIT = 12**0.5 / 2**16  # of whole numbers of 16 bits, so that their variance is one


class Spread:
    """The mean outer product of a party's noise over the last rounds, and its root."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._mean = torch.zeros(width, width, dtype=torch.float64)

    def see(self, noise: Tensor) -> None:
        """Take in the noise of a batch."""
        n = noise.detach().double().cpu()
        self._mean = _MEMORY * self._mean + (1 - _MEMORY) * (n.t() @ n) / max(1, len(n))

    def root(self, at: Tensor) -> Tensor:
        """These rows of the symmetric root, which changes as slowly as the mean does; other roots may turn at once."""
        if not self._mean.any():  # a model without dropout
            return torch.zeros(len(at), len(self._mean), dtype=self._dtype)
        values, vectors = torch.linalg.eigh(self._mean)
        rows: Tensor = vectors[at] * values.clamp_min(0).sqrt() @ vectors.t()
        return rows.to(self._dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """What a restart needs."""
        return {"mean": self._mean}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        self._mean = state["mean"]


def noise_like(roots: Sequence[Tensor], rows: int, draws: Stream) -> list[Tensor]:
    """For each root so many rows of noise, independent of each other."""
    return [_drawn(draws, rows, root) @ root for root in roots]


def _drawn(draws: Stream, rows: int, root: Tensor) -> Tensor:
    """Numbers of mean zero and variance one."""
    whole = draws.int16(rows * len(root)).astype(np.float32).reshape(rows, len(root))
    return torch.from_numpy((whole + 0.5) * _UNIT).to(root)
