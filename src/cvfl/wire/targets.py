"""Targets as bytes: what each shared row is for, and labels, near their entropy.

    u8 loss, labels, parts | varint outputs, rows, labels | [units] | [present] | [parts] | [labels] | [tables | code]

What a row is for has two bits, packed or in the code, whichever is shorter. Labels that are whole numbers, as classes
are, are in the code, too; others are floats, of 32 bits if that is all they have. The code is that of a packet. There
is nothing before it to learn from, so its models start from tables that say how frequent each symbol is. Units are two
floats: what is added to a label, once it is multiplied by the other, to have the quantity that it stands for. Where
not all parties hold all rows, a bit a row says it of each party, open or sealed for that party:

    present = varint 2 * parties + sealed | for each party ceil(rows / 8) bytes, and those of the seal
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cvfl.errors import DecodeError
from cvfl.wire.bits import pack, packed_size, unpack
from cvfl.wire.frame import Bytes
from cvfl.wire.packet import Packet, Plane, Reader
from cvfl.wire.rangecode import Counts, decoded, encoded
from cvfl.wire.setup import SEAL
from cvfl.wire.varint import varint

MAX_ROWS = 1 << 26
ROWS_A_BYTE = 16
"""Most rows for each byte of the body: the memory that they take is paid for."""
_LAST_PART = 3
_PART = 2
"""Bits that say what a row is for."""
_NONE, _CODED, _SINGLE, _DOUBLE = range(4)
_FLOATS: dict[int, np.dtype[np.floating]] = {_SINGLE: np.dtype("<f4"), _DOUBLE: np.dtype("<f8")}
_CODED_PARTS, _WITH_UNITS, _WITH_PRESENT = 0x20, 0x40, 0x80
_UNITS = struct.Struct("<dd")
_LARGEST = (1 << 16) - 1
_TABLED = 256
"""From here on a symbol is too large for a table."""
_SCALE = 64
"""What a unit of a table counts in a model."""
Symbols = NDArray[np.int32]


@dataclass(frozen=True)
class Targets:
    """From the label holder: what each shared row is for, and labels, in the order of the rows.

    `parts` is one byte a row; `labels` are float64, of the training rows only when a party receives them. `units` are
    offset and scale of a quantity, or nothing. `present` says of every party but the label holder, or to a party of
    itself, which rows it holds, a bit a row, packed; `sealed` that only this party can read it. It is empty where all
    hold all rows.
    """

    m: int
    loss: int
    outputs: int
    parts: Bytes
    labels: Bytes
    units: tuple[float, ...] = ()
    present: tuple[Bytes, ...] = ()
    sealed: bool = False


def encode_targets(targets: Targets) -> bytes:
    """The body of the message."""
    parts, labels = np.frombuffer(targets.parts, dtype=np.uint8), np.frombuffer(targets.labels, dtype="<f8")
    how, rows = _form(labels), len(parts)
    first = targets.loss | how << 3 | (_WITH_UNITS if targets.units else 0) | (_WITH_PRESENT if targets.present else 0)
    numbers = b"".join(varint(number) for number in (targets.outputs, rows, len(labels)))
    numbers += _UNITS.pack(*targets.units) if targets.units else b""
    numbers += (
        b"".join([varint(2 * len(targets.present) + targets.sealed), *targets.present]) if targets.present else b""
    )
    floats = labels.astype(_FLOATS[how]).tobytes() if how in _FLOATS else b""
    classes = [(labels.astype(np.int32), int(labels.max()))] if how == _CODED else []
    highest = b"".join(varint(high) for _, high in classes)
    packed = bytes([first]) + numbers + pack(parts, _PART) + floats + highest + _code(classes, rows)
    code = _code([(parts.astype(np.int32), _LAST_PART), *classes], rows)
    coded = bytes([first | _CODED_PARTS]) + numbers + floats + highest + code
    return coded if len(coded) < len(packed) and rows <= ROWS_A_BYTE * len(coded) else packed


def decode_targets(body: memoryview, m: int) -> Targets:
    """The message from role m."""
    reader = Reader(body)
    (first,) = reader.take(1, "targets")
    loss, how, in_code = first & 7, first >> 3 & 3, bool(first & _CODED_PARTS)
    outputs, rows, count = (reader.varint() for _ in range(3))
    if outputs > _LARGEST or (count == 0) != (how == _NONE):
        raise DecodeError("targets of an unknown form")
    if rows > min(MAX_ROWS, ROWS_A_BYTE * len(body)) or count > rows:
        raise DecodeError(f"{rows} rows and {count} labels in {len(body)} bytes of targets")
    units = _UNITS.unpack(reader.take(_UNITS.size, "units")) if first & _WITH_UNITS else ()
    present, sealed = _present(reader, rows) if first & _WITH_PRESENT else ((), False)
    parts = b"" if in_code else unpack(reader.take(packed_size(rows, _PART), "parts"), _PART, rows).tobytes()
    labels = b""
    if dtype := _FLOATS.get(how):
        labels = np.frombuffer(reader.take(count * dtype.itemsize, "labels"), dtype=dtype).astype("<f8").tobytes()
    expected = [(rows, _LAST_PART)] if in_code else []
    if how == _CODED:
        expected.append((count, reader.varint()))
    found = _symbols(reader, rows, expected)
    if in_code:
        parts = found.pop(0).astype(np.uint8).tobytes()
    if how == _CODED:
        labels = found.pop().astype("<f8").tobytes()
    return Targets(m, loss, outputs, parts, labels, units, present, sealed)


def _present(reader: Reader, rows: int) -> tuple[tuple[Bytes, ...], bool]:
    """Which rows parties hold, as views of the body, and whether it is sealed."""
    parties, sealed = divmod(reader.varint(), 2)
    size = packed_size(rows, 1) + (SEAL if sealed else 0)
    if not rows or not 1 <= parties <= reader.left // size:
        raise DecodeError(f"which of {rows} rows {parties} parties hold, in {reader.left} bytes")
    present = tuple(reader.take(size, "rows that parties hold") for _ in range(parties))
    if not sealed and rows % 8 and any(bits[-1] >> rows % 8 for bits in present):
        raise DecodeError("rows that a party holds with unused bits that are set")
    return present, bool(sealed)


def _form(labels: NDArray[np.float64]) -> int:
    """How labels are sent: the shortest form from which each comes back with the same bits."""
    if not len(labels):
        return _NONE
    if labels.min() >= 0 and labels.max() <= _LARGEST and _same(labels, labels.astype(np.int32)):
        return _CODED
    with np.errstate(over="ignore"):
        return _SINGLE if _same(labels, labels.astype("<f4")) else _DOUBLE


def _same(labels: NDArray[np.float64], shorter: Symbols | NDArray[np.float32]) -> bool:
    return shorter.astype("<f8").tobytes() == labels.tobytes()


def _width(highest: int) -> int:
    """Bits of a symbol."""
    return max(1, highest.bit_length())


def _code(planes: list[tuple[Symbols, int]], rows: int) -> bytes:
    """The tables and the code of symbols, of which the highest is known; nothing if there are none."""
    if not planes:
        return b""
    tables = [_table(symbols, highest) for symbols, highest in planes]
    counts = {index: _model(table, planes[index][1]) for index, table in enumerate(tables) if table}
    coded = tuple(Plane(torch.from_numpy(symbols), _width(highest)) for symbols, highest in planes)
    return b"".join(tables) + encoded(Packet((rows, 1), coded), counts)[0]


def _symbols(reader: Reader, rows: int, expected: list[tuple[int, int]]) -> list[Symbols]:
    """What `_code` coded: so many symbols in each plane, of which the highest is known."""
    if not expected:
        reader.finish()
        return []
    counts: Counts = {}
    for index, (_, highest) in enumerate(expected):
        if highest > _LARGEST:
            raise DecodeError(f"no label of a code is as high as {highest}")
        if highest < _TABLED:
            counts[index] = _model(reader.take(highest + 1, "table"), highest)
    code = bytes(reader.take(reader.left, "code"))
    packet, _ = decoded(Packet((rows, 1), (), code=code), counts)
    form = [(plane.symbols.numel(), plane.width) for plane in packet.planes]
    if code[0] & 3 or packet.scalars or form != [(count, _width(highest)) for count, highest in expected]:
        raise DecodeError(f"a code of targets with other symbols than {expected}")
    return [plane.symbols.numpy() for plane in packet.planes]


def _table(symbols: Symbols, highest: int) -> bytes:
    """How often each symbol is there, where 255 stands for the most frequent one."""
    if highest >= _TABLED:
        return b""
    found = np.bincount(symbols, minlength=highest + 1)
    shares: NDArray[np.float64] = np.ceil(255 * found / max(1, found.max()))
    return shares.astype(np.uint8).tobytes()


def _model(table: Bytes, highest: int) -> NDArray[np.int64]:
    """The counts with which a model starts."""
    counts = np.ones((1, 1 << _width(highest)), dtype=np.int64)
    counts[0, : len(table)] += _SCALE * np.frombuffer(table, dtype=np.uint8).astype(np.int64)
    return counts
