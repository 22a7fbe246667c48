"""Norms beyond which a role takes nothing from others, each for itself; all else that arrives is checked anyway."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from cvfl.errors import DecodeError
from cvfl.types import Section


class Limits(Section):
    """The largest L2 norms that this role takes in training. Not part of the terms.

    None is set if nothing is said: what is usual depends on models and data, and nobody knows it before a run. The
    summary and the report of a run have the largest that were seen.
    """

    embedding: float | None = Field(default=None, gt=0)
    """The largest norm of a row of an embedding, or of a row of a sum of embeddings where that is what arrives."""
    gradient: float | None = Field(default=None, gt=0)
    """The largest norm of a row's gradient, as Algorithm 2 tells parties."""
    model: float | None = Field(default=None, gt=0)
    """The largest norm of a matrix of the server model, as parties are told it."""


@dataclass(frozen=True)
class Limit:
    """One of them, by the key that says it."""

    key: str
    most: float | None = None

    def check_rows(self, rows: Tensor, what: str) -> None:
        """Refuse what has a longer row."""
        if self.most is not None and (found := longest(rows)) > self.most:
            raise DecodeError(f"{what} has a row of norm {found:.4g}, {self._beyond}")

    def check_matrix(self, matrix: Tensor, what: str) -> None:
        """Refuse a larger matrix."""
        if self.most is not None and (found := norm(matrix)) > self.most:
            raise DecodeError(f"{what} has norm {found:.4g}, {self._beyond}")

    @property
    def _beyond(self) -> str:
        return f"more than limits.{self.key} = {self.most:g}; if that is to be expected, raise it"


def limit_of(limits: Limits, key: str) -> Limit:
    """The limit with this key."""
    return Limit(key, getattr(limits, key))


def row_norms(rows: Tensor) -> Tensor:
    """The L2 norm of every row, in double precision."""
    norms: Tensor = torch.linalg.vector_norm(rows.detach().double().reshape(len(rows), -1), dim=1)
    return norms


def longest(rows: Tensor) -> float:
    """The largest norm of a row; 0 if there is none."""
    return float(row_norms(rows).max()) if rows.numel() else 0.0


def norm(matrix: Tensor) -> float:
    """The norm of all numbers of a matrix together."""
    return float(torch.linalg.vector_norm(matrix.detach().double()))
