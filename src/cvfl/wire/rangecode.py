"""The code of a packet: its planes by a range coder, each column with an adaptive model of its own.

    numbers of scalars and planes | plane heads | scalars | code

The head of a plane with a model is a byte: 128 + width - 1, 16 for a row more than the tensor has or 32 if the number
of symbols follows, 64 if the number of columns follows. Without these the plane has a symbol a component, and as many
columns as its place had before: what both ends know is not sent.

A model is a count for each symbol. A block of symbols is coded with the counts of all blocks before it, of this message
and of earlier ones; counts are halved when a column has many, since training changes what is sent. A plane that
its model would make longer is coded at its plain width. The code is the shortest number that the coder's last interval
holds, its highest byte first and without zeros at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from constriction import stream as coding
from numpy.typing import NDArray

from cvfl.errors import DecodeError
from cvfl.wire.packet import (
    MODELLED,
    Packet,
    Plane,
    Reader,
    packet_numbers,
    plain_head,
    read_numbers,
    read_plain_head,
)
from cvfl.wire.varint import varint

Counts = dict[int, NDArray[np.int64]]
"""By plane: columns x symbols."""
Symbols = NDArray[np.int32]

_USUAL, _ROW_MORE, _OWN_COUNT = 0x00, 0x10, 0x20  # how many symbols a plane with a model has
_OWN_COLUMNS = 0x40
_BASIS = 128  # rows of a basis, which may be more than those of the tensor
_LEAST = 64  # symbols that a plane may have of a smaller tensor, too
_FEW = 32  # rows that a column of narrow symbols has at least, to be worth a model of its own
_FEWEST = 4  # the same of wide ones, whose models begin with a good guess
_MODELS = 128  # columns that may have models of their own in however small a message: as many as a basis has rows
_NARROW = 8  # up to this width every symbol is counted; of wider ones those below _ESCAPE
_ESCAPE = 31
_BLOCK = 1024  # symbols, about, that are coded between two looks at the counts
_UNIT = 32  # what a symbol counts, so that halving leaves something of it
_WINDOW = 512 * _UNIT
_WORD = 1 << 32
_END, _LOST = 48, 0.006  # bits that a code may have beyond what its symbols say: at its end, and for each of them


def received(packet: Packet) -> Packet:
    """The packet as its receivers will have it: in the memory of the host, with scalars of its own precision."""
    planes = tuple(replace(plane, symbols=plane.symbols.cpu()) for plane in packet.planes)
    return replace(packet, planes=planes, scalars=tuple(np.asarray(packet.scalars, _float(packet)).tolist()))


def encoded(packet: Packet, counts: Counts) -> tuple[bytes, Counts]:
    """The code of a packet, and the counts after it."""
    coder, after, heads = coding.queue.RangeEncoder(), dict(counts), bytearray()
    for index, plane in enumerate(packet.planes):
        symbols = plane.symbols.numpy().reshape(-1)
        columns = _columns(symbols.size, plane.columns, plane.width)
        adaptive = plane.width <= 16 and symbols.size > 0
        if adaptive:
            trial, model = coder.clone(), _Model(counts.get(index), plane.width, columns)
            adaptive = model.encode(trial, symbols.astype(np.int32))
            if adaptive:
                coder, after[index] = trial, model.counts
        if not adaptive:
            _encode_plain(coder, symbols, plane.width)
        if adaptive:
            heads += _head(plane.width, symbols.size, columns, packet.shape, _known_columns(counts, index))
        else:
            heads += plain_head(plane.width, symbols.size, math.prod(packet.shape))
    floats = np.asarray(packet.scalars, dtype=_float(packet)).tobytes()
    return packet_numbers(len(packet.scalars), len(packet.planes)) + bytes(heads) + floats + _ended(coder), after


def decoded(packet: Packet, counts: Counts) -> tuple[Packet, Counts]:
    """The packet of a code for a tensor of the packet's shape, and the counts after it."""
    if not packet.code:
        raise DecodeError("an empty code")
    reader = Reader(packet.code)
    scalars, planes = read_numbers(reader.take(1, "code")[0], reader)
    heads = [_read_head(reader, packet.shape, _known_columns(counts, index)) for index in range(planes)]
    floats = np.frombuffer(reader.take(scalars * _float(packet).itemsize, "scalars"), dtype=_float(packet))
    code = bytes(reader.take(reader.left, "code"))
    words = np.frombuffer(code + bytes(-len(code) % 4), dtype=">u4").astype(np.uint32)
    coder = coding.queue.RangeDecoder(words)
    after, found, bits = dict(counts), [], 0.0
    for index, (width, adaptive, count, columns) in enumerate(heads):
        if adaptive:
            model = _Model(counts.get(index), width, columns)
            symbols = model.decode(coder, count)
            after[index], bits = model.counts, bits + model.bits + count * _LOST
        else:
            symbols, bits = _decode_plain(coder, count, width), bits + count * (width + _LOST)
        found.append(Plane(torch.from_numpy(symbols), width, columns))
    if code[-1:] == b"\0" or 8 * len(code) > bits + (_END if bits else 0):
        raise DecodeError("a code with bytes too many")
    return Packet(packet.shape, tuple(found), tuple(floats.tolist()), packet.dtype), after


