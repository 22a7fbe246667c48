"""Messages between a party and the server, and the frames that carry them.

party m                                     server
   Embedding(t0, m)        ──────────▶                     C_m(h_m) of the round's batch
                           ◀──────────      Broadcast(t0)  Algorithm 1: C_0(theta_0) and the others' packets
                           ◀──────────      Folded(t0)     the same folded: the sum over the others, and own pieces
                           ◀──────────      Gradient(t0)   Algorithm 2: the loss's gradient in h_m, perhaps its slope
   Evaluation(t0, m)       ──────────▶                     h_m of the held-out rows
                           ◀──────────      Stop(t0)       the run is over; which evaluated round's models are kept

In a prediction, whose rows come in batches t0:

   Prediction(t0, m)       ──────────▶                     h_m of a batch of new rows
                           ◀──────────      Prediction(t0) their scores, to the party that had the label

What is said when rows are served one by one, as somebody asks for them, is in serving.py.

When a party holds the labels, these messages go between it and the others, and the server cannot read them:

   Passed(t0, m, to)       ──────────▶      ──────────▶    party `to`: one of the messages above, sealed by party m
   Report(t0, m)           ──────────▶                     the label holder: what the server may know of a round
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from cvfl.errors import DecodeError
from cvfl.types import SERVER
from cvfl.wire.frame import FROM_SERVER, MAX_BODY, Bytes, Frame, seal, unseal
from cvfl.wire.packet import Reader
from cvfl.wire.serving import SERVING, Answer, Ask, Away, Found, Owing, Runs, Serving, serving_of, serving_parts
from cvfl.wire.varint import varint


@dataclass(frozen=True)
class Embedding:
    """Party m's compressed embedding of round t0's batch."""

    t0: int
    m: int
    packet: Bytes


@dataclass(frozen=True)
class Evaluation:
    """Party m's embedding of the held-out rows after round t0."""

    t0: int
    m: int
    packet: Bytes


@dataclass(frozen=True)
class Prediction:
    """Of batch t0 of new rows: party m's embedding, or from the server (m = 0) the scores."""

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

    `weights` are those that the embedding meets in a linear server model with the squared error: from them a party of
    Q > 1 local steps knows how the gradient changes as its embedding does.
    """

    t0: int
    packet: Bytes
    weights: Bytes = b""


@dataclass(frozen=True)
class Stop:
    """The run is over with the evaluation after round t0, and the models after round `best` are its outcome."""

    t0: int
    best: int


@dataclass(frozen=True)
class Passed:
    """A message of this kind from party m for party `to`, sealed; the server passes it on as it is."""

    t0: int
    m: int
    to: int
    kind: int
    data: Bytes


@dataclass(frozen=True)
class Report:
    """From the label holder: round t0 is over, its loss, and the metrics by part if it was evaluated."""

    t0: int
    m: int
    loss: float
    metrics: Mapping[str, Mapping[str, float]] | None = None


Message = Embedding | Evaluation | Prediction | Broadcast | Folded | Gradient | Stop | Passed | Report | Serving
EMBEDDING, BROADCAST, GRADIENT, EVALUATION, FOLDED, PASSED, REPORT, SLOPED, STOP = 1, 2, 3, 4, 9, 10, 11, 12, 13
PREDICTION = 14
MAX_PACKETS = 1 << 12
"""Most packets of one message: an empty one takes a byte or two there, and a hundred times that in memory."""
MAX_PARTY = (1 << 16) - 1
MAX_REPORT = 1 << 14
SEALED = FROM_SERVER | {EMBEDDING, EVALUATION, PREDICTION, SERVING}
"""Kinds that may be passed on."""
KINDS = SEALED | {PASSED, REPORT}
_KINDS: dict[type[Message], int] = {
    Embedding: EMBEDDING,
    Broadcast: BROADCAST,
    Gradient: GRADIENT,
    Evaluation: EVALUATION,
    Prediction: PREDICTION,
    Folded: FOLDED,
    Stop: STOP,
    Passed: PASSED,
    Report: REPORT,
}


_OF_PARTIES: dict[int, type[Embedding | Evaluation | Prediction]] = {
    EMBEDDING: Embedding,
    EVALUATION: Evaluation,
    PREDICTION: Prediction,
}


class _Parts(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    train: dict[str, float]
    validation: dict[str, float]
    test: dict[str, float]


class _Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    loss: FiniteFloat
    metrics: _Parts | None


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return seal(*parts_of(message))


def parts_of(message: Message) -> tuple[int, int, int, list[Bytes]]:
    """What the frame of a message says: kind, sender, t0, and the body in parts."""
    parts: list[Bytes]
    match message:
        case Embedding(t0, m, packet) | Evaluation(t0, m, packet) | Prediction(t0, m, packet):
            sender, parts = m, [packet]
        case Gradient(t0, packet, weights) if weights:
            return SLOPED, SERVER, t0, _sized([packet, weights])
        case Gradient(t0, packet):
            sender, parts = SERVER, [packet]
        case Broadcast(t0, model, embeddings):
            sender, parts = SERVER, _listed([(SERVER, packet) for packet in model] + list(embeddings))
        case Folded(t0, partial, model):
            sender, parts = SERVER, _sized([partial, *model])
        case Stop(t0, best):
            sender, parts = SERVER, [varint(best)]
        case Passed(t0, sender, to, kind, data):
            parts = [varint(to) + bytes([kind]), data]
        case Report(t0, sender, loss, metrics):
            parts = [json.dumps({"loss": loss, "metrics": metrics}, separators=(",", ":")).encode()]
        case Ask() | Found() | Answer() | Runs() | Away() | Owing():
            sender, t0, parts = serving_parts(message)
            return SERVING, sender, t0, parts
    return _KINDS[type(message)], sender, t0, parts


def decode(frame: Bytes, max_body: int = MAX_BODY) -> Message:
    """The message in a frame; packets stay unopened views of it."""
    return message_of(unseal(frame, max_body))


def message_of(frame: Frame) -> Message:
    """The message that a frame's header and body are."""
    kind, sender, t0, body = frame
    if (kind in FROM_SERVER) != (sender == SERVER) and kind not in (PREDICTION, SERVING):
        raise DecodeError(f"a message of kind {kind} does not come from role {sender}")
    match kind:
        case 1 | 4 | 14:
            return _OF_PARTIES[kind](t0, sender, body)
        case 2:
            entries = _unlisted(body)
            matrices = sum(m == SERVER for m, _ in entries)
            model = tuple(packet for _, packet in entries[:matrices])
            return Broadcast(t0, model, tuple(entries[matrices:]))
        case 3:
            return Gradient(t0, body)
        case 9:
            partial, *pieces = _unsized(body)
            return Folded(t0, partial, tuple(pieces))
        case 10:
            return _passed(t0, sender, body)
        case 11:
            return _report(t0, sender, body)
        case 12:
            gradient, *weights = _unsized(body)
            if len(weights) != 1 or not weights[0]:
                raise DecodeError(f"a gradient with {len(weights)} packets of weights, not 1")
            return Gradient(t0, gradient, weights[0])
        case 13:
            return _stop(t0, body)
        case 15:
            return serving_of(sender, t0, body)
        case _:
            raise DecodeError(f"unknown message kind {kind}")


