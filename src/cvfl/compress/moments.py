"""Running means of outer products: the curvature that the loss has in a tensor, and how the tensor itself varies."""

from __future__ import annotations

import torch
from torch import Tensor

WHOLE = 256
"""Columns up to which the matrix is kept; of more, the leading directions alone."""
LEADING = 128
_MEMORY = 0.8  # of earlier rounds


class Moments:
    """The mean of x x' over the rows of the last few rounds, newer ones counting more.

    Of more than WHOLE columns it is F' F with LEADING rows in F: what is left out is what varies least.
    """

    def __init__(self, kept: Tensor | None = None) -> None:
        self.kept = kept

    @property
    def trace(self) -> float:
        """The mean of |x|^2."""
        if self.kept is None:
            return 0.0
        return float(self.kept.square().sum() if self.factored else self.kept.trace())

    @property
    def factored(self) -> bool:
        """Whether F is kept and not the matrix."""
        return self.kept is not None and self.kept.shape[1] > WHOLE

    def add(self, x: Tensor, weight: float = 1.0) -> None:
        """Take in `weight` times the mean over these rows."""
        share = 1.0 if self.kept is None else 1 - _MEMORY
        scaled = x * (weight * share / max(1, len(x))) ** 0.5
        if x.shape[1] <= WHOLE:
            now = scaled.t() @ scaled
            self.kept = now if self.kept is None else _MEMORY * self.kept + now
            return
        rows = x[:0] if self.kept is None else _MEMORY**0.5 * self.kept
        for more in scaled.split(LEADING):  # a few at a time: what a decomposition costs grows with their cube
            rows = _leading(torch.cat([rows, more]))
        self.kept = rows

    def within(self, space: Tensor | None) -> Tensor:
        """The matrix as seen in these orthonormal directions (P x d); None is all of them."""
        assert self.kept is not None
        if space is None:
            return self.kept
        seen = self.kept @ space
        return seen.t() @ seen


def directions(*moments: Moments) -> Tensor | None:
    """Orthonormal directions in which anything was seen, if that is less than all."""
    if not any(moment.factored for moment in moments):
        return None
    # All in units of their own: a curvature is small beside what is sent, and counts as much.
    rows = torch.cat(
        [moment.kept / moment.trace**0.5 for moment in moments if moment.kept is not None and moment.trace]
    )
    values, vectors = torch.linalg.eigh(rows @ rows.t())
    seen = values > 1e-10 * values[-1]
    space: Tensor = rows.t() @ (vectors[:, seen] / values[seen].sqrt())
    return space


def _leading(rows: Tensor) -> Tensor:
    """At most LEADING rows whose outer products add up to nearly the same."""
    if len(rows) <= LEADING:
        return rows
    _, vectors = torch.linalg.eigh(rows @ rows.t())
    leading: Tensor = vectors[:, -LEADING:].t() @ rows
    return leading
