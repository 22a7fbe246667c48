"""Messages between a party and the server, and the frames that carry them.

party m                                     server
   Embedding(t0, m)        ──────────▶                     C_m(h_m) of the round's batch
                           ◀──────────      Broadcast(t0)  Algorithm 1: C_0(theta_0) and the others' packets
                           ◀──────────      Folded(t0)     the same folded: the sum over the others, and own pieces
                           ◀──────────      Gradient(t0)   Algorithm 2: the loss's gradient in h_m, perhaps its slope
   Evaluation(t0, m)       ──────────▶                     h_m of the test rows, not compressed
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

from cvfl.compress.varint import varint
from cvfl.errors import DecodeError
from cvfl.types import SERVER
from cvfl.wire.frame import MAX_BODY, Bytes, seal, unseal
from cvfl.wire.packet import Reader


@dataclass(frozen=True)
class Embedding:
    """Party m's compressed embedding of round t0's batch."""

    t0: int
    m: int
    packet: Bytes


@dataclass(frozen=True)
class Evaluation:
    """Party m's exact embedding of the test rows after round t0."""

    t0: int
    m: int
    packet: Bytes


@dataclass(frozen=True)
class Broadcast:
    """What a party needs for its Q local steps: the server model and the other parties' packets, unopened."""

    t0: int
    model: tuple[Bytes, ...]
    embeddings: tuple[tuple[int, Bytes], ...]


@dataclass(frozen=True)
class Folded:
    """What a party needs when the server model starts with a sum: that over the others, and its pieces of the model."""

    t0: int
    partial: Bytes
    model: tuple[Bytes, ...]


@dataclass(frozen=True)
class Gradient:
    """The gradient of the loss in the receiving party's embedding (Algorithm 2).

    `weights` are those that the embedding meets in a linear server model: from them a party of Q > 1 local steps knows
    how the gradient changes as its embedding does.
    """

    t0: int
    packet: Bytes
    weights: Bytes = b""


Message = Embedding | Evaluation | Broadcast | Folded | Gradient
EMBEDDING, BROADCAST, GRADIENT, EVALUATION, FOLDED, SLOPED = 1, 2, 3, 4, 9, 12
MAX_PACKETS = 1 << 12
"""Most packets of a folded message: an empty one takes a byte there, and a hundred times that in memory."""
KINDS = frozenset((EMBEDDING, BROADCAST, GRADIENT, EVALUATION, FOLDED, SLOPED))
_FROM_SERVER = frozenset((BROADCAST, GRADIENT, FOLDED, SLOPED))
_KINDS: dict[type[Message], int] = {
    Embedding: EMBEDDING,
    Broadcast: BROADCAST,
    Gradient: GRADIENT,
    Evaluation: EVALUATION,
    Folded: FOLDED,
}


def encode(message: Message) -> bytes:
    """The frame of a message."""
    match message:
        case Embedding(t0, m, packet) | Evaluation(t0, m, packet):
            sender, parts = m, [packet]
        case Gradient(t0, packet, weights) if weights:
            return seal(SLOPED, SERVER, t0, _sized([packet, weights]))
        case Gradient(t0, packet):
            sender, parts = SERVER, [packet]
        case Broadcast(t0, model, embeddings):
            sender, parts = SERVER, _listed([(SERVER, packet) for packet in model] + list(embeddings))
        case Folded(t0, partial, model):
            sender, parts = SERVER, _sized([partial, *model])
    return seal(_KINDS[type(message)], sender, t0, parts)


def decode(frame: Bytes, max_body: int = MAX_BODY) -> Message:
    """The message in a frame; packets stay unopened views of it."""
    kind, sender, t0, body = unseal(frame, max_body)
    if (kind in _FROM_SERVER) != (sender == SERVER):
        raise DecodeError(f"a message of kind {kind} does not come from role {sender}")
    match kind:
        case 1:
            return Embedding(t0, sender, body)
        case 2:
            entries = _unlisted(body)
            matrices = sum(m == SERVER for m, _ in entries)
            model = tuple(packet for _, packet in entries[:matrices])
            return Broadcast(t0, model, tuple(entries[matrices:]))
        case 3:
            return Gradient(t0, body)
        case 4:
            return Evaluation(t0, sender, body)
        case 9:
            partial, *pieces = _unsized(body)
            return Folded(t0, partial, tuple(pieces))
        case 12:
            gradient, *weights = _unsized(body)
            if len(weights) != 1 or not weights[0]:
                raise DecodeError(f"a gradient with {len(weights)} packets of weights, not 1")
            return Gradient(t0, gradient, weights[0])
        case _:
            raise DecodeError(f"unknown message kind {kind}")


def _listed(entries: list[tuple[int, Bytes]]) -> list[Bytes]:
    """A broadcast's body: u16 count, then (u16 role, u32 length, packet) for each."""
    parts: list[Bytes] = [struct.pack("<H", len(entries))]
    for m, packet in entries:
        parts += (struct.pack("<HI", m, len(packet)), packet)
    return parts


def _unlisted(body: memoryview) -> list[tuple[int, memoryview]]:
    reader = Reader(body)
    (count,) = reader.read("<H", "packet count")
    entries: list[tuple[int, memoryview]] = []
    for _ in range(count):
        m, size = reader.read("<HI", "packet length")
        entries.append((m, reader.take(size, "packet")))
    reader.finish()
    roles = [m for m, _ in entries]
    parties = roles[roles.count(SERVER) :]
    if SERVER in parties or any(a >= b for a, b in itertools.pairwise(parties)):
        raise DecodeError("packets are not in the order: server model, then parties ascending")
    return entries


def _sized(packets: list[Bytes]) -> list[Bytes]:
    """A folded message's body: how many packets, then each behind its length."""
    parts: list[Bytes] = [varint(len(packets))]
    for packet in packets:
        parts += (varint(len(packet)), packet)
    return parts


def _unsized(body: memoryview) -> list[memoryview]:
    reader = Reader(body)
    count = reader.varint()
    if count > MAX_PACKETS:
        raise DecodeError(f"{count} packets, more than a message may have")
    packets = [reader.take(reader.varint(), "packet") for _ in range(count)]
    reader.finish()
    if not packets:
        raise DecodeError("a message without its first packet")
    return packets
