"""Order and split by a hash of a key and the id: all parties that have the key agree without talking.

    digest(key, id) = 8 bytes that order the rows | 8 bytes, as a fraction, that say training, validation or test

A stratified split has the same shares in every class, a split by time holds out the latest rows, and a split by groups
keeps rows of one group together. Only the label holder can compute these, so it tells the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cvfl.errors import ConfigError, DataError


class Part(IntEnum):
    """What a row is for."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


LARGEST_GROUP = 0.1
"""The largest share of the rows that a group may have: parts keep their sizes up to one group."""
LEFT_OUT = 3
"""In place of a part: of a row that has no label."""


@dataclass(frozen=True)
class Shares:
    """The shares of the rows that are held out."""

    test: float = 0.25
    validation: float = 0.0

    def __post_init__(self) -> None:
        if self.test + self.validation >= 1:
            raise ConfigError(
                f"test_share {self.test} and validation_share {self.validation} leave nothing to train on"
            )

    def of(self, fractions: NDArray[np.float64]) -> NDArray[np.int8]:
        """The part of each row, from numbers in [0, 1)."""
        held_out = self.test + self.validation
        parts = np.where(fractions < self.test, Part.TEST, np.where(fractions < held_out, Part.VALIDATION, Part.TRAIN))
        return parts.astype(np.int8)


def seed_key(seed: int) -> bytes:
    """The key of rows whose order is no secret."""
    return str(seed).encode()


def hashed(ids: Sequence[str], key: bytes) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """For each id a number to order by, and one uniform over [0, 1) to split by."""
    return _numbers(b"".join(hashlib.blake2b(text.encode(), digest_size=16, key=key).digest() for text in ids))


def hashed_rows(rows: int, key: bytes) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """The same for rows that have no ids, by their places."""
    return _numbers(hashlib.shake_256(b"rows" + key).digest(16 * rows))


def _numbers(digests: bytes) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    words = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    return words[:, 0].astype(np.uint64), (words[:, 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def stratified(shares: Shares, fractions: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int8]:
    """The part of each row such that every class is divided by the shares, as exactly as its rows allow."""
    parts = np.empty(len(labels), dtype=np.int8)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rank = np.empty(len(rows))
        rank[np.argsort(fractions[rows], kind="stable")] = np.arange(len(rows))
        parts[rows] = shares.of((rank + 0.5) / len(rows))
    return parts


def latest_first(moments: NDArray[np.float64], fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """In place of fractions: ranks over [0, 1), that of the latest row first; rows of one moment keep their order."""
    order = np.lexsort((fractions, -moments))
    ranks = np.empty(len(moments))
    ranks[order] = (np.arange(len(moments)) + 0.5) / len(moments)
    return ranks


def together(groups: NDArray[np.int64], fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """In place of fractions: places over [0, 1), the same for all rows of a group, at random among the groups.

    A group has the place of the middle of its rows when groups are laid out one after another.
    """
    _, first, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    if sizes.max() > LARGEST_GROUP * len(groups):
        raise DataError(
            f"data.split_groups: a group has {sizes.max():,} of {len(groups):,} rows; parts keep their shares if none "
            f"has more than {LARGEST_GROUP:.0%}"
        )
    order = np.argsort(fractions[first], kind="stable")  # that of its first row, which any row might have been
    middles = np.empty(len(sizes))
    middles[order] = np.cumsum(sizes[order]) - sizes[order] / 2
    return middles[group] / len(groups)
