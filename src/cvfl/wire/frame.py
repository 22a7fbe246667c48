"""Frames: 20 bytes of header and a body. Every message travels as one.

"cvfl" | u8 version | u8 kind | u16 sender | u32 t0 | u32 body length | u32 CRC-32 of all but these four bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from cvfl.errors import DecodeError
from cvfl.wire.packet import Reader

try:  # the same sum, thirty times faster, where an extra brought it
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

MAGIC = b"cvfl"
VERSION = 1
HEADER = struct.Struct("<4sBBHIII")
MAX_BODY = 1 << 30
"""Longest body that is read; a runtime may set a lower cap for its federation."""

Bytes = bytes | memoryview


class Frame(NamedTuple):
    """What a frame says of itself, and its body."""

    kind: int
    sender: int
    t0: int
    body: memoryview


def kind_of(data: Bytes) -> int:
    """The kind that a frame's header names; 0 if there is no whole header."""
    return int(data[5]) if len(data) >= HEADER.size else 0


def round_of(data: Bytes) -> int:
    """The round that the header of a whole frame names."""
    t0: int = HEADER.unpack_from(data)[4]
    return t0


def seal(kind: int, sender: int, t0: int, parts: Sequence[Bytes]) -> bytes:
    """The frame around a body that is given in parts."""
    size = sum(len(part) for part in parts)
    head = HEADER.pack(MAGIC, VERSION, kind, sender, t0, size, 0)[:-4]
    crc = crc32(head)
    for part in parts:
        crc = crc32(part, crc)
    return b"".join((head, struct.pack("<I", crc), *parts))


def unseal(data: Bytes, max_body: int = MAX_BODY) -> Frame:
    """The frame in these bytes, all of them; the body is a view."""
    reader = Reader(data)
    head = reader.take(HEADER.size, "frame header")
    magic, version, kind, sender, t0, size, crc = HEADER.unpack(head)
    if magic != MAGIC:
        raise DecodeError("not a cvfl frame")
    if version != VERSION:
        raise DecodeError(f"frame version {version}, this is version {VERSION}")
    if size > max_body:
        raise DecodeError(f"a body of {size} bytes is over the cap of {max_body}")
    body = reader.take(size, "body")
    reader.finish()
    if crc32(body, crc32(head[:-4])) != crc:
        raise DecodeError("checksum does not match")
    return Frame(kind, sender, t0, body)