def _stop(t0: int, body: memoryview) -> Stop:
    reader = Reader(body)
    best = reader.varint()
    reader.finish()
    if best > t0:
        raise DecodeError(f"round {best} as the best one after round {t0}")
    return Stop(t0, best)


def _passed(t0: int, m: int, body: memoryview) -> Passed:
    reader = Reader(body)
    to = reader.varint()
    (kind,) = reader.take(1, "kind")
    if kind not in SEALED or to in (SERVER, m) or to > MAX_PARTY:
        raise DecodeError(f"a message of kind {kind} from party {m} cannot be passed on to role {to}")
    return Passed(t0, m, to, kind, reader.take(reader.left, "sealed message"))


def _report(t0: int, m: int, body: memoryview) -> Report:
    if len(body) > MAX_REPORT:
        raise DecodeError(f"a report of {len(body)} bytes, more than {MAX_REPORT}")
    try:
        figures = _Figures.model_validate_json(bytes(body))
    except ValidationError:
        raise DecodeError("a report that is malformed") from None
    return Report(t0, m, figures.loss, figures.metrics.model_dump() if figures.metrics else None)


def _listed(entries: list[tuple[int, Bytes]]) -> list[Bytes]:
    """A broadcast's body: how many packets; then each behind its role and its length, which the last one lacks."""
    parts: list[Bytes] = [varint(len(entries))]
    for place, (m, packet) in enumerate(entries, start=1):
        parts += (varint(m), b"" if place == len(entries) else varint(len(packet)), packet)
    return parts


def _unlisted(body: memoryview) -> list[tuple[int, memoryview]]:
    reader = Reader(body)
    if (count := reader.varint()) > MAX_PACKETS:
        raise DecodeError(f"{count} packets, more than a message may have")
    entries: list[tuple[int, memoryview]] = []
    for place in range(1, count + 1):
        m = reader.varint()
        entries.append((m, reader.take(reader.left if place == count else reader.varint(), "packet")))
    reader.finish()
    roles = [m for m, _ in entries]
    parties = roles[roles.count(SERVER) :]
    if SERVER in parties or any(a >= b for a, b in itertools.pairwise(parties)) or max(roles, default=0) > MAX_PARTY:
        raise DecodeError("packets are not in the order: server model, then parties ascending")
    return entries


def _sized(packets: list[Bytes]) -> list[Bytes]:
    """A folded message's body: how many packets; then each behind its length, which the last one lacks."""
    parts: list[Bytes] = [varint(len(packets))]
    for packet in packets[:-1]:
        parts += (varint(len(packet)), packet)
    return [*parts, packets[-1]]


def _unsized(body: memoryview) -> list[memoryview]:
    reader = Reader(body)
    if (count := reader.varint()) > MAX_PACKETS:
        raise DecodeError(f"{count} packets, more than a message may have")
    if not count:
        raise DecodeError("a message without its first packet")
    packets = [reader.take(reader.varint(), "packet") for _ in range(count - 1)]
    return [*packets, reader.take(reader.left, "packet")]
