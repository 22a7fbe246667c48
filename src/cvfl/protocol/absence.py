"""Parties that are away: who holds which rows, and what stands for an embedding that is not there.

    h_1   h_2   h_3              every party is there
    h_1   v_2   h_3              party 2 does not hold the row, or it was dropped at random to prepare for that

v_m is one learned vector a party, a parameter of the server model: no party has to send anything for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from cvfl.protocol.fusion import Foldable, Grows, held, joined


@dataclass(frozen=True)
class Presence:
    """Which rows each party holds: a tensor of bools a party, of training rows, and of validation, then test rows."""

    train: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]

    def to(self, device: torch.device) -> Presence:
        """The same on this device."""
        return Presence(*(tuple(one.to(device) for one in part) for part in (self.train, self.held_out)))


class StandIns(nn.Module):
    """A server model, and for every party the vector that stands for its embedding where that is not there."""

    def __init__(self, inner: nn.Module, widths: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = inner
        self.v = nn.ParameterList(nn.Parameter(torch.zeros(width, dtype=dtype)) for width in widths)

    def forward(self, embeddings: Sequence[Tensor] | Tensor) -> Tensor:
        """Of embeddings that are all there, or stood in for."""
        outputs: Tensor = self.inner(embeddings)
        return outputs

    def substituted(self, phi: Sequence[Tensor], absent: Sequence[Tensor]) -> list[Tensor]:
        """The embeddings, with v_m in the rows of party m that `absent` says of it."""
        return [torch.where(away[:, None], v, h) for h, v, away in zip(phi, self.v, absent, strict=True)]

    def grown(self, old: nn.Module, was: Mapping[str, int], now: Mapping[str, int]) -> dict[str, Tensor]:
        """The state of `old` with its vectors where their parties are now; the model within grows as it can."""
        if not isinstance(old, StandIns) or not isinstance(self.inner, Grows):
            raise ValueError(type(self.inner).__name__)
        inner = self.inner.grown(old.inner, was, now)
        kept = dict(zip(was, old.v, strict=True))
        vectors = nn.ParameterList(kept.get(name, own) for name, own in zip(now, self.v, strict=True))
        return {f"inner.{key}": value for key, value in inner.items()} | vectors.state_dict(prefix="v.")

    @property
    def learned(self) -> tuple[bool, ...]:
        """For every party whether its vector was trained: it stays exactly zero if no row of training lacked it."""
        return tuple(bool(v.detach().any()) for v in self.v)

    # What `fusion` asks for, by the model within

    def join(self, embeddings: Sequence[Tensor]) -> Sequence[Tensor] | Tensor:
        """The embeddings in the form that the model takes fastest."""
        return joined(self.inner, embeddings)

    def hold(self, embeddings: Sequence[Tensor], m: int) -> Callable[[Tensor], Tensor]:
        """The model as a function of embedding m alone."""
        return held(self.inner, embeddings, m)

    @property
    def folds(self) -> bool:
        """Whether it starts with a sum over the parties."""
        return isinstance(self.inner, Foldable) and self.inner.folds

    @property
    def _foldable(self) -> Foldable:
        assert isinstance(self.inner, Foldable)  # or nothing would be folded
        return self.inner

    def enter(self, joined: Tensor) -> Tensor:
        """The sum."""
        return self._foldable.enter(joined)

    def leave(self, total: Tensor) -> Tensor:
        """The rest of the model."""
        return self._foldable.leave(total)

    def fold(self, embeddings: Sequence[Tensor]) -> list[Tensor]:
        """For each party the sum over the others."""
        return self._foldable.fold(embeddings)

    def pieces(self, columns: slice) -> dict[str, Tensor]:
        """What a party needs of the model: nothing of what stands for others."""
        return self._foldable.pieces(columns)

    def unfold(self, partial: Tensor, columns: slice) -> Callable[[Tensor], Tensor]:
        """The model as a function of h_m, given the sum over the others."""
        return self._foldable.unfold(partial, columns)


def standing_in(make: Callable[[], nn.Module], widths: Sequence[int], dtype: torch.dtype) -> Callable[[], StandIns]:
    """How to make the same server model with something that stands for embeddings."""
    return partial(_made, make, tuple(widths), dtype)


def _made(make: Callable[[], nn.Module], widths: tuple[int, ...], dtype: torch.dtype) -> StandIns:
    return StandIns(make(), widths, dtype)


def stood_in(model: nn.Module, phi: list[Tensor], absent: Sequence[Tensor] | None) -> list[Tensor]:
    """The embeddings as this server model takes them, where some are absent."""
    if absent is None:
        return phi
    assert isinstance(model, StandIns)  # or nobody could be absent
    return model.substituted(phi, absent)
