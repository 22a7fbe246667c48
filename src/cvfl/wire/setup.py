"""Messages before the first round: the parties find out, blinded, which people they share.

    party m                                                server
       Blinded(owner = m, hops = 1)     ──────────▶                           own ids under the own key
                                        ◀──────────        Blinded(owner = j) another's, blinded by others already
       Blinded(owner = j, hops + 1)     ──────────▶                           the same under one key more
                                        ◀──────────        Matched            which of the own ids all parties have

Blinded ids travel in parts, so that everyone works at the same time and progress shows.
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

ELEMENT = 33
"""Bytes of a blinded id: a compressed point of the curve P-256."""
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
    """Part of owner's ids under the keys of `hops` parties; sent by m, or by the server when it passes them on."""

    m: int
    owner: int
    hops: int
    part: int
    parts: int
    spelling: Spelling
    elements: Bytes


@dataclass(frozen=True)
class Matched:
    """For each of the `count` ids that the receiver sent, in that order, one bit: whether all parties have it."""

    count: int
    bits: Bytes


Setup = Blinded | Matched


def separate(elements: Bytes) -> list[bytes]:
    """The blinded ids one by one."""
    return [bytes(elements[at : at + ELEMENT]) for at in range(0, len(elements), ELEMENT)]


_HEAD = "<HHIIB"


def encode_setup(message: Setup) -> bytes:
    """The frame of a message."""
    match message:
        case Blinded(m, owner, hops, part, parts, spelling, elements):
            return seal(BLINDED, m, 0, [struct.pack(_HEAD, owner, hops, part, parts, spelling), elements])
        case Matched(count, bits):
            return seal(MATCHED, SERVER, 0, [struct.pack("<I", count), bits])


def decode_setup(frame: Bytes, max_body: int = MAX_BODY) -> Setup:
    """The message in a frame; ids and bits stay views of it."""
    kind, sender, t0, body = unseal(frame, max_body)
    reader = Reader(body)
    if kind == BLINDED and t0 == 0:
        owner, hops, part, parts, spelling = reader.read(_HEAD, "blinded ids")
        over = reader.left % ELEMENT
        if owner == SERVER or part >= parts or spelling not in set(Spelling) or over not in (0, SEAL):
            raise DecodeError(f"part {part} of {parts} of the blinded ids of role {owner} is malformed")
        return Blinded(sender, owner, hops, part, parts, Spelling(spelling), reader.take(reader.left, "blinded ids"))
    if kind == MATCHED and t0 == 0 and sender == SERVER:
        (count,) = reader.read("<I", "number of ids")
        bits = reader.take(packed_size(count, 1), "bits")
        reader.finish()
        unpack(bits, 1, count)  # refuses unused bits that are set
        return Matched(count, bits)
    raise DecodeError(f"a message of kind {kind}, role {sender} and round {t0} before the first round")
