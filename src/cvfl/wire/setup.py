"""Messages before the first round: the parties find out, blinded, which people they share.

    party m                                                server
       Blinded(owner = m, hops = 1)     ──────────▶                           own ids under the own key
                                        ◀──────────        Blinded(owner = j) another's, blinded by others already
       Blinded(owner = j, hops + 1)     ──────────▶                           the same under one key more; a short
                                                                              hash of each when it was the last key
                                        ◀──────────        Matched            which of the own ids all parties have

Blinded ids travel in parts, so that everyone works at the same time and progress shows. When roles go on with an
earlier alignment, `Gone` says which of the ids that the server has are no longer there, and only new ones travel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from cvfl.errors import DecodeError
from cvfl.types import SERVER
from cvfl.wire.bits import packed_size, unpack
from cvfl.wire.frame import MAX_BODY, Bytes, seal, unseal
from cvfl.wire.packet import Reader

POINT = 32
"""Bytes of a blinded id on its way: the u-coordinate of a point of Curve25519."""
SEAL = 16
"""Bytes that sealing adds to blinded ids on their way from party to party."""
BLINDED, MATCHED = 5, 6


class Spelling(IntEnum):
    """How a party's ids are written; a difference is the usual reason why nothing matches."""

    TEXT = 0
    INTEGER = 1
    PADDED = 2


@dataclass(frozen=True)
class Blinded:
    """Part of owner's ids under the keys of `hops` parties; sent by m, or by the server when it passes them on.

    Each has `size` bytes: a point that is under way to the next party, or, for the server, a short hash of it.
    """

    m: int
    owner: int
    hops: int
    part: int
    parts: int
    spelling: Spelling
    size: int
    elements: Bytes


@dataclass(frozen=True)
class Matched:
    """For each of the ids that the receiver sent, in that order, one bit: whether all parties have it; `count` in all.

    In an outer alignment: whether the label holder has it. The label holder gets one bit an id for each other party,
    one party after another: whether this one has it.
    """

    count: int
    bits: Bytes


@dataclass(frozen=True)
class Gone:
    """For each of the `count` ids that the server has of party m, in their order, one bit: whether it is gone."""

    m: int
    count: int
    bits: Bytes


Setup = Blinded | Matched | Gone


def separate(elements: Bytes, size: int) -> list[bytes]:
    """The blinded ids one by one."""
    return [bytes(elements[at : at + size]) for at in range(0, len(elements), size)]


_HEAD = "<HHIIBB"


def encode_setup(message: Setup) -> bytes:
    """The frame of a message."""
    match message:
        case Blinded(m, owner, hops, part, parts, spelling, size, elements):
            return seal(BLINDED, m, 0, [struct.pack(_HEAD, owner, hops, part, parts, spelling, size), elements])
        case Matched(count, bits):
            return seal(MATCHED, SERVER, 0, [struct.pack("<I", count), bits])
        case Gone(m, count, bits):
            return seal(MATCHED, m, 0, [struct.pack("<I", count), bits])


def decode_setup(frame: Bytes, max_body: int = MAX_BODY) -> Setup:
    """The message in a frame; ids and bits stay views of it."""
    kind, sender, _, body = unseal(frame, max_body)
    reader = Reader(body)
    if kind == BLINDED:
        owner, hops, part, parts, spelling, size = reader.read(_HEAD, "blinded ids")
        whole = 1 <= size <= POINT and reader.left % size in (0, SEAL % size)
        if owner == SERVER or part >= parts or spelling not in set(Spelling) or not whole:
            raise DecodeError(f"part {part} of {parts} of the blinded ids of role {owner} is malformed")
        elements = reader.take(reader.left, "blinded ids")
        return Blinded(sender, owner, hops, part, parts, Spelling(spelling), size, elements)
    if kind == MATCHED:
        (count,) = reader.read("<I", "number of ids")
        bits = reader.take(packed_size(count, 1), "bits")
        reader.finish()
        unpack(bits, 1, count)  # refuses unused bits that are set
        return Matched(count, bits) if sender == SERVER else Gone(sender, count, bits)
    raise DecodeError(f"a message of kind {kind} and role {sender} before the first round")
