"""docs/wire-format.md, the golden files and the code say the same.

page block == golden file        each block that names a file is that file
golden file == code              encoding its `#` lines gives its bytes, decoding its bytes gives its `#` lines
"""

import ast
import hashlib
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import oracle
from cvfl.compress import Compressor, Context, Packet, Plane, build
from cvfl.compress.topk import decode_indices, encode_indices
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.sealing import Sealing
from cvfl.rng import DITHER, stream
from cvfl.wire import (
    Answer,
    Ask,
    Away,
    Blinded,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Found,
    Gone,
    Gradient,
    Matched,
    Owing,
    Passed,
    Prediction,
    Report,
    Runs,
    Spelling,
    Stop,
    decode,
    decode_packet,
    decode_setup,
    encode,
    encode_packet,
    encode_setup,
    pack,
    packed_size,
    unpack,
)
from cvfl.wire.control import Complete, Recall, decode_control, encode_control
from cvfl.wire.targets import Targets

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "wire-format.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```hex tests/golden/(\S+)\n(.*?)^```$", PAGE, flags=re.M | re.S))
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.hex"))}


class Example:
    """A golden file: what its `#` lines say, and its bytes."""

    def __init__(self, name: str) -> None:
        lines = FILES[name].splitlines()
        self.says = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
        self.bytes = bytes.fromhex("".join(line.split(";")[0] for line in lines if not line.startswith("#")))

    def __getitem__(self, key: str):
        return ast.literal_eval(self.says[key])

    def tensor(self, key: str) -> torch.Tensor:
        return torch.tensor(self[key], dtype=getattr(torch, self.says.get("dtype", "float32")))

    def context(self) -> Context:
        words = dict(pair.split("=") for pair in self.says["context"].split())
        return Context(int(words["seed"]), int(words["t0"]), int(words["m"]), words["part"])


def named(prefix: str) -> list[str]:
    return [name for name in FILES if name.startswith(prefix)]


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.numpy().tobytes() == two.numpy().tobytes()


def test_the_page_shows_every_file_and_nothing_else():
    assert BLOCKS.keys() == FILES.keys()
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("name", FILES)
def test_a_block_is_its_file(name):
    assert BLOCKS[name] == FILES[name]


def test_everything_is_covered():
    assert {Example(name)["width"] for name in named("bits-")} == {1, 2, 3, 5, 16}
    packets = {(e.says["compressor"].partition(":")[0], e.says["dtype"]) for e in map(Example, named("packet-"))}
    assert packets >= {("identity", "float32"), ("identity", "float64"), ("scalar", "float32"), ("lattice", "float32")}
    specs = [Example(name).says["compressor"] for name in named("packet-")]
    assert any("scalar" in spec and "low" not in spec for spec in specs)
    assert any("scalar" in spec and "low" in spec for spec in specs)
    assert {"topk:bits=16", "topk:bits=8,by=entry"} <= set(specs)
    assert {spec.partition(":")[0] for spec in specs} >= {"deadzone", "shaped", "feedback(deadzone", "entropy(deadzone"}
    assert {Example(name).says["message"] for name in named("frame-")} == set(MESSAGES)
    assert {Example(name).says["message"] for name in named("setup-")} == set(SETUPS)
    assert {Example(name).says["message"] for name in named("control-")} == set(CONTROLS)
    assert {name.removeprefix("indices-") for name in named("indices-")} == {"bitmap.hex", "raw.hex", "delta.hex"}


@pytest.mark.parametrize("name", named("bits-"))
def test_bits(name):
    example = Example(name)
    symbols, width = example["symbols"], example["width"]
    assert pack(symbols, width) == example.bytes
    assert unpack(example.bytes, width, len(symbols)).tolist() == symbols


def test_dither():
    """The page's four steps, one by one."""
    example = Example("dither.hex")
    context, key, words = example.context(), example.bytes[:16], example.bytes[16:]
    parts = [context.seed, DITHER, context.part, context.t0, context.m]
    address = "".join(f"{'int' if isinstance(part, int) else 'str'}:{len(str(part))}:{part};" for part in parts)
    assert address == example.says["address"]
    assert hashlib.blake2b(address.encode(), digest_size=16, person=b"cvfl.stream").digest() == key
    philox = np.random.Philox(key=int.from_bytes(key, "little"))  # its first block has counter 1
    assert philox.random_raw(4).astype("<u8").tobytes() == words
    assert stream(*parts).words(4).astype("<u8").tobytes() == words
    dither = example["dither"]
    assert np.frombuffer(words, "<i2")[: len(dither)].tolist() == dither
    assert context.dither(len(dither)).tolist() == dither


def plane_sizes(data: bytes, planes: int) -> list[tuple[int, int]]:
    """Of heads with a number of symbols below 128."""
    heads = [data[2 * i : 2 * i + 2] for i in range(planes)]
    return [(head[0] - 64, head[1]) for head in heads]


