"""Hexagonal (A2) lattice quantizer with subtractive dither and exactly 2^(2b) codewords.

Components go in pairs (x, y), scaled so that the range is the unit square. The codebook is 2^b rows of
2^b points, odd rows shifted by half the spacing s, centred on the square; a row of cells is 2^-b high:

      o   o   o   o         even rows: a rectangular grid of s by sqrt(3) s
        o   o   o   o       odd rows:  the same grid, shifted by half of both
      o   o   o   o
        o   o   o   o

Each half of the rows is a product grid, so its nearest point is found by rounding and clamping each axis;
the nearer of the two is the exact nearest codeword, at the border too. The dither is uniform over the
brick s by sqrt(3)/2 s, a fundamental cell of the lattice. Inside, the error therefore does not depend on the
pair. Within a cell of the border a dithered pair may leave the codebook; it comes back to the nearest point, and
the error there is larger and points inwards. Where embeddings saturate, the scalar quantizer errs less.
The symbols are the columns of all pairs, then their rows, b bits each. An odd last component has a column only:
it is a place in an even row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cvfl import theory
from cvfl.compress.base import Context, flat, only_plane
from cvfl.compress.quantizer import SMALLEST_CELL, Quantizer, chunks, in_cells, symbol_type, working_type
from cvfl.wire.packet import Packet, Plane

_SQRT3 = math.sqrt(3)


class Lattice(Quantizer):
    """Quantize pairs to 2^(2 bits) points of the hexagonal lattice between low and high (measured when not given)."""

    error = staticmethod(theory.lattice_error)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Send each pair as the nearest codeword to its dithered place."""
        x = flat(h)
        interval = self.range.of(x)
        grid = _Grid(self.bits, *interval)
        work = working_type(x.dtype, self.bits, *interval)
        pairs, odd = divmod(x.numel(), 2)
        symbols = torch.empty(x.numel(), dtype=symbol_type(self.bits), device=x.device)
        columns, rows = symbols[: pairs + odd], symbols[pairs + odd :]
        dither = context.dither(x.numel())
        across, upwards = dither[: pairs + odd], dither[pairs + odd :]
        for part in chunks(pairs, work):
            pair = x[2 * part.start : 2 * part.stop].to(work)
            X = grid.place_across(pair[0::2], across[part])
            Y = grid.place_upwards(pair[1::2], upwards[part])
            columns[part], rows[part] = _nearest(X, Y, grid.size)
        if odd:
            columns[pairs:] = grid.place_across(x[-1:].to(work), across[pairs:]).round_().clamp_(0, grid.size - 1)
        return Packet(tuple(h.shape), (Plane(symbols, self.bits),), self.range.scalars(interval), x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Place each codeword, subtract the dither and scale back."""
        interval = self.range.read(packet)
        grid = _Grid(self.bits, *interval)
        work = working_type(packet.dtype, self.bits, *interval)
        n = math.prod(packet.shape)
        pairs, odd = divmod(n, 2)
        symbols = only_plane(packet, self.bits, n)
        columns, rows = symbols[: pairs + odd], symbols[pairs + odd :]
        h = torch.empty(n, dtype=packet.dtype, device=symbols.device)
        dither = context.dither(n)
        across, upwards = dither[: pairs + odd], dither[pairs + odd :]
        for part in chunks(pairs, work):
            X = columns[part].to(work).add_((rows[part] & 1).to(work).mul_(0.5))
            Y = rows[part].to(work).mul_(0.5)
            pair = h[2 * part.start : 2 * part.stop]
            pair[0::2] = grid.value_across(X, across[part])
            pair[1::2] = grid.value_upwards(Y, upwards[part])
        if odd:
            h[-1:] = grid.value_across(columns[pairs:].to(work), across[pairs:])
        return h.reshape(packet.shape)


class _Grid:
    """Where the codebook lies, in units of s across and sqrt(3) s upwards."""

    def __init__(self, bits: int, low: float, high: float) -> None:
        self.size = 2**bits
        self._s = theory.lattice_spacing(bits) * (high - low)
        self._per_s = 1 / self._s if self._s > SMALLEST_CELL else 0.0
        self._middle = low + (high - low) / 2
        self._X0 = (self.size - 0.5) / 2
        self._Y0 = (self.size - 1) / 4
        self._left = self._middle - self._X0 * self._s
        self._bottom = self._middle - self._Y0 * self._s * _SQRT3

    def place_across(self, x: Tensor, dither: Tensor) -> Tensor:
        """Where first components lie when dithered."""
        return (x - self._middle).mul_(self._per_s).add_(self._X0).add_(in_cells(dither, x))

    def place_upwards(self, y: Tensor, dither: Tensor) -> Tensor:
        """Where second components lie when dithered."""
        return (y - self._middle).mul_(self._per_s / _SQRT3).add_(self._Y0).add_(_upwards(dither, y))

    def value_across(self, X: Tensor, dither: Tensor) -> Tensor:
        """First components of codewords at X, without the dither."""
        return X.sub_(in_cells(dither, X)).mul_(self._s).add_(self._left)

    def value_upwards(self, Y: Tensor, dither: Tensor) -> Tensor:
        """Second components of codewords at Y, without the dither."""
        return Y.sub_(_upwards(dither, Y)).mul_(self._s * _SQRT3).add_(self._bottom)


def _nearest(X: Tensor, Y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Column and row of the nearest codeword, without computing distances.

    Let p and t be the distances to the nearest even column and row of the codebook. The nearest odd ones are then
    |p - 1/2| and |t - 1/2| away, so the odd point is nearer iff p + 3 t > 1. Only left of column 0 and below row 0,
    where the odd ones are 1/2 further off instead, p and t count as negative: as X and Y themselves.
    """
    columns, rows = size - 1, size // 2 - 1
    p = X.round().clamp_(0, columns).sub_(X).abs_()
    t = Y.round().clamp_(0, rows).sub_(Y).abs_()
    odd = torch.minimum(p, X, out=p).add_(torch.minimum(t, Y, out=t).mul_(3)).gt_(1)
    half = odd * 0.5
    column = X.sub_(half).round_().clamp_(0, columns)
    row = Y.sub_(half).round_().clamp_(0, rows)
    return column, row.mul_(2).add_(odd)


def _upwards(dither: Tensor, like: Tensor) -> Tensor:
    """Uniform over one row of cells: [-1/4, 1/4) of sqrt(3) s."""
    return dither.to(like).mul_(2.0**-17)
