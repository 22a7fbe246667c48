"""Tensor packets: a `Packet` as bytes. docs/wire-format.md is the normative page.

    u8 dtype | u8 dims | u8 scalars | u8 planes | u32 dim... | float scalar... | (u8 width, u32 count)... | payloads

For one plane the payload is ceil(n * width / 8) bytes behind 9 + 4 * dims + (4 or 8) * scalars bytes of header.
The code of an entropy coder has one byte before it, the dtype: its shape is the one that the receiver expects.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from cvfl.errors import DecodeError
from cvfl.wire.bits import WIDTHS, packed_size, payload, unpack
from cvfl.wire.varint import read_varint

MAX_DIMS = 8
MAX_SCALARS = 16
MAX_PLANES = 8
MAX_COMPONENTS = 2**32 - 1
"""Largest product of a shape's dimensions; a dimension of 0 counts as 1 here."""
_DTYPES = {1: (torch.float32, "f"), 2: (torch.float64, "d")}
_CODES = {torch.float32: 1, torch.float64: 2}
_CODED = 2
"""Added to the dtype of a packet that is the code of an entropy coder."""


@dataclass(frozen=True)
class Plane:
    """Integers below 2^width, to be packed at `width` bits each (32 and 64: the bit patterns of floats).

    Symbols i and i + columns are of one kind, which an entropy coder uses.
    """

    symbols: Tensor
    width: int
    columns: int = 1


@dataclass(frozen=True)
class Packet:
    """A compressed tensor: its shape, a few floats, and planes of symbols; or an entropy coder's code of them."""

    shape: tuple[int, ...]
    planes: tuple[Plane, ...]
    scalars: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32
    code: bytes = b""


def encode_packet(packet: Packet) -> bytes:
    """The bytes of a packet."""
    code = _CODES[packet.dtype]
    if packet.code:
        return bytes([code + _CODED]) + packet.code
    head = struct.pack(
        f"<BBBB{len(packet.shape)}I{len(packet.scalars)}{_DTYPES[code][1]}",
        code,
        len(packet.shape),
        len(packet.scalars),
        len(packet.planes),
        *packet.shape,
        *packet.scalars,
    )
    planes = b"".join(struct.pack("<BI", plane.width, plane.symbols.numel()) for plane in packet.planes)
    payloads = (payload(plane.symbols.cpu().numpy(), plane.width) for plane in packet.planes)
    return b"".join((head, planes, *payloads))


def decode_packet(data: bytes | memoryview, expected: tuple[int, ...] = ()) -> Packet:
    """The packet in these bytes, all of them; memory stays within a small multiple of their length.

    A code is not opened here; it is taken as that of a tensor of the expected shape.
    """
    if len(data) > 1 and data[0] - _CODED in _DTYPES:
        return Packet(expected, (), dtype=_DTYPES[data[0] - _CODED][0], code=bytes(data[1:]))
    reader = Reader(data)
    code, dims, scalars, planes = reader.read("<BBBB", "packet header")
    if code not in _DTYPES:
        raise DecodeError(f"unknown dtype {code}")
    if dims > MAX_DIMS or scalars > MAX_SCALARS or planes > MAX_PLANES:
        raise DecodeError(f"{dims} dims, {scalars} scalars, {planes} planes: more than a packet may have")
    dtype, letter = _DTYPES[code]
    shape = reader.read(f"<{dims}I", "shape")
    if math.prod(max(dim, 1) for dim in shape) > MAX_COMPONENTS:
        raise DecodeError(f"shape {shape} has more than {MAX_COMPONENTS} components")
    values = reader.read(f"<{scalars}{letter}", "scalars")
    heads = [reader.read("<BI", "plane header") for _ in range(planes)]
    decoded = []
    for width, count in heads:
        if width not in WIDTHS:
            raise DecodeError(f"no symbol is {width} bits wide")
        symbols = unpack(reader.take(packed_size(count, width), "symbols"), width, count)
        decoded.append(Plane(torch.from_numpy(symbols), width))
    reader.finish()
    return Packet(shape, tuple(decoded), values, dtype)


class Reader:
    """Reads bytes in order and says what was missing when they end early."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are still to come."""
        return len(self._data) - self._at

    def take(self, size: int, what: str) -> memoryview:
        """The next `size` bytes, without copying them."""
        if size > self.left:
            raise DecodeError(f"{what}: {size} bytes announced, {self.left} there")
        self._at += size
        return self._data[self._at - size : self._at]

    def read(self, layout: str, what: str) -> tuple[int, ...]:
        """The next struct."""
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def varint(self) -> int:
        """The next number of varying length."""
        value, self._at = read_varint(self._data, self._at)
        return value

    def finish(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise DecodeError(f"{self.left} bytes too many")
