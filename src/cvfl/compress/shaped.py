"""A basis and steps that follow the loss: what an embedding says beside the point costs nothing.

An error e in h raises the loss by about e G e / 2, where G = E[g g'] is the mean outer product of gradients, the
Fisher information. So the sender, who sees gradients, chooses

    z = h L W              G = L L', and W decorrelates h L: the loss sees unit steps of all z alike
    q = z / s, rounded     s^2 = 24 tolerance loss / K: K components with an error of s^2/12 raise the loss by that much
    ĥ = q S                S = s / E[z z] W' L' E[h h']: the best guess of h from z

Receivers need S alone. It is sent as bytes when it is new, and its scale when that has to change; before there is a
gradient nothing is worth sending. As the loss falls, so do the steps. Parties to whom the loss is sensitive have
small steps, and with them most of the bits.

Two things keep a model from standing still because nothing is sent because nothing is learned: directions to which
the loss is blind count a little, and no step is much coarser than its component.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cvfl.compress.base import LARGEST, Compressor, Context, extremes, flat, no_scalars, rows_of, width_of
from cvfl.compress.deadzone import (
    CELL_WIDTH,
    DEAD,
    PEAK,
    WIDTH,
    cell,
    cell_code,
    cell_plane,
    finite,
    quantized,
    unzigzag,
    zigzag,
)
from cvfl.errors import ConfigError, DecodeError
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet, Plane

MOST = 64
"""Largest number of components that are sent of a row."""
_MEMORY = 0.8  # of the gradients of earlier rounds in G
_CURIOSITY = 1.0  # how much all directions together count beside those in which the loss has a gradient
_SMALL = 0.01  # of the largest variance: a component with less is left out, after _WHILE epochs one with half of that
_WHILE = 4
_LEAST = 1e-60  # trace of G that says anything: with one below, or as far above one, floats cannot compute
_COARSEST = 2.0  # times the root mean square of a component: no step is larger


@dataclass(frozen=True)
class Basis:
    """S: K rows of P bytes, each row with the cell that its bytes count."""

    bytes: Tensor
    cells: tuple[int, ...]

    @cached_property
    def rows(self) -> Tensor:
        """S as numbers."""
        return self.bytes.double() * torch.tensor([cell(code) for code in self.cells], dtype=torch.float64)[:, None]

    @property
    def exact(self) -> bool:
        """Whether sums of whole steps are exact in float64, in whatever order they are added up.

        They are multiples of the smallest cell's power of two: below 2^15 steps of up to 127 cells of up to 7 times a
        power of two, at most MOST = 2^6 of them. That leaves 20 bits for powers that differ.
        """
        powers = [code // 4 for code in self.cells]
        return bool(powers) and max(powers) - min(powers) <= 20

    def scaled(self, factor: float) -> Basis:
        """The same with other steps."""
        return Basis(self.bytes, tuple(cell_code(cell(code) * factor) for code in self.cells))

    def planes(self) -> tuple[Plane, Plane]:
        """As it travels."""
        return cell_plane(list(self.cells)), Plane((self.bytes.reshape(-1).int() + 128).to(torch.uint8), 8)


_NOTHING = Basis(torch.zeros(0, 0, dtype=torch.int8), ())


class Shaped(Compressor):
    """Send few components of each row, at steps that raise the loss by about `tolerance` of itself.

    A `budget` is the most bits that a row may take, by the entropy of its components; steps are doubled until it holds.
    """

    learns = True

    def __init__(self, tolerance: float = 0.01, budget: float = math.inf) -> None:
        if not 1e-6 <= tolerance <= 1:
            raise ConfigError(f"tolerance is a share of the loss from 1e-6 to 1, not {tolerance}")
        if not budget > 0:
            raise ConfigError(f"budget is a number of bits above 0, not {budget}")
        self.tolerance, self.budget = float(tolerance), float(budget)
        self.basis = _NOTHING
        self.fisher: Tensor | None = None
        self._unit: tuple[Tensor, float] | None = None
        self.loss = 1.0
        self.age = 0
        self.next = 0

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Whole steps of each component; and the basis if it is new."""
        x = _rows(h)
        basis, z = self._chosen(x, context)
        q = quantized(z.clamp(-PEAK, PEAK), 1.0)
        planes: tuple[Plane, ...] = (Plane(zigzag(q).reshape(-1), WIDTH, max(1, len(basis.cells))),)
        if basis is not self.basis:
            cells, rows = basis.planes()
            planes += (cells,) if basis.bytes is self.basis.bytes else (cells, rows)
        return Packet(tuple(h.shape), planes, dtype=flat(h).dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """q S, the same bits at every receiver."""
        basis, q = self._read(packet)
        h = q.double() @ basis.rows if basis.exact else in_turn(q, basis, width_of(packet.shape))
        return finite(h.to(packet.dtype)).reshape(packet.shape)

    def settle(self, packet: Packet, decoded: Tensor, context: Context) -> None:
        """Keep the basis that came with the packet."""
        basis, _ = self._read(packet)
        self.age += 1
        if basis.bytes is not self.basis.bytes:
            self.next = 2 * self.age
        self.basis = basis

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """What the basis cannot show of this tensor, and (1/2 + DEAD) steps of each component."""
        x = _rows(h)
        basis, z = self._chosen(x, context)
        rows = basis.rows
        over = (z.abs() - PEAK).clamp_(0.5 + DEAD)
        left = float((x - (z @ rows if len(rows) else 0)).norm()) + float(rows.norm()) * float(over.norm())
        error = (left + 1e-6 * float(x.norm())) ** 2
        return ErrorBound(error, error)

    def nominal_bits(self, t0: int) -> float:
        """Of a plain packing; an entropy coder is what this is for."""
        return WIDTH

    def observe(self, gradient: Tensor, loss: float = 1.0) -> None:
        """Follow G and the loss."""
        g = _numbers(gradient)
        now = len(g) * g.t() @ g  # a sample's own gradient is the batch's times its size
        if not (0 <= loss < math.inf and _LEAST < float(now.trace()) < 1 / _LEAST):
            return
        if self.fisher is None:
            self.fisher, self.loss = now, loss
        else:
            self.fisher = _MEMORY * self.fisher + (1 - _MEMORY) * now
            self.loss = _MEMORY * self.loss + (1 - _MEMORY) * loss
        self._unit = None

    def state_dict(self) -> dict[str, Tensor]:
        """The basis that both ends have, and what the sender learned."""
        state = {
            "bytes": self.basis.bytes,
            "cells": torch.tensor(self.basis.cells, dtype=torch.int32),
            "numbers": torch.tensor([self.loss, self.age, self.next], dtype=torch.float64),
        }
        return state if self.fisher is None else state | {"fisher": self.fisher}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore both."""
        self.fisher, self._unit = state.get("fisher"), None
        self.basis, self.loss, self.age, self.next = _NOTHING, 1.0, 0, 0
        if state:
            self.basis = Basis(state["bytes"], tuple(state["cells"].tolist()))
            self.loss, age, following = state["numbers"].tolist()
            self.age, self.next = int(age), int(following)

    def _chosen(self, x: Tensor, context: Context) -> tuple[Basis, Tensor]:
        """The basis for a message, with steps that the budget allows, and the components in these steps."""
        basis = self._fitting(x, context)
        z = x @ self._analysis(basis, x.shape[1])
        while math.isfinite(self.budget) and _bits(quantized(z, 1.0)) > self.budget:
            basis = basis.scaled(2)
            z = x @ self._analysis(basis, x.shape[1])
        return basis, z

    def _fitting(self, x: Tensor, context: Context) -> Basis:
        """The basis that both ends have, the same with smaller steps, or a new one."""
        if self.fisher is None or len(x) == 0:
            return self.basis
        whole = x if context.whole is None else _numbers(context.whole)
        if self.age >= self.next:
            return self._new(whole, self.age * len(x) / max(1, context.total))
        aim, noise = self.tolerance * self._units()[1], self._noise(self.basis)
        if not self.basis.cells or noise <= 2 * aim:
            return self.basis
        return self.basis.scaled(math.sqrt(aim / noise))

    def _units(self) -> tuple[Tensor, float]:
        """G and the loss in units of the trace of G, so that squares stay within what floats can hold; once a round."""
        assert self.fisher is not None
        if self._unit is None:
            trace = float(self.fisher.trace())
            self._unit = self.fisher / trace, self.loss / trace
        return self._unit

    def _noise(self, basis: Basis) -> float:
        """By how much rounding to whole steps raises the loss."""
        rows = basis.rows
        return float((rows @ self._units()[0] * rows).sum()) / 24 if len(rows) else 0.0

    def _new(self, whole: Tensor, epochs: float) -> Basis:
        """The basis for these rows and this G; what few components could not say is added in later epochs."""
        G, loss = self._units()
        values, vectors = torch.linalg.eigh(G)
        y = whole @ (vectors * (values.clamp_min(0) + _CURIOSITY / len(values)).sqrt())
        variance, W = torch.linalg.eigh(y.t() @ y / len(y))
        small = _SMALL / (1 + (epochs / _WHILE) ** 2) * float(variance[-1])
        # No more than there are rows: a basis is never larger than the tensor that it comes with.
        count = min(MOST, len(y), int((variance > small).sum()))
        if count == 0:
            return self.basis
        z, spread = y @ W[:, -count:], variance[-count:]
        step = (_COARSEST**2 * spread).clamp_max(24 * self.tolerance * loss / count).sqrt()
        S = (z.t() @ whole) / (len(y) * spread[:, None]) * step[:, None]
        return _as_bytes(S)

    def _analysis(self, basis: Basis, P: int) -> Tensor:
        """The P x K matrix that gives the whole steps nearest to rows, as the loss measures distance."""
        rows = basis.rows
        if not len(rows):
            return torch.zeros(P, 0, dtype=torch.float64)
        towards = rows if self.fisher is None else rows @ self._units()[0] + rows * (_CURIOSITY / P)
        analysis: Tensor = towards.t() @ torch.linalg.pinv(towards @ rows.t(), hermitian=True)
        return analysis

    def _read(self, packet: Packet) -> tuple[Basis, Tensor]:
        """The basis of a packet and its symbols, row by row."""
        no_scalars(packet)
        P, n = width_of(packet.shape), math.prod(packet.shape[:-1])
        basis = self.basis
        match packet.planes:
            case (symbols,):
                pass
            case (symbols, cells):
                basis = Basis(basis.bytes, _codes(cells))
            case (symbols, cells, bytes_) if bytes_.width == 8 and bytes_.symbols.numel() == cells.symbols.numel() * P:
                rows = (bytes_.symbols.reshape(cells.symbols.numel(), P).int() - 128).to(torch.int8)
                basis = Basis(rows, _codes(cells))
            case _:
                raise DecodeError("expected symbols, and perhaps cells and a basis")
        K = len(basis.cells)
        known = basis.bytes.shape == (K, P) or not K
        if not known or symbols.width != WIDTH or symbols.symbols.numel() != n * K:
            raise DecodeError(f"{symbols.symbols.numel()} symbols for {n} rows of {K} components")
        return basis, unzigzag(symbols.symbols).reshape(n, K)


def in_turn(q: Tensor, basis: Basis, P: int) -> Tensor:
    """q S added up in one order: the same bits everywhere, exact or not."""
    h = torch.zeros(len(q), P, dtype=torch.float64)
    for column, row in zip(q.t(), basis.rows, strict=True):
        h += column[:, None] * row
    return h


def _as_bytes(S: Tensor) -> Basis:
    """Each row in as many cells as a byte can count."""
    cells = tuple(cell_code(float(row.abs().max()) / 127) for row in S)
    sizes = torch.tensor([cell(code) for code in cells], dtype=torch.float64)[:, None]
    return Basis((S / sizes).round().clamp_(-127, 127).to(torch.int8), cells)


def _bits(q: Tensor) -> float:
    """Bits a row by the entropy of its components as they are distributed over these rows."""
    bits = 0.0
    for column in q.t():
        share = torch.unique(column, return_counts=True)[1].double() / max(1, len(column))
        bits -= float((share * share.log2()).sum())
    return bits


def _codes(plane: Plane) -> tuple[int, ...]:
    if plane.width != CELL_WIDTH or not 1 <= plane.symbols.numel() <= MOST:
        raise DecodeError(f"from 1 to {MOST} cells of {CELL_WIDTH} bits make a basis")
    return tuple(int(code) for code in plane.symbols)


def _rows(h: Tensor) -> Tensor:
    """Rows of the last dimension, exact; refuses what cannot be compressed."""
    extremes(flat(h), LARGEST[flat(h).dtype])
    return _numbers(h)


def _numbers(h: Tensor) -> Tensor:
    return rows_of(flat(h).double().cpu(), h.shape)