def _head(width: int, count: int, columns: int, shape: tuple[int, ...], known: int) -> bytes:
    """The head of a plane with a model."""
    how = next((how for how, usual in _usual(columns, shape).items() if count == usual), _OWN_COUNT)
    first = bytes([MODELLED | width - 1 | how | (_OWN_COLUMNS if columns != known else 0)])
    return first + (varint(columns) if columns != known else b"") + (varint(count) if how == _OWN_COUNT else b"")


def _read_head(reader: Reader, shape: tuple[int, ...], known: int) -> tuple[int, bool, int, int]:
    """The head of a plane: width, whether it has a model, number of symbols, columns."""
    (first,) = reader.take(1, "plane head")
    if not first & MODELLED:
        width, count = read_plain_head(first, reader, math.prod(shape))
        return _checked(width, False, count, 1, shape)
    columns, how = reader.varint() if first & _OWN_COLUMNS else known, first & (_ROW_MORE | _OWN_COUNT)
    if how == _ROW_MORE | _OWN_COUNT:
        raise DecodeError("a plane with two numbers of symbols")
    count = reader.varint() if how == _OWN_COUNT else _usual(columns, shape)[how]
    return _checked(first % 16 + 1, True, count, columns, shape)


def _usual(columns: int, shape: tuple[int, ...]) -> dict[int, int]:
    """How many symbols a plane has whose number is not told."""
    return {_ROW_MORE: columns * (_rows(shape) + 1), _USUAL: math.prod(shape)}


def _known_columns(counts: Counts, index: int) -> int:
    """Columns that a plane at this place had last."""
    return len(counts[index]) if index in counts else 1


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