@pytest.mark.parametrize("name", named("indices-"))
def test_indices(name):
    example = Example(name)
    indices, n = torch.tensor(example["indices"]), example["below"]
    planes = encode_indices(indices, n, 1)
    data = encode_packet(Packet((), planes))
    assert data[1:] == example.bytes  # behind the first byte of a packet without scalars
    read = decode_packet(data, ()).planes
    assert [(plane.width, plane.symbols.numel()) for plane in read] == plane_sizes(example.bytes, len(read))
    assert decode_indices(read, n).tolist() == indices.tolist()


def end(example: Example) -> Compressor:
    """One end of a conversation, which has settled the message before this one if there was any."""
    compressor = build(example.says["compressor"])
    if "before" in example.says:
        earlier = Example(example.says["before"])
        packet = decode_packet(earlier.bytes, tuple(earlier.tensor("decoded").shape))
        compressor.settle(packet, compressor.decompress(packet, earlier.context()), earlier.context())
    return compressor


@pytest.mark.parametrize("name", [name for name in named("packet-") if "tensor" in Example(name).says])
def test_what_is_sent(name):
    example = Example(name)
    compressor = end(example)
    if "gradient" in example.says:
        compressor.observe(example.tensor("gradient"))
    assert encode_packet(compressor.compress(example.tensor("tensor"), example.context())) == example.bytes


@pytest.mark.parametrize("name", [name for name in named("packet-") if "steps" in Example(name).says])
def test_what_a_sender_of_shaped_packets_may_choose(name):
    """Its steps, cells and basis are its own affair; what travels is their zigzags, codes and bytes."""
    example = Example(name)
    steps = [2 * q if q >= 0 else -2 * q - 1 for row in [*example["steps"], example["shares"]] for q in row]
    planes = [Plane(torch.tensor(steps), 16)]
    if "cells" in example.says:
        planes.append(Plane(torch.tensor(example["cells"]), 12))
    if "basis" in example.says:
        planes.append(Plane(torch.tensor(example["basis"]).reshape(-1) + 128, 8))
    decoded = example.tensor("decoded")
    assert encode_packet(Packet(tuple(decoded.shape), tuple(planes), dtype=decoded.dtype)) == example.bytes


@pytest.mark.parametrize("name", named("packet-"))
def test_what_is_decoded(name):
    example = Example(name)
    expected = example.tensor("decoded")
    packet = decode_packet(example.bytes, tuple(expected.shape))
    assert packet.shape == tuple(expected.shape)
    assert packet.dtype == expected.dtype
    assert same_bits(end(example).decompress(packet, example.context()), expected)  # and has seen no gradient
    assert encode_packet(packet) == example.bytes


@pytest.mark.parametrize("name", [name for name in named("packet-") if "scalar" in name or "lattice" in name])
def test_the_header_that_the_page_promises(name):
    example = Example(name)
    packet = decode_packet(example.bytes, tuple(example.tensor("tensor").shape))
    n = packet.planes[0].symbols.numel()
    assert n == example.tensor("tensor").numel()
    header = 2 + (8 if packet.scalars else 0)
    assert len(example.bytes) == header + packed_size(n, packet.planes[0].width)


