"""What a server model may offer so that the Q local steps of a round repeat no work.

During a round the others' embeddings are constant, and at a party the server model is constant, too. A model that knows
its own structure can do that part once; any other `nn.Module` is simply called with all embeddings each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Fusion(Protocol):
    """A server model that can prepare constant embeddings."""

    def join(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The embeddings as one input that the model takes in their place."""

    def hold(self, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
        """The model as a function of embedding m (from 0) alone; its parameters must not change meanwhile."""


@runtime_checkable
class Foldable(Fusion, Protocol):
    """A server model that starts with a sum over the parties: W [h_1, ..., h_M] + b, or h_1 + ... + h_M.

    Party m then needs the sum over the others and the pieces of the model that its own embedding meets. `columns` are
    those of h_m among all embeddings side by side.
    """

    @property
    def folds(self) -> bool:
        """Whether the model does start like that."""

    def enter(self, joined: Tensor) -> Tensor:
        """The sum."""

    def leave(self, total: Tensor) -> Tensor:
        """The rest of the model."""

    def fold(self, embeddings: Sequence[Tensor]) -> list[Tensor]:
        """For each party the sum over the others, with what the sum adds of itself."""

    def pieces(self, columns: slice) -> dict[str, Tensor]:
        """Views of the parameters that a party needs."""

    def unfold(self, partial: Tensor, columns: slice) -> Callable[[Tensor], Tensor]:
        """The model as a function of h_m, given the sum over the others."""


@runtime_checkable
class Sloped(Protocol):
    """A server model that may be linear: W_1 h_1 + ... + W_M h_M + b and nothing after it."""

    def slope(self, columns: slice) -> Tensor | None:
        """W_m, outputs x P_m, if the model is linear; `columns` are those of h_m among all side by side."""


@runtime_checkable
class Grows(Protocol):
    """A server model that can go on from one over fewer parties."""

    def grown(self, old: nn.Module, was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, Tensor]:
        """The state of `old`, whose parties had these widths, for the parties that there are now.

        What belongs to a party that was not there stays as it is here. A ValueError says that it cannot be done.
        """


def slope_of(model: nn.Module, columns: slice) -> Tensor | None:
    """W_m of a model that is linear in h_m and says so."""
    return model.slope(columns) if isinstance(model, Sloped) else None


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
