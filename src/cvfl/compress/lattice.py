"""Hexagonal (A2) lattice quantizer with subtractive dither and exactly 2^(2b) codewords.

Components go in pairs (x, y), scaled so that the range is the unit square. The codebook is 2^b rows of
2^b points, odd rows shifted by half the spacing s, centred on the square; a row of cells is 2^-b high:

      o   o   o   o         even rows: a rectangular grid of s by sqrt(3) s
        o   o   o   o       odd rows:  the same grid, shifted by half of both
      o   o   o   o
        o   o   o   o

Each half of the rows is a product grid, so its nearest point is found by rounding and clamping each axis;
the nearer of the two is the exact nearest codeword, at the border too. The dither is uniform over the
brick s by sqrt(3)/2 s, a fundamental cell of the lattice. The symbols are the
columns of all pairs, then their rows, b bits each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cvfl import theory
from cvfl.compress.base import (
    CHUNK,
    MAX_BITS,
    Compressor,
    Context,
    Packet,
    Plane,
    Range,
    checked_bits,
    chunks,
    flat,
    only_plane,
    symbol_type,
    working_type,
)

_SQRT3 = math.sqrt(3)


class Lattice(Compressor):
    """Quantize pairs to 2^(2 bits) points of the hexagonal lattice between low and high (measured when not given)."""

    def __init__(self, bits: int, low: float | None = None, high: float | None = None) -> None:
        self.bits = checked_bits(bits)
        self.range = Range(low, high)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Send each pair as the nearest codeword to its dithered place; an odd last one is paired with the middle."""
        x = flat(h)
        interval = self.range.of(x)
        grid = _Grid(self.bits, *interval)
        work = working_type(x.dtype, self.bits, *interval)
        pairs = (x.numel() + 1) // 2
        symbols = torch.empty(2, pairs, dtype=symbol_type(self.bits), device=x.device)
        dither = context.dither(2 * pairs).reshape(2, pairs)
        for part in chunks(pairs, CHUNK // 2):
            pair = x[2 * part.start : 2 * part.stop].to(work)
            if pair.numel() % 2:
                pair = torch.cat([pair, pair.new_tensor([grid.middle])])
            X = (pair[0::2] - grid.middle).mul_(grid.per_s).add_(grid.X0)
            Y = (pair[1::2] - grid.middle).mul_(grid.per_s / _SQRT3).add_(grid.Y0)
            X += _across(dither[0, part], X)
            Y += _upwards(dither[1, part], Y)
            symbols[0, part], symbols[1, part] = _nearest(X, Y, 2**self.bits)
        plane = Plane(symbols.reshape(-1), self.bits)
        return Packet(tuple(h.shape), (plane,), self.range.scalars(interval), x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Place each codeword, subtract the dither and scale back."""
        interval = self.range.read(packet)
        grid = _Grid(self.bits, *interval)
        work = working_type(packet.dtype, self.bits, *interval)
        n = math.prod(packet.shape)
        pairs = (n + 1) // 2
        columns, rows = only_plane(packet, self.bits, 2 * pairs).reshape(2, pairs)
        h = torch.empty(pairs, 2, dtype=packet.dtype, device=columns.device)
        dither = context.dither(2 * pairs).reshape(2, pairs)
        for part in chunks(pairs, CHUNK // 2):
            X = columns[part].to(work).add_((rows[part] & 1).to(work).mul_(0.5))
            Y = rows[part].to(work).mul_(0.5)
            X -= _across(dither[0, part], X)
            Y -= _upwards(dither[1, part], Y)
            h[part, 0] = X.sub_(grid.X0).mul_(grid.s).add_(grid.middle)
            h[part, 1] = Y.sub_(grid.Y0).mul_(grid.s * _SQRT3).add_(grid.middle)
        return h.reshape(-1)[:n].reshape(packet.shape)

    def bound(self, h: Tensor, context: Context) -> theory.ErrorBound:
        """See theory.lattice_error: the hexagon's second moment inside, the border's overload on top."""
        return theory.lattice_error(h.numel(), self.bits, *self.range.of(h))

    def refined(self, factor: float) -> Lattice:
        """Add the bits that shrink the cell enough."""
        low, high = self.range.fixed or (None, None)
        return Lattice(min(MAX_BITS, self.bits + theory.extra_bits(factor)), low, high)


class _Grid:
    """Where the codebook lies, in units of s across and sqrt(3) s upwards."""

    def __init__(self, bits: int, low: float, high: float) -> None:
        size = 2**bits
        self.s = theory.lattice_spacing(bits) * (high - low)
        self.per_s = 1 / self.s if self.s else 0.0
        self.middle = low + (high - low) / 2
        self.X0 = (size - 0.5) / 2
        self.Y0 = (size - 1) / 4


def _nearest(X: Tensor, Y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Column and row of the nearest codeword; a tie goes to the even row."""
    column, row = X.round().clamp_(0, size - 1), Y.round().clamp_(0, size // 2 - 1)
    distance = _distance(X - column, Y - row)
    X -= 0.5
    Y -= 0.5
    odd_column, odd_row = X.round().clamp_(0, size - 1), Y.round().clamp_(0, size // 2 - 1)
    odd_distance = _distance(X.sub_(odd_column), Y.sub_(odd_row))
    # Selecting by arithmetic with 0 or 1 is exact here and many times faster than torch.where.
    odd = distance.sub_(odd_distance).sign_().clamp_(min=0)
    column += odd_column.sub_(column).mul_(odd)
    row += odd_row.sub_(row).mul_(odd)
    return column, row.mul_(2).add_(odd)


def _distance(X: Tensor, Y: Tensor) -> Tensor:
    """Squared distance in units of s; Y counts in sqrt(3) s."""
    return X.square_().add_(Y.square_().mul_(3))


def _across(dither: Tensor, like: Tensor) -> Tensor:
    """Uniform over one spacing: [-1/2, 1/2) of s."""
    return dither.to(like).mul_(2.0**-16)


def _upwards(dither: Tensor, like: Tensor) -> Tensor:
    """Uniform over one row of cells: [-1/4, 1/4) of sqrt(3) s."""
    return dither.to(like).mul_(2.0**-17)