class _Model:
    """Counts of the symbols of a plane, column by column; codes and counts block by block."""

    def __init__(self, counts: NDArray[np.int64] | None, width: int, columns: int) -> None:
        size = _size(width)
        fits = counts is not None and counts.shape == (columns, size)
        self.counts = counts.copy() if counts is not None and fits else np.tile(_prior(width, size), (columns, 1))
        self.width, self._last = width, size - 1
        self.bits = 0.0
        """What the symbols say, by the counts before each."""

    def encode(self, coder: Any, symbols: Symbols) -> bool:
        """Code the symbols, unless that takes more than their plain width."""
        most = symbols.size * self.width
        rows = symbols.reshape(-1, len(self.counts))
        seen = rows if self.width <= _NARROW else np.minimum(rows, self._last)
        for part in self._blocks(len(rows)):
            block, beyond = np.ascontiguousarray(seen[part].T), rows[part].T[seen[part].T == _ESCAPE]
            tables = self._tables()
            for table, column in zip(tables, block, strict=True):
                coder.encode(column, coding.model.Categorical(table, perfect=False))
            if self.width > _NARROW and beyond.size:
                _encode_plain(coder, beyond, self.width)
            self._count(block, tables, beyond.size if self.width > _NARROW else 0)
            if self.bits > most:
                return False
        return True

    def decode(self, coder: Any, count: int) -> Symbols:
        """The symbols that `encode` coded."""
        rows = np.empty((count // len(self.counts), len(self.counts)), dtype=np.int32)
        for part in self._blocks(len(rows)):
            height, tables = len(rows[part]), self._tables()
            block = np.stack(
                [_symbols(coder, coding.model.Categorical(table, perfect=False), height) for table in tables]
            )
            beyond = block == _ESCAPE if self.width > _NARROW else np.zeros_like(block, dtype=np.bool_)
            self._count(block, tables, int(beyond.sum()))
            if beyond.any():
                block[beyond] = _decode_plain(coder, int(beyond.sum()), self.width)
            rows[part] = block.T
        return rows.reshape(-1)

    def _blocks(self, rows: int) -> Iterator[slice]:
        step = max(_FEW, _BLOCK // len(self.counts))
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _tables(self) -> NDArray[np.float64]:
        tables: NDArray[np.float64] = self.counts / self.counts.sum(1, keepdims=True)
        return tables

    def _count(self, block: Symbols, tables: NDArray[np.float64], beyond: int) -> None:
        """Take in a block that was coded with these probabilities, so many of its symbols beyond those counted."""
        self.bits += beyond * self.width - float(np.log2(np.take_along_axis(tables, block, 1)).sum())
        columns, size = self.counts.shape
        places = block + np.arange(columns, dtype=np.int64)[:, None] * size
        self.counts += np.bincount(places.reshape(-1), minlength=columns * size).reshape(columns, size) * _UNIT
        many = self.counts.sum(1) > _WINDOW
        self.counts[many] = (self.counts[many] + 1) >> 1


def _prior(width: int, size: int) -> NDArray[np.int64]:
    """Counts before anything was seen: all alike for narrow symbols, falling for wide ones, which are zigzags."""
    if width <= _NARROW:
        return np.full(size, max(1, 4 * _UNIT // size), dtype=np.int64)
    falling: NDArray[np.int64] = np.maximum(1, (4 * _UNIT) >> np.arange(size, dtype=np.int64))
    return falling


def _size(width: int) -> int:
    """How many symbols a model counts."""
    return 1 << width if width <= _NARROW else _ESCAPE + 1


def _columns(count: int, columns: int, width: int) -> int:
    """Columns that have models of their own: one for all if they do not divide the symbols or have too few rows."""
    return columns if count % columns == 0 and columns <= _most_columns(count, width) else 1


def _most_columns(count: int, width: int) -> int:
    """So many that the models have no more counts than the plane has symbols, or few columns in any case."""
    wide = min(_MODELS, count // _FEWEST) if width > _NARROW else 1
    return max(1, wide, count // max(_FEW, _size(width)))


def _ended(coder: Any) -> bytes:
    """The shortest code that says all: of the numbers in the last interval one with the most zeros at its end."""
    words = coder.get_compressed()
    _, (lower, width) = coder.pos()
    for bits in (24, 16, 8):
        rounded = -(-int(words[-1]) >> bits) << bits if words.size else _WORD
        if rounded < _WORD and (rounded * _WORD - lower) % _WORD**2 < width:
            words[-1] = rounded
            break
    return bytes(words.astype(">u4").tobytes().rstrip(b"\0"))


def _checked(
    width: int, adaptive: bool, count: int, columns: int, shape: tuple[int, ...]
) -> tuple[int, bool, int, int]:
    """A plane's head, if it can belong to this shape: nothing is allocated for more than that."""
    P = shape[-1] if shape else 1
    rows = max(_rows(shape) + 1, min(P, _BASIS))  # one more than there are, or those of a basis
    fits = count <= max(rows * P, _LEAST) and 1 <= columns <= _most_columns(count, width)
    if not fits or count % columns:
        raise DecodeError(f"{count} symbols in {columns} columns do not fit shape {shape}")
    return width, adaptive, count, columns


def _encode_plain(coder: Any, symbols: NDArray[Any], width: int) -> None:
    """At `width` bits each, in pieces that the coder takes."""
    bits = symbols.astype(np.int64)
    for low in range(0, width, 16):
        piece = min(16, width - low)
        coder.encode((bits >> low & ((1 << piece) - 1)).astype(np.int32), coding.model.Uniform(1 << piece))


def _decode_plain(coder: Any, count: int, width: int) -> NDArray[Any]:
    bits = np.zeros(count, dtype=np.int64)
    for low in range(0, width, 16):
        piece = min(16, width - low)
        bits |= _symbols(coder, coding.model.Uniform(1 << piece), count).astype(np.int64) << low
    return bits.astype(np.int64 if width > 32 else np.int32)


def _symbols(coder: Any, model: Any, count: int) -> Symbols:
    """The next symbols; the coder asserts that they are such as an encoder could have written."""
    try:
        symbols: Symbols = coder.decode(model, count)
    except AssertionError:
        raise DecodeError("a code that no encoder wrote") from None
    return symbols


def _float(packet: Packet) -> np.dtype[Any]:
    return np.dtype("<f8" if packet.dtype == torch.float64 else "<f4")
