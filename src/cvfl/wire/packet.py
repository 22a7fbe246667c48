"""Tensor packets: a `Packet` as bytes. docs/wire-format.md is the normative page.

    u8 kinds and numbers | [u8 scalars] | plane heads | float scalar... | payloads

Shape and compressor are known to the receiver and not sent. For one plane of a symbol a component the payload is
ceil(n * width / 8) bytes, behind 2 + (4 or 8) * scalars bytes of header. The code of an entropy coder begins in the
same way, with heads of its own.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from cvfl.errors import DecodeError
from cvfl.wire.bits import WIDTHS, packed_size, payload, unpack
from cvfl.wire.varint import read_varint, varint

MAX_SCALARS = 16
MAX_PLANES = 8
_DTYPES = (torch.float32, "f"), (torch.float64, "d")
_CODED = 2
"""In the first byte: the lowest bit is the dtype, the next one says that a code follows, then come two numbers."""
_MANY = 3
"""In place of a number of scalars from here on, which follows in a byte."""
_OWN_COUNT = 0x40
"""In the head of a plane: its number of symbols follows, for it is not that of the components."""
MODELLED = 0x80
"""In the head of a plane of a code: its symbols have a model."""


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
    double = packet.dtype == torch.float64
    if packet.code:
        return bytes([packet.code[0] | _CODED | double]) + packet.code[1:]
    numbers = packet_numbers(len(packet.scalars), len(packet.planes))
    usual = math.prod(packet.shape)
    heads = b"".join(plain_head(plane.width, plane.symbols.numel(), usual) for plane in packet.planes)
    scalars = struct.pack(f"<{len(packet.scalars)}{_DTYPES[double][1]}", *packet.scalars)
    payloads = (payload(plane.symbols.cpu().numpy(), plane.width) for plane in packet.planes)
    return b"".join((bytes([numbers[0] | double]), numbers[1:], heads, scalars, *payloads))


def decode_packet(data: bytes | memoryview, shape: tuple[int, ...]) -> Packet:
    """The packet of a tensor of this shape in these bytes, all of them; memory is that of the shape and the bytes.

    A code is not opened here.
    """
    reader = Reader(data)
    (first,) = reader.take(1, "packet header")
    dtype, letter = _DTYPES[first & 1]
    if first & _CODED:
        rest = reader.take(reader.left, "code")
        return Packet(shape, (), dtype=dtype, code=bytes([first & ~(_CODED | 1)]) + bytes(rest))
    scalars, planes = read_numbers(first, reader)
    heads = [read_plain_head(reader.take(1, "plane head")[0], reader, math.prod(shape)) for _ in range(planes)]
    values = reader.read(f"<{scalars}{letter}", "scalars")
    decoded = []
    for width, count in heads:
        symbols = unpack(reader.take(packed_size(count, width), "symbols"), width, count)
        decoded.append(Plane(torch.from_numpy(symbols), width))
    reader.finish()
    return Packet(shape, tuple(decoded), values, dtype)


def packet_numbers(scalars: int, planes: int) -> bytes:
    """How many scalars and planes follow: the first byte of a packet but for its two lowest bits, and perhaps one."""
    many = bytes([scalars]) if scalars >= _MANY else b""
    return bytes([planes << 4 | min(scalars, _MANY) << 2]) + many


def read_numbers(first: int, reader: Reader) -> tuple[int, int]:
    """How many scalars and planes there are, by the first byte and what follows it."""
    scalars, planes = first >> 2 & 3, first >> 4
    if scalars == _MANY:
        (scalars,) = reader.take(1, "number of scalars")
    if not scalars <= MAX_SCALARS or planes > MAX_PLANES:
        raise DecodeError(f"{scalars} scalars, {planes} planes, more than {MAX_SCALARS} and {MAX_PLANES}")
    return scalars, planes


def plain_head(width: int, count: int, usual: int) -> bytes:
    """The head of a plane without a model: its width, and its number of symbols if that is not the usual one."""
    return bytes([width % 64]) if count == usual else bytes([width % 64 | _OWN_COUNT]) + varint(count)


def read_plain_head(first: int, reader: Reader, usual: int) -> tuple[int, int]:
    """The width and the number of symbols of a plane, by its first byte and what follows it."""
    width = first % 64 or 64
    if first & MODELLED or width not in WIDTHS:
        raise DecodeError(f"a plane of no known kind, or no symbol is {width} bits wide")
    return width, reader.varint() if first & _OWN_COUNT else usual


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
