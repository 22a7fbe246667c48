"""Frames: a short header, a body and a checksum. Every message travels as one; a carrier knows where it ends.

u8 version * 16 + kind | varint sender | varint t0 | body | checksum of all before it

Kinds that only the server sends have no sender, and those before the first round no t0. The checksum has 2 bytes if
what it covers has at most 1,024, and 4 if it has more.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import NamedTuple

from cvfl.errors import DecodeError
from cvfl.types import SERVER
from cvfl.wire.varint import read_varint, varint

try:  # the same sum, thirty times faster, where an extra brought it
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

VERSION = 2
MAX_BODY = 1 << 30
"""Longest body that is read; a runtime may set a lower cap for its federation."""
FROM_SERVER = frozenset((2, 3, 9, 12, 13))
"""Kinds that the server alone sends: their frames name no sender."""
BEFORE_ROUNDS = frozenset((5, 6, 7, 8))
"""Kinds that belong to no round: their frames name none, and have t0 = 0."""
_FIRST = b"cvfl"
"""How frames of version 1 began."""
_SHORT = 1 << 10
_MAX_SENDER, _MAX_ROUND = (1 << 16) - 1, (1 << 32) - 1

Bytes = bytes | memoryview


class Frame(NamedTuple):
    """What a frame says of itself, and its body."""

    kind: int
    sender: int
    t0: int
    body: memoryview


class Head(NamedTuple):
    """What the header of a frame says, and where its body begins."""

    kind: int
    sender: int
    t0: int
    size: int


def kind_of(data: Bytes) -> int:
    """The kind that a frame names; 0 if it is none of this version."""
    return data[0] % 16 if len(data) and data[0] // 16 == VERSION else 0


def head_of(data: Bytes) -> Head:
    """The header of a frame."""
    if not len(data):
        raise DecodeError("an empty frame")
    if bytes(data[:4]) == _FIRST:
        raise DecodeError(f"a frame of version 1, this is version {VERSION}")
    if (version := data[0] // 16) != VERSION:
        raise DecodeError(f"a frame of version {version}, or none at all; this is version {VERSION}")
    kind, at, sender, t0 = data[0] % 16, 1, SERVER, 0
    if kind not in FROM_SERVER:
        sender, at = read_varint(data, at)
    if kind not in BEFORE_ROUNDS:
        t0, at = read_varint(data, at)
    if sender > _MAX_SENDER or t0 > _MAX_ROUND:
        raise DecodeError(f"a frame of role {sender} and round {t0}")
    return Head(kind, sender, t0, at)


def round_of(data: Bytes) -> int:
    """The round that the header of a whole frame names."""
    return head_of(data).t0


def seal(kind: int, sender: int, t0: int, parts: Sequence[Bytes]) -> bytes:
    """The frame around a body that is given in parts."""
    head = bytes([VERSION * 16 + kind])
    head += b"" if kind in FROM_SERVER else varint(sender)
    head += b"" if kind in BEFORE_ROUNDS else varint(t0)
    pieces = [head, *parts]
    return b"".join((*pieces, _checksum(pieces)))


def unseal(data: Bytes, max_body: int = MAX_BODY) -> Frame:
    """The frame in these bytes, all of them; the body is a view."""
    view = memoryview(data)
    kind, sender, t0, start = head_of(view)
    end = len(view) - (2 if len(view) <= _SHORT + 2 else 4)
    if end < start:
        raise DecodeError(f"a frame of {len(view)} bytes, which is no whole one")
    if end - start > max_body:
        raise DecodeError(f"a body of {end - start} bytes is over the cap of {max_body}")
    if _checksum([view[:end]]) != view[end:]:
        raise DecodeError("checksum does not match")
    return Frame(kind, sender, t0, view[start:end])


def _checksum(pieces: Sequence[Bytes]) -> bytes:
    """Of short frames 16 bits, which find any damage to one or two bits of them; longer ones can afford 32."""
    if sum(len(piece) for piece in pieces) <= _SHORT:
        short = 0xFFFF
        for piece in pieces:
            short = crc_hqx(piece, short)
        return short.to_bytes(2, "little")
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc.to_bytes(4, "little")
