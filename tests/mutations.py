"""Valid frames, ways to damage them, and the whole way of a frame through a receiver; shared by the fuzz tests."""

from __future__ import annotations

import binascii
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from cvfl.compress import Compressor, Context, build
from cvfl.errors import DecodeError
from cvfl.wire import (
    Answer,
    Ask,
    Away,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Found,
    Gradient,
    Message,
    Owing,
    Passed,
    Prediction,
    Report,
    Runs,
    Stop,
    decode,
    decode_packet,
    encode,
    encode_packet,
)
from cvfl.wire.frame import head_of
from cvfl.wire.varint import varint

SPECS = [
    "identity",
    "scalar:bits=1",
    "scalar:bits=3,low=-1,high=1",
    "scalar:bits=11",
    "lattice:bits=2",
    "lattice:bits=9,low=-1,high=1",
    "topk:bits=1",
    "topk:bits=8",
    "topk:bits=2,by=entry",
    "schedule(lattice:bits=1)",
    "deadzone:step=0.25",
]
LEARNING = [
    "entropy(identity)",
    "entropy(scalar:bits=2)",
    "entropy(lattice:bits=3,low=-1,high=1)",
    "entropy(topk:bits=4,by=entry)",
    "entropy(deadzone)",
    "shaped",
    "entropy(shaped)",
    "feedback(entropy(shaped))",
    "feedback(entropy(deadzone))",
    "feedback(scalar:bits=2)",
]
SHAPES = [(), (0, 4), (1, 1), (3, 5), (6, 8), (2, 3, 4), (2, 600), (40, 40)]
COMPRESSORS = [build(spec) for spec in SPECS]
DTYPES = [torch.float32, torch.float64]
OF_A_SHAPE = len(COMPRESSORS) * len(DTYPES)
CONTEXT = Context(seed=1, t0=2, m=3)
MIB = 1 << 20


def packets() -> list[bytes]:
    """A packet of every compressor for every shape, in float32 and float64."""
    found: list[bytes] = []
    for shape in SHAPES:
        random = torch.Generator().manual_seed(len(found))
        h = torch.rand(shape, generator=random) * 2 - 1
        for compressor in COMPRESSORS:
            found += [encode_packet(compressor.compress(h.to(dtype), CONTEXT)) for dtype in DTYPES]
    return found


def shape_of(i: int) -> tuple[int, ...]:
    """The shape of the tensors in packet i, and of those in frame i."""
    return SHAPES[i // OF_A_SHAPE]


class Case(NamedTuple):
    """A receiver after two rounds, and the packet of the third, of this shape and dtype."""

    receiver: Compressor
    data: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


def cases() -> list[Case]:
    """What both ends of each compressor that learns have come to, for every shape."""
    return [conversation(spec, shape, dtype) for spec in LEARNING for shape in SHAPES for dtype in DTYPES]


def conversation(spec: str, shape: tuple[int, ...], dtype: torch.dtype) -> Case:
    """Two rounds between two ends; in the second a gradient has made a basis, if there is to be one."""
    sender, receiver = build(spec), build(spec)
    for seed in range(2):
        h = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1).to(dtype)
        packet = decode_packet(encode_packet(sender.compress(h, CONTEXT)), shape)
        decoded = receiver.decompress(packet, CONTEXT)
        for end in (sender, receiver):
            end.settle(packet, decoded, CONTEXT)
        sender.observe(h.cos(), 0.5, h)
    return Case(receiver, encode_packet(sender.compress(h * 0.9, CONTEXT)), shape, dtype)


