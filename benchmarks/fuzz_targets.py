"""What is fuzzed: functions that take any bytes and may refuse them, but never fail otherwise.

`fuzz.py` looks for bytes that break them, and tests/property/test_corpus.py tries those that once reached new code.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable

import torch
from safetensors.torch import save

from cvfl.compress import Compressor, Context, build
from cvfl.config.schema import DataConfig
from cvfl.data.tables.split import Part
from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.federation.targets import read_targets
from cvfl.federation.terms import read_facts
from cvfl.runtime.checkpoint import digest, parsed
from cvfl.wire import Broadcast, Folded, Message, Passed, Report, decode, decode_packet
from cvfl.wire.control import Begin, Targets
from cvfl.wire.frame import seal
from cvfl.wire.message import FROM_SERVER
from cvfl.wire.read import read_frame

SPECS = ["identity", "scalar:bits=3", "scalar:bits=11,low=-1,high=1", "lattice:bits=3", "lattice:bits=9,low=-1,high=1"]
SPECS += ["topk:bits=8", "topk:bits=16", "topk:bits=8,by=entry", "topk:bits=1,by=entry", "schedule(lattice:bits=1)"]
COMPRESSORS = [build(spec) for spec in SPECS]
SHARES = DataConfig(test_share=0.25)


def open_packet(data: bytes | memoryview, compressor: Compressor) -> None:
    h = compressor.decompress(decode_packet(data), Context(seed=7, t0=3, m=1))
    assert h.numel() * h.element_size() <= 64 * len(data), "more memory than the bytes pay for"


def wire(data: bytes) -> None:
    """The first byte says how to read the rest: as a packet, a frame, or the body of a sound frame of some kind."""
    compressor, how, rest = COMPRESSORS[data[0] % len(COMPRESSORS)], data[0] // len(COMPRESSORS), data[1:]
    if how % 14 == 0:
        open_packet(rest, compressor)
        return
    if how % 14 > 1:
        kind = how % 14 - 1
        head = struct.pack("<4sBBHII", b"cvfl", 1, kind, int(kind not in FROM_SERVER), 3, len(rest))
        rest = head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest
    for packet in packets(decode(rest)):
        open_packet(packet, compressor)


def packets(message: Message) -> tuple[bytes | memoryview, ...]:
    match message:
        case Broadcast():
            return *message.model, *(packet for _, packet in message.embeddings)
        case Folded():
            return message.partial, *message.model
        case Passed() | Report():
            return ()
    return (message.packet,)


def setup(data: bytes) -> None:
    """The first byte is the kind and the sender of a sound frame, the rest its body."""
    message = read_frame(seal(5 + data[0] % 4, data[0] // 4 % 4, 0, [data[1:]]))
    match message:
        case Begin(facts=facts):
            read_facts(facts)
        case Targets():
            read_targets(message, "bank", SHARES, (Part.TRAIN,) if message.m else tuple(Part))


def checkpoint(data: bytes) -> None:
    """The file itself, or a text with the right digest in a file that is whole."""
    if data[0] % 2:
        parsed(data[1:])
        return
    text = data[1:].decode("utf-8", "replace")
    tensors = {"0": torch.zeros(2, 3)}
    parsed(save(tensors, {"state": text, "of": "", "sha256": digest(text, tensors)}))


TARGETS: dict[str, Callable[[bytes], None]] = {"wire": wire, "setup": setup, "checkpoint": checkpoint}


def tried(target: str, data: bytes) -> None:
    """One input: it ends in a value or in a typed refusal, or this raises."""
    with contextlib.suppress(DecodeError, RemoteProtocolError):
        if data:
            TARGETS[target](data)
