"""What is fuzzed: functions that take any bytes and may refuse them, but never fail otherwise.

`fuzz.py` looks for bytes that break them, and tests/property/test_corpus.py tries those that once reached new code.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import torch
from safetensors.torch import save

from cvfl.compress import Context, Masked, Scalar, build
from cvfl.compress.registry import AUTO
from cvfl.config.sections import DataConfig
from cvfl.data.tables.split import Part
from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.federation.agreement.admission import Kept, admitted, check_kept, common_round
from cvfl.federation.agreement.facts import facts_of, read_facts
from cvfl.federation.agreement.targets import read_present, read_targets
from cvfl.privacy.keys import Keyring, SessionKey
from cvfl.protocol import Loss
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.coding.codec import Codec
from cvfl.rng import stream
from cvfl.runtime.checkpoint import digest, parsed
from cvfl.types import SERVER
from cvfl.wire import (
    Answer,
    Ask,
    Away,
    Broadcast,
    Folded,
    Gradient,
    Message,
    Owing,
    Passed,
    Report,
    Runs,
    Stop,
    decode,
    decode_packet,
    encode_packet,
)
from cvfl.wire.control import Begin, Control, Have, Hello, Offer, Settle, encode_control
from cvfl.wire.frame import seal
from cvfl.wire.read import read_frame
from cvfl.wire.targets import Targets

SPECS = ["identity", "scalar:bits=3", "scalar:bits=11,low=-1,high=1", "lattice:bits=3", "lattice:bits=9,low=-1,high=1"]
SPECS += ["topk:bits=8", "topk:bits=16", "topk:bits=8,by=entry", "topk:bits=1,by=entry", "schedule(lattice:bits=1)"]
SPECS += ["deadzone", "shaped", "entropy(identity)", "entropy(scalar:bits=2)", "entropy(lattice:bits=3)"]
SPECS += [
    "entropy(topk:bits=4,by=entry)",
    "entropy(deadzone)",
    "feedback(scalar:bits=2)",
    "feedback(entropy(deadzone))",
]
SPECS += [*AUTO.values()]
SHAPE, DTYPE, T0 = (40, 6), torch.float32, 2
"""What the receivers of a round expect: enough symbols that an entropy coder models them."""
SHARES = DataConfig(test_share=0.25)
NAMES, TERMS = ("bank", "shop"), {"seed": 1}
RING, KEY = Keyring(NAMES, "terms"), SessionKey()


def embedding(t0: int) -> torch.Tensor:
    return torch.from_numpy(stream(7, "fuzz", t0).uniform(math.prod(SHAPE))).reshape(SHAPE).to(DTYPE) * 2 - 1


def conversation(spec: str) -> tuple[Codec, bytes]:
    """A receiver after two rounds in which both ends have learned, and the packet of the next one."""
    sender, receiver = (Codec(build(spec), 7, 1, "bank") for _ in range(2))
    for t0 in range(T0 + 1):
        h = embedding(t0)
        data = sender.encode(h, t0)
        if t0 < T0:
            receiver.decode(data, t0, SHAPE, DTYPE)
            sender.observe(h.cos(), 0.5)
    receiver.state_dict(T0)  # it learns when the round is over
    return receiver, data


def masked() -> tuple[Aggregate, bytes]:
    """The sum of masked embeddings of three parties, with masks of zero, and the packet of one."""
    compressor = Masked(Scalar(bits=5, low=-1, high=1), len(NAMES) + 1)
    compressor.mask = lambda part, t0, n: np.zeros(n, dtype=np.uint16)
    share = compressor.compress(embedding(T0), Context(7, T0, 1))
    return Aggregate(compressor, 7, (*NAMES, "pharmacy")), encode_packet(share)


RECEIVERS = [conversation(spec) for spec in SPECS]
STATES = [codec.state_dict(T0) for codec, _ in RECEIVERS]
SUM, SHARE = masked()
CHOICES = len(SPECS) + 1


def open_packet(data: bytes | memoryview, which: int) -> None:
    """Read a packet as its receivers would; what one takes for sound it goes on from in the next round."""
    if which == len(SPECS):
        total = SUM.add({1: data, 2: SHARE, 3: SHARE}, T0, SHAPE, DTYPE)
        assert SUM.decode(total, T0, SHAPE, DTYPE).shape == SHAPE
        return
    codec, _ = RECEIVERS[which]
    assert codec.decode(data, T0, SHAPE, DTYPE).shape == SHAPE
    codec.state_dict(T0 + 1)
    codec.load_state_dict(STATES[which])


def any_shape(data: bytes | memoryview) -> None:
    """A packet for a receiver that expects a single number pays for its memory with its length."""
    packet = decode_packet(data, ())
    size = sum(plane.symbols.numel() * plane.symbols.element_size() for plane in packet.planes)
    assert size <= 64 * len(data), "more memory than the bytes pay for"


def wire(data: bytes) -> None:
    """The first byte says who reads the rest, the second as what: a packet, a frame, or the body of a frame."""
    which, how, rest = data[0] % CHOICES, data[1] % 15, data[2:]
    if how == 0:
        open_packet(rest, which)
        return
    if how > 1:
        rest = seal(how - 1, 1, T0, [rest])
    for packet in packets(decode(rest)):
        any_shape(packet)
        open_packet(packet, which)


def packets(message: Message) -> tuple[bytes | memoryview, ...]:
    match message:
        case Broadcast():
            return *message.model, *(packet for _, packet in message.embeddings)
        case Folded():
            return message.partial, *message.model
        case Gradient(packet=packet, weights=weights) if weights:
            return packet, weights
        case Passed() | Report() | Stop() | Ask() | Answer() | Runs() | Away() | Owing():
            return ()
    return (message.packet,)


def setup(data: bytes) -> None:
    """The first byte is the kind and the sender of a sound frame, the rest its body; what is said in it is used."""
    message = read_frame(seal(5 + data[0] % 4, data[0] // 4 % 4, 0, [data[1:]]))
    match message:
        case Targets():
            read_present(message, "bank", len(message.present), message.sealed)
            read_targets(message, "bank", SHARES, (Part.TRAIN,) if message.m else tuple(Part))
        case Hello():
            facts_of(NAMES[:1], {1: message.offer}, [3, 0, 1], Loss.BINARY, 1)
            check_kept(message.name, Kept(message.run, message.rounds), Kept("", ()), 10)
            admitted(message, None, NAMES, TERMS)
        case Have():
            common_round(Kept("", (10, 20)), [Kept(message.run, message.rounds)], 10)
        case Settle():
            own = RING.signed(1, message.session, KEY)
            RING.agree(1, message.session, KEY, [own, *message.keys[1:]])
        case Begin(facts=facts):
            for spec in read_facts(facts).compressors:
                facts_of(NAMES[:1], {1: Offer(width=1, compressor=spec, label=False)}, [3, 0, 1], Loss.BINARY, 1)
    if isinstance(message, Control):
        assert read_frame(encode_control(message, SERVER)) == message


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
        if len(data) > 1:
            TARGETS[target](data)