def frames() -> list[bytes]:
    """A frame of each message, around packets of all sorts."""
    found = []
    every = packets()
    for i, packet in enumerate(every):
        same = every[i - i % OF_A_SHAPE :][:OF_A_SHAPE]  # packets of this shape
        others = tuple((m, same[(i * 7 + m) % OF_A_SHAPE]) for m in (1, 2, 9))
        messages: list[Message] = [
            Embedding(2, 3, packet),
            Evaluation(2, 3, packet),
            Gradient(2, packet),
            Gradient(2, packet, packet),
            Broadcast(2, (packet, same[(i * 5) % OF_A_SHAPE]), others),
            Folded(2, packet, (same[(i * 5) % OF_A_SHAPE], same[(i * 3) % OF_A_SHAPE])),
            Stop(2, i % 3),
            Passed(2, 3, 1, 1, packet),
            Report(2, 3, i / 7, {part: {"loss": i / 3} for part in ("train", "validation", "test")}),
            Ask(2, 3, "0f3a", bytes(16 * (1 + i % 4))),
            Found(2, 3, 1 + i % 9, bytes(1 + (i % 9) // 8), packet),
            Answer(2, 3, 2, (b"\7", b"\5", b"\1"), bytes(16)),
            Runs(3, ("0f3a",) * (i % 3)),
            Away((1, 2)),
            Owing(2, 0, (1, 2)[: i % 3]),
        ]
        found.append(encode(messages[i % len(messages)]))
    return found


def sealed(data: bytes | bytearray) -> bytes:
    """Header and body with the checksum that they ask for, so that what is inside is reached."""
    short = len(data) <= 1024
    crc = binascii.crc_hqx(data, 0xFFFF) if short else zlib.crc32(data)
    return bytes(data) + crc.to_bytes(2 if short else 4, "little")


def unsealed(frame: bytes) -> bytes:
    """Header and body of a frame."""
    return frame[: -2 if len(frame) <= 1026 else -4]


def mutated(frame: bytes, other: bytes, draw: Iterator[int]) -> bytes:
    """Damage a frame: bits, bytes, lengths, ends, pieces of another; mostly with the checksum put right."""
    whole = unsealed(frame)
    data, head = bytearray(whole), head_of(frame).size
    for _ in range(1 + next(draw) % 3 // 2):
        first = head if next(draw) % 8 else 0
        at = first + next(draw) % max(len(data) - first, 1)
        match next(draw) % 13:
            case 0 | 1 | 2 | 3 | 4 if at < len(data):
                data[at] ^= 1 << next(draw) % 8
            case 5 | 6 if at < len(data):
                data[at] = (0, 1, 2, 8, 16, 32, 64, 127, 128, 255)[next(draw) % 10]
            case 7:
                del data[at:]
            case 8:
                start = next(draw) % max(len(other), 1)
                data[at : at + next(draw) % 40] = other[start : start + next(draw) % 40]
            case 9:
                # A number of any size in the part where counts and widths are.
                at = head + next(draw) % 48
                data[at : at + 4] = struct.pack("<I", next(draw) % 2 ** (1 + next(draw) % 32))
            case 10:
                # The same as a number of varying length.
                at = head + next(draw) % 16
                data[at : at + 1] = varint(next(draw) % 2 ** (1 + next(draw) % 32))
            case 11:
                data += bytes(next(draw) % 9)
            case _:
                del data[at : at + 1 + next(draw) % 4]
    return sealed(data) if next(draw) % 8 else bytes(data) + frame[len(whole) :]


def received(frame: bytes, compressor: Compressor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Everything in a frame, decompressed."""
    match decode(frame):
        case Embedding(_, _, packet) | Evaluation(_, _, packet) | Prediction(_, _, packet) | Gradient(_, packet, b""):
            return [opened(packet, compressor, shape)]
        case Gradient(_, packet, weights):
            return [opened(data, compressor, shape) for data in (packet, weights)]
        case Broadcast(_, model, others):
            return [opened(packet, compressor, shape) for packet in (*model, *(packet for _, packet in others))]
        case Folded(_, partial, pieces):
            return [opened(packet, compressor, shape) for packet in (partial, *pieces)]
        case Found(_, _, _, _, packet):
            return [opened(packet, compressor, shape)]
        case Passed() | Report() | Stop() | Ask() | Answer() | Runs() | Away() | Owing():
            return []  # sealed, or figures: there is no tensor to be found


def opened(data: bytes | memoryview, compressor: Compressor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor in a packet, of the shape that is expected."""
    return compressor.decompress(decode_packet(data, shape), CONTEXT)


def endless(seed: int, block: int = 1 << 16) -> Iterator[int]:
    """Random numbers below 2^31 from a fixed seed."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.integers(0, 2**31, block).tolist()


def outcome(action: Callable[..., Any], *arguments: object) -> Any:
    """The value, or the DecodeError; anything else that is raised fails the test."""
    try:
        return action(*arguments)
    except DecodeError as error:
        return error


def peak(action: Callable[..., Any], *arguments: object) -> int:
    """Bytes that Python and NumPy held at most at one time, above what they held before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        kept = outcome(action, *arguments)
        most = tracemalloc.get_traced_memory()[1] - before
        del kept
        return most
    finally:
        tracemalloc.stop()