def test_the_range_code_by_the_page_alone():
    """`oracle` is written from the page, and knows neither the code nor its library."""
    counts: list[list[int]] = []
    for name in ("packet-entropy.hex", "packet-entropy-next.hex"):
        example = Example(name)
        head = bytes([0x22, 0x40 | 12, 1, *([0x80 | 15] if counts else [0xC0 | 15, 2])])
        assert example.bytes.startswith(head)
        coder, model = oracle.Reader(example.bytes[len(head) :]), oracle.Model(16, 2, counts)
        [code] = oracle.read_plain(coder, 1, 12)
        symbols = oracle.read(coder, model, 64)
        cell = (4 + code % 4) * 2.0 ** (code // 4 - 128)
        steps = [symbol // 2 if symbol % 2 == 0 else -(symbol + 1) // 2 for symbol in symbols]
        assert [step * cell for step in steps] == example.tensor("decoded").reshape(-1).tolist()
        counts = model.counts


def packet_named(name: str) -> bytes:
    return Example(name).bytes


def listed(text: str) -> tuple[tuple[int, bytes], ...]:
    pairs = (entry.split() for entry in text.split(", "))
    return tuple((int(m), packet_named(name)) for m, name in pairs)


def sealed(e: Example) -> Passed:
    """An embedding, sealed by the page alone."""
    t0, m, to, kind = e["t0"], e["m"], e["to"], 1
    secret, publics = bytes.fromhex(e["secret"]), bytes.fromhex(e["publics"])
    key = HKDF(SHA256(), 32, publics, f"cvfl passed from {m} to {to}".encode()).derive(secret)
    nonce, bound = e["before"].to_bytes(12, "little"), struct.pack("<IHHB", t0, m, to, kind)
    data = ChaCha20Poly1305(key).encrypt(nonce, packet_named(e.says["embedding"]), bound)
    return Passed(t0, m, to, kind, data)


def test_what_is_sealed_opens():
    example = Example("frame-passed.hex")
    secret, publics = bytes.fromhex(example["secret"]), bytes.fromhex(example["publics"])
    names, message = ("hospital", "bank"), Embedding(3, 2, packet_named(example.says["embedding"]))
    sender = Sealing(PairSecrets(2, {1: secret}, publics), names)
    receiver = Sealing(PairSecrets(1, {2: secret}, publics), names)
    before = [sender.seal(1, message) for _ in range(example["before"])]
    assert encode(sender.seal(1, message)) == example.bytes
    for passed in (*before, decode(example.bytes)):
        assert receiver.open(passed) == message


MESSAGES = {
    "Passed": sealed,
    "Report": lambda e: Report(e["t0"], e["m"], **json.loads(e.says["json"])),
    "Embedding": lambda e: Embedding(e["t0"], e["m"], packet_named(e.says["packet"])),
    "Evaluation": lambda e: Evaluation(e["t0"], e["m"], packet_named(e.says["packet"])),
    "Prediction": lambda e: Prediction(e["t0"], e["m"], packet_named(e.says["packet"])),
    "Ask": lambda e: Ask(e["t0"], e["m"], e["run"], bytes.fromhex(e["pseudonyms"])),
    "Found": lambda e: Found(e["t0"], e["m"], len(e["known"]), pack(e["known"], 1), packet_named(e.says["packet"])),
    "Answer": lambda e: Answer(
        e["t0"],
        e["count"],
        e["columns"],
        tuple(pack(bits, 1) for bits in e["known"]),
        np.array(e["scores"], dtype="<f8").tobytes(),
    ),
    "Runs": lambda e: Runs(e["m"], tuple(e["runs"])),
    "Away": lambda e: Away(tuple(e["parties"])),
    "Owing": lambda e: Owing(e["t0"], e["m"], tuple(e["parties"])),
    "Gradient": lambda e: Gradient(e["t0"], packet_named(e.says["packet"])),
    "Sloped gradient": lambda e: Gradient(e["t0"], packet_named(e.says["packet"]), packet_named(e.says["weights"])),
    "Stop": lambda e: Stop(e["t0"], e["best"]),
    "Folded": lambda e: Folded(
        e["t0"], packet_named(e.says["partial"]), tuple(packet_named(name) for name in e.says["model"].split(", "))
    ),
    "Broadcast": lambda e: Broadcast(
        e["t0"], tuple(packet_named(name) for name in e.says["model"].split(", ")), listed(e.says["embeddings"])
    ),
}


@pytest.mark.parametrize("name", named("frame-"))
def test_frames(name):
    example = Example(name)
    message = MESSAGES[example.says["message"]](example)
    assert encode(message) == example.bytes
    assert decode(example.bytes) == message
    assert type(decode(example.bytes)) is type(message)
    assert encode(decode(example.bytes)) == example.bytes


SETUPS = {
    "Blinded": lambda e: Blinded(  # type: ignore[call-arg]
        *(e[key] for key in ("m", "owner", "hops", "part", "parts")),
        Spelling(e["spelling"]),
        e["size"],
        bytes.fromhex(e["elements"]),
    ),
    "Matched": lambda e: Matched(len(e["common"]), pack(e["common"], 1)),
    "Gone": lambda e: Gone(e["m"], len(e["gone"]), pack(e["gone"], 1)),
}


@pytest.mark.parametrize("name", named("setup-"))
def test_frames_of_the_alignment(name):
    example = Example(name)
    message = SETUPS[example.says["message"]](example)
    assert encode_setup(message) == example.bytes
    assert decode_setup(example.bytes) == message
    assert encode_setup(decode_setup(example.bytes)) == example.bytes


def sealed_bits(example: Example) -> tuple[bytes, ...]:
    return tuple(map(bytes.fromhex, example["sealed"])) if "sealed" in example.says else ()


CONTROLS = {
    "Recall": lambda e: Recall.model_validate_json(e.says["json"]),
    "Complete": lambda e: Complete.model_validate_json(e.says["json"]),
    "Targets": lambda e: Targets(
        e["m"],
        e["loss"],
        e["outputs"],
        bytes(e["parts"]),
        np.array(e["labels"], dtype="<f8").tobytes(),
        tuple(e["units"]) if "units" in e.says else (),
        tuple(pack(bits, 1) for bits in e["present"]) if "present" in e.says else sealed_bits(e),
        "sealed" in e.says,
    ),
}


@pytest.mark.parametrize("name", named("control-"))
def test_frames_of_the_handshake(name):
    example = Example(name)
    message = CONTROLS[example.says["message"]](example)
    assert encode_control(message, example["m"]) == example.bytes
    assert decode_control(example.bytes) == (example["m"], message)
