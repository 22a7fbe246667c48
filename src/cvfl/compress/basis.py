"""Bases of `shaped`: as they travel, and how a sender chooses one by what the loss sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from cvfl.compress.deadzone import cell, cell_code, cell_plane
from cvfl.wire.packet import Plane

MOST = 128
"""Largest number of components that are sent of a row."""
_NOTHING = 1e-9  # of the largest variance: a component with less is none
_LITTLE = 0.1  # all directions together, beside those in which the loss has a gradient
_PARALLEL = 1e-9  # of a unit: directions that differ by less are one


@dataclass(frozen=True)
class Basis:
    """S: K rows of P bytes, each row with the cell that its bytes count."""

    bytes: Tensor
    cells: tuple[int, ...]

    @cached_property
    def rows(self) -> Tensor:
        """S as numbers."""
        return self.bytes.double() * torch.tensor([cell(code) for code in self.cells], dtype=torch.float64)[:, None]

    @cached_property
    def exact(self) -> bool:
        """Whether sums of whole shares of steps are exact in float64, in whatever order they are added up.

        They are multiples of the smallest cell's power of two: below 2^20 shares of up to 128 cells of up to 7 times a
        power of two, at most MOST = 2^7 of them. That leaves 16 bits for powers that differ.
        """
        powers = [code // 4 for code in self.cells]
        return bool(powers) and max(powers) - min(powers) <= 16

    @cached_property
    def span(self) -> Tensor | None:
        """The directions that it can show, orthonormal, P x K; None if these are all, or nothing was sent yet."""
        if not len(self.bytes):
            return None
        U, size, _ = torch.linalg.svd(nn.functional.normalize(self.bytes.double()).t(), full_matrices=False)
        U = U[:, size > _PARALLEL]
        return U if U.shape[1] < len(U) else None

    def scaled(self, factors: Tensor) -> Basis:
        """The same with other steps, one factor a component."""
        sizes = [cell(code) * float(factor) for code, factor in zip(self.cells, factors, strict=True)]
        return Basis(self.bytes, tuple(cell_code(size) for size in sizes))

    def planes(self) -> tuple[Plane, Plane]:
        """As it travels."""
        return cell_plane(list(self.cells)), Plane((self.bytes.reshape(-1).int() + 128).to(torch.uint8), 8)


def within(h: Tensor, span: Tensor) -> Tensor:
    """The part of each row that lies in these directions."""
    part: Tensor = (h.double() @ span @ span.t()).to(h.dtype)
    return part


NOTHING = Basis(torch.zeros(0, 0, dtype=torch.int8), ())


def as_bytes(S: Tensor) -> Basis:
    """Each row in as many cells as a byte can count."""
    cells = tuple(cell_code(float(row.abs().max()) / 127) for row in S)
    sizes = torch.tensor([cell(code) for code in cells], dtype=torch.float64)[:, None]
    return Basis((S / sizes).round().clamp_(-127, 127).to(torch.int8), cells)


def in_turn(q: Tensor, basis: Basis, P: int) -> Tensor:
    """q S added up in one order: the same bits everywhere, exact or not."""
    h = torch.zeros(len(q), P, dtype=torch.float64)
    for column, row in zip(q.t(), basis.rows, strict=True):
        h += column[:, None] * row
    return h


class View:
    """What the sender knows when it chooses: G, the curvature of the loss, and C, how what it sends varies.

    Both as seen in the directions of `space` (P x d), or in all if that is None. Errors are measured in units of the
    trace of G, so that squares stay within what floats can hold, and blind directions count a little. `curiosity` is
    how much they all count when components are chosen, `coarsest` the largest step in root mean squares of a component.
    """

    def __init__(self, G: Tensor, C: Tensor, space: Tensor | None, curiosity: float, coarsest: float) -> None:
        trace = float(G.trace())
        self.unit, self.space, self.C, self.G, self.coarsest = trace, space, C, G / trace, coarsest
        alike = torch.eye(len(G), dtype=torch.float64) / len(G)
        self.metric, self.wanted = self.G + max(curiosity, _LITTLE) * alike, self.G + curiosity * alike
        self._known: tuple[Basis, Tensor] | None = None

    def new(self, aim: float, finest: float) -> Basis | None:
        """A basis of as few components as leave no more to be missed than the aim."""
        values, vectors = torch.linalg.eigh(self.metric)
        L = vectors * values.clamp_min(0).sqrt()
        variance, W = torch.linalg.eigh(L.t() @ self.C @ L)
        variance, Z = variance.flip(0), L @ W.flip(1)
        some = int((variance > _NOTHING * float(variance[0])).sum()) if float(variance[0]) > 0 else 0
        if some == 0:
            return None
        count = min(MOST, some, 1 + int((self._missed(Z[:, :some], variance[:some]) > aim).sum()))
        spread = variance[:count]
        S = (Z[:, :count].t() @ self.C) / spread[:, None]
        S = S * self._steps(torch.ones_like(spread), spread, aim, finest)[:, None]
        return as_bytes(S if self.space is None else S @ self.space.t())

    def _missed(self, Z: Tensor, variance: Tensor) -> Tensor:
        """By how much the loss rises for what the first 1, 2, ... components h Z do not show of h.

        Blind directions may count, too: what no basis ever shows, a server model cannot learn to use.
        """
        guess = self.C @ Z  # what a component says of h is C Z_k / variance_k of it
        shown = (guess * (self.wanted @ guess)).sum(0) / variance
        return (float((self.wanted * self.C).sum()) - shown.cumsum(0)) * (0.5 * self.unit)

    def analysis(self, basis: Basis) -> Tensor:
        """The P x K matrix that gives the whole steps nearest to rows, as the loss measures distance."""
        if self._known is None or self._known[0] is not basis:
            rows = self._within(basis)
            towards = rows @ self.metric
            found = towards.t() @ torch.linalg.pinv(towards @ rows.t(), hermitian=True)
            self._known = basis, found
        found = self._known[1]
        return found if self.space is None else self.space @ found

    def missed(self, basis: Basis) -> float:
        """By how much the loss rises for what the basis cannot show, however fine its steps."""
        if not basis.cells:
            return 0.5 * float((self.G * self.C).sum()) * self.unit
        self.analysis(basis)
        assert self._known is not None
        left = torch.eye(len(self.G), dtype=torch.float64) - self._known[1] @ self._within(basis)
        return 0.5 * float((self.G * (left.t() @ self.C @ left)).sum()) * self.unit

    def factors(self, basis: Basis, aim: float, finest: float) -> Tensor:
        """What each step of a basis would have to be multiplied by to be as it should be now."""
        rows = self._within(basis)
        self.analysis(basis)
        assert self._known is not None
        found = self._known[1]
        cost, spread = (rows @ self.metric * rows).sum(1), (self.C @ found * found).sum(0)
        return self._steps(cost.clamp_min(1e-300), spread, aim, finest)

    def _within(self, basis: Basis) -> Tensor:
        return basis.rows if self.space is None else basis.rows @ self.space

    def _steps(self, cost: Tensor, spread: Tensor, aim: float, finest: float) -> Tensor:
        """Steps that together raise the loss by the aim, none of them much finer or coarser than its component."""
        step = (24 * aim / self.unit / len(cost) / cost).sqrt()
        rms = spread.clamp_min(1e-300).sqrt()
        return torch.minimum(torch.maximum(step, finest * rms), self.coarsest * rms)
