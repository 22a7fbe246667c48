"""What a server model may offer so that the Q local steps of a round repeat no work.

During a round the others' embeddings are constant, and at a party the server model is constant, too. A model that knows
its own structure can do that part once; any other `nn.Module` is simply called with all embeddings each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Fusion(Protocol):
    """A server model that can prepare constant embeddings."""

    def join(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The embeddings as one input that the model takes in their place."""

    def hold(self, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
        """The model as a function of embedding m (from 0) alone; its parameters must not change meanwhile."""


def joined(model: nn.Module, embeddings: Sequence[Tensor]) -> Sequence[Tensor] | Tensor:
    """Constant embeddings in the form that the model takes fastest."""
    return model.join(embeddings) if isinstance(model, Fusion) else embeddings


def held(model: nn.Module, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
    """The model as a function of embedding m alone, everything else constant."""
    if isinstance(model, Fusion):
        return model.hold(embeddings, m)
    phi = list(embeddings)

    def fuse(h: Tensor) -> Tensor:
        phi[m] = h
        output: Tensor = model(phi)
        return output

    return fuse
