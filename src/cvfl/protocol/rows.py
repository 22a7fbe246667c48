"""What a party holds: rows in memory or read when asked for, and the labels that Algorithm 1 shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Augment = Callable[[Tensor, int, int], Tensor]
"""(batch, seed, t0) -> the batch as round t0 sees it; all parties draw alike, from the seed they share."""

BATCH = 1 << 14
"""Rows of a message, where all rows go by in their order."""


def batches_of(rows: int) -> int:
    """How many messages so many rows are."""
    return -(-rows // BATCH)


def batch_of(rows: int, k: int) -> slice:
    """The rows of message k."""
    return slice(k * BATCH, min(rows, (k + 1) * BATCH))


class Rows(Protocol):
    """Rows of one party: a tensor is one, and so is anything that reads the rows it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, then the shape of one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Holding:
    """A party's columns, for training rows and for those held out (validation, test), and labels for Algorithm 1."""

    name: str
    train: Rows
    held_out: tuple[Rows, ...] = ()
    labels: Tensor | None = None
    augment: Augment | None = None
    present: Tensor | None = None
    """Which training rows the party holds; all if not given. Others have some numbers in their place."""
    held_out_present: Tensor | None = None
    """Likewise of the rows that are held out."""

    def batch(self, rows: Tensor, seed: int, t0: int) -> Tensor:
        """The training rows of round t0's batch."""
        x = self.train[rows]
        return self.augment(x, seed, t0) if self.augment else x

    def evaluation_batches(self, size: int) -> Iterator[Tensor]:
        """All held-out rows in order, read a batch at a time."""
        yield from _in_batches(self.held_out, size)

    def all_batches(self, size: int) -> Iterator[Tensor]:
        """All rows in order, those for training first and as they are, likewise."""
        yield from _in_batches((self.train, *self.held_out), size)


def _in_batches(parts: Iterable[Rows], size: int) -> Iterator[Tensor]:
    for part in parts:
        for rows in torch.split(torch.arange(len(part)), size):
            yield part[rows]
