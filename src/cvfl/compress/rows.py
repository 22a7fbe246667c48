"""Rows that are coded one by one: what a row becomes depends neither on its message nor on who shares it.

    a message of rows ──▶ each row as if it alone were the first message: its own range, the dither of round 0

For rows that are asked for online: a row that is asked for twice must be the same twice. The scalar quantizer does it
for all rows at once; of others each row is a packet, one behind the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.compress.base import LARGEST, Compressor, Context, flat, no_scalars, only_plane
from cvfl.compress.identity import FLOAT_BITS, Identity
from cvfl.compress.masked import Masked
from cvfl.compress.quantizer import SMALLEST_CELL
from cvfl.compress.scalar import Scalar
from cvfl.errors import DecodeError
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet, Plane, decode_packet, encode_packet
from cvfl.wire.varint import read_varint, varint

Array = NDArray[np.float64]


def by_row(compressor: Compressor) -> Compressor:
    """The compressor row by row; one that remembers, or whose masks are of a message, stays as it is."""
    match compressor:
        case Identity() | Masked():
            return compressor
        case Scalar():
            return ScalarRows(compressor)
    return compressor if compressor.learns else EachRow(compressor)


def _alone(context: Context) -> Context:
    return Context(context.seed, 0, context.m, context.part)


class ScalarRows(Compressor):
    """The scalar quantizer with a range and the same dither for each row; measured ranges are a plane of their own.

    In NumPy, since most messages are of a row or a few.
    """

    def __init__(self, grid: Scalar) -> None:
        self.grid = grid
        self._most = 2.0**grid.bits - 1
        self._drawn: dict[tuple[int, int, str, int], Array] = {}

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Add the dither and round to a level, all rows at once."""
        x = flat(h).cpu()
        interval = self.grid.range.of(x)  # refuses what cannot be sent
        rows, dtype = x.numpy().reshape(h.shape), x.dtype
        planes: tuple[Plane, ...] = ()
        ends = np.broadcast_to(np.array(interval), (len(rows), 2))
        if self.grid.range.fixed is None:
            told = np.stack([rows.min(1), rows.max(1)], 1)
            width, _ = FLOAT_BITS[dtype]
            planes, ends = (Plane(torch.from_numpy(told.reshape(-1).view(f"i{width // 8}")), width),), told
        low, delta = self._cells(ends)
        per_delta = np.where(delta > SMALLEST_CELL, 1 / np.maximum(delta, SMALLEST_CELL), 0.0)
        y = (rows - low) * per_delta
        y += self._dither(context, rows.shape[1])
        y += 0.5
        # The cast is the floor, as y >= 0; rounding of y may reach 2^b.
        q = np.minimum(y, self._most, out=y).astype(np.uint8 if self.grid.bits <= 8 else np.uint16)
        return Packet(tuple(h.shape), (*planes, Plane(torch.from_numpy(q.reshape(-1)), self.grid.bits)), (), dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Subtract the dither from the symbols and scale them back."""
        no_scalars(packet)
        (rows, width), planes, dtype = packet.shape, packet.planes, packet.dtype
        if self.grid.range.fixed is None:
            bits, _ = FLOAT_BITS[dtype]
            told = only_plane(Packet((rows, 2), planes[:1]), bits, 2 * rows)
            ends, planes = told.numpy().view(f"f{bits // 8}").reshape(rows, 2), planes[1:]
            if not (np.abs(ends).max() <= LARGEST[dtype] and (ends[:, 0] <= ends[:, 1]).all()):
                raise DecodeError(f"a measured range is two ordered numbers within ±{LARGEST[dtype]:.3g}")
        else:
            ends = np.broadcast_to(np.array(self.grid.range.read(packet)), (rows, 2))
        symbols = only_plane(Packet(packet.shape, planes), self.grid.bits, rows * width)
        low, delta = self._cells(ends)
        y = symbols.numpy().reshape(rows, width) - self._dither(context, width)
        y *= delta
        y += low
        return torch.from_numpy(y).to(dtype)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """The sum of the rows' bounds."""
        return _added(self.grid, h, context)

    def nominal_bits(self, t0: int) -> float:
        """b."""
        return self.grid.nominal_bits(t0)

    def _cells(self, ends: NDArray[Any]) -> tuple[Array, Array]:
        """For each row its least level and the width of a cell."""
        low, high = ends[:, :1].astype(np.float64), ends[:, 1:].astype(np.float64)
        return low, (high - low) / self._most

    def _dither(self, context: Context, width: int) -> Array:
        """As shares of a cell, for any row; drawn once."""
        which = context.seed, context.m, context.part, width
        if which not in self._drawn:
            self._drawn[which] = _alone(context).dither(width).numpy().astype(np.float64) * 2.0**-16
        return self._drawn[which]


class EachRow(Compressor):
    """Any compressor that remembers nothing, for each row anew."""

    def __init__(self, inner: Compressor) -> None:
        self.inner = inner

    def compress(self, h: Tensor, context: Context) -> Packet:
        """A packet for each row, behind its length."""
        packets = [encode_packet(self.inner.compress(row[None], _alone(context))) for row in h]
        code = b"".join(varint(len(packet)) + packet for packet in packets)
        return Packet(tuple(h.shape), (), dtype=flat(h[:0]).dtype, code=b"\0" + code)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Every row from its packet."""
        h, data, at = torch.empty(packet.shape, dtype=packet.dtype), memoryview(packet.code), 1
        for row in h:
            size, at = read_varint(data, at)
            if size > len(data) - at:
                raise DecodeError(f"a row: {size} bytes announced, {len(data) - at} there")
            one = decode_packet(data[at : at + size], (1, len(row)))
            if one.dtype != packet.dtype:
                raise DecodeError(f"a row is {one.dtype}, not {packet.dtype}")
            row[:], at = self.inner.decompress(one, _alone(context))[0], at + size
        if not packet.code or packet.code[0] or at != len(data):
            raise DecodeError("the packets of rows do not end where the message does")
        return h

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """The sum of the rows' bounds."""
        return _added(self.inner, h, context)

    def nominal_bits(self, t0: int) -> float:
        """As inside."""
        return self.inner.nominal_bits(t0)


def _added(compressor: Compressor, h: Tensor, context: Context) -> ErrorBound:
    bounds = [compressor.bound(row[None], _alone(context)) for row in h]
    return ErrorBound(sum(one.expected for one in bounds), sum(one.worst for one in bounds))
