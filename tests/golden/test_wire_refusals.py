"""Each line of "What a decoder must refuse" in docs/wire-format.md, one golden example damaged in that way alone."""

import math
import re
import struct
from pathlib import Path

import pytest
import torch

from cvfl.compress import Context, build
from cvfl.errors import DecodeError
from cvfl.protocol.coding.codec import Codec
from cvfl.wire import Broadcast, Embedding, Folded, Passed, Report, decode, decode_packet, decode_setup, encode
from cvfl.wire.control import decode_control
from cvfl.wire.frame import MAX_BODY, head_of
from cvfl.wire.rangecode import decoded
from cvfl.wire.varint import varint
from mutations import sealed

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "wire-format.md").read_text(encoding="utf-8")


def golden(name: str) -> bytes:
    lines = (HERE / f"{name}.hex").read_text(encoding="utf-8").splitlines()
    return bytes.fromhex("".join(line.split(";")[0] for line in lines if not line.startswith("#")))


FRAME = golden("frame-embedding")
BROADCAST = golden("frame-broadcast")
SCALAR = golden("packet-scalar-measured")
COLUMN = golden("packet-topk-column")
FOLDED = golden("frame-folded")
PASSED, REPORT = golden("frame-passed"), golden("frame-report")
CODED = golden("packet-entropy")
SHAPED = golden("packet-shaped")


def edited(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def resealed(frame: bytes) -> bytes:
    """The frame with the checksum that goes with the bytes before it; these frames are short."""
    return sealed(frame[:-2])


def at_start(frame: bytes, new: bytes) -> bytes:
    """A frame with other first bytes."""
    return resealed(edited(frame, 0, new))


def body(frame: bytes) -> bytes:
    return frame[head_of(frame).size : -2]


def in_body(frame: bytes, at: int, new: bytes) -> bytes:
    return with_body(frame, edited(body(frame), at, new))


def with_body(frame: bytes, inner: bytes) -> bytes:
    return sealed(frame[: head_of(frame).size] + inner)


def listed(*roles: int) -> bytes:
    """A broadcast's body with these roles and empty packets."""
    entries = [varint(role) + b"\0" for role in roles]
    return bytes([len(roles)]) + b"".join(entries)[:-1]


BODY = body(BROADCAST)
PIECES = body(FOLDED)
SLOPED = golden("frame-sloped")
FRAMES = {
    "F1": [b"", FRAME[:1], FRAME[:2], FRAME[:3], FRAME[:4], golden("frame-gradient")[:7]],
    "F2": [at_start(FRAME, bytes([version << 4 | 1])) for version in (0, 1, 3, 15)] + [b"cvfl" + bytes(48), bytes(48)],
    "F3": [sealed(b"\x21\x80\x80\x04\3" + SCALAR), sealed(b"\x21\1\x80\x80\x80\x80\x10" + SCALAR)],
    "F4": [sealed(b"\x21\1\3" + bytes(100))],
    "F5": [
        *(FRAME[:-1], FRAME + b"\0", FRAME[:-3] + FRAME[-2:], FRAME[:-2] + b"\0" + FRAME[-2:]),
        *(edited(FRAME, at, b"\7") for at in range(1, len(FRAME))),
    ],
    "F6": [at_start(FRAME, bytes([0x20 | kind])) for kind in (0, 5, 15)],
    "F7": [edited(resealed(edited(frame, 1, b"\0")), 0, b"") for frame in (FRAME, PASSED, REPORT)]
    + [sealed(b"\x24\0\3" + body(golden("frame-evaluation")))],
    "F8": [
        with_body(BROADCAST, inner)
        for inner in (b"", b"\0\0", BODY[:1], BODY[:16], BODY[:17], edited(BODY, 0, b"\5"), edited(BODY, 2, b"\x7f"))
    ]
    + [sealed(b"\x22\3\x81\x20" + bytes(2 * 4097 - 1))],
    "F9": [
        with_body(BROADCAST, listed(*roles)) for roles in ((2, 1), (1, 1), (1, 0), (0, 3, 0), (0, 1, 5, 4), (1 << 16,))
    ],
    "F10": [
        with_body(FOLDED, inner) for inner in (b"", b"\0", b"\0\0", PIECES[:1], PIECES[:9], edited(PIECES, 0, b"\4"))
    ]
    + [with_body(SLOPED, inner) for inner in (b"\0", b"\1\1\0", b"\2\1\0", b"\3\1\0\1\0\1\0", b"\2\7" + bytes(6))]
    + [sealed(b"\x29\3\x81\x20" + bytes(4096)), with_body(FOLDED, b"\2\xff\xff\xff\xff\x0f")],
    "F11": [with_body(PASSED, inner) for inner in (b"", b"\1", b"\0\1more", b"\2\1more", b"\x80\x80\4\1more")]
    + [in_body(PASSED, 1, bytes([kind])) for kind in (0, 5, 7, 10, 11, 255)],
    "F12": [
        with_body(REPORT, text)
        for text in (
            b"",
            b"{",
            b"null",
            b"[0.5,null]",
            b'{"loss":0.5}',
            b'{"metrics":null}',
            b'{"loss":"0.5","metrics":null}',
            b'{"loss":NaN,"metrics":null}',
            b'{"loss":-Infinity,"metrics":null}',
            b'{"loss":0.5,"metrics":{}}',
            b'{"loss":0.5,"metrics":{"train":{},"test":{}}}',
            b'{"loss":0.5,"metrics":{"train":{},"validation":{},"test":{},"other":{}}}',
            b'{"loss":0.5,"metrics":{"train":{},"validation":{},"test":{"accuracy":"1"}}}',
            b'{"loss":0.5,"metrics":{"train":{},"validation":{},"test":{"accuracy":[1]}}}',
            b'{"loss":0.5,"metrics":null,"labels":[1,0]}',
            b"\xff\xfe",
            body(REPORT) + b" " * (1 << 14),
        )
    ],
    "F13": [with_body(golden("frame-stop"), inner) for inner in (b"", b"\x63\0", b"\x78", b"\xff\1")],
    "V1": [with_body(FOLDED, number + bytes(4)) for number in (b"\x81\x80\x80\x80\x80\0", b"\x81\0", b"\xff" * 5)]
    + [sealed(b"\x21\x81\0\3" + SCALAR), sealed(b"\x21\1\x83\0" + SCALAR), sealed(b"\x21\xff")],
}
PACKETS = {
    "P1": [b"", SCALAR[:1], SCALAR[:2], SCALAR[:9], SCALAR[:11], SCALAR[:-1], SCALAR + b"\0", b"\x10\x43", b"\x0c"],
    "P2": [edited(SCALAR, 1, bytes([head])) for head in (0x83, 0xC3, 0x8F)],
    "P3": [
        b"\x0c\x11" + bytes(4 * 17),
        b"\x0c\xff" + bytes(4 * 255),
        b"\x90" + b"\x41\0" * 9,
        b"\xf0" + b"\x41\0" * 15,
    ],
    "P4": [edited(SCALAR, 1, bytes([width])) for width in (33, 34, 63)],
    "P5": [edited(SCALAR, len(SCALAR) - 1, bytes([SCALAR[-1] | 1 << bit])) for bit in (2, 5, 7)],
}
BLINDED, MATCHED = golden("setup-blinded"), golden("setup-matched")
SETUPS = {
    "A1": [FRAME, BROADCAST, at_start(BLINDED, b"\x27"), at_start(MATCHED, b"\x28"), at_start(MATCHED, b"\x20")],
    "A2": [in_body(BLINDED, 0, b"\0\0")],
    "A3": [in_body(BLINDED, 4, b"\4"), in_body(BLINDED, 8, bytes(4)), in_body(BLINDED, 12, b"\3")],
    "A4": [
        with_body(BLINDED, body(BLINDED)[:-1]),
        *(in_body(BLINDED, 13, size) for size in (b"\0", b"\x21", b"\xff", b"\x1f")),
        with_body(BLINDED, body(BLINDED)[:10]),
        with_body(MATCHED, body(MATCHED)[:-1]),
        with_body(MATCHED, body(MATCHED) + b"\0"),
        in_body(MATCHED, 0, b"\xff\xff\xff\xff"),
    ],
    "A5": [in_body(MATCHED, 5, b"\6")],
}
RECALL, TARGETS, CLASSES = golden("control-recall"), golden("control-targets"), golden("control-targets-classes")
UNITS = golden("control-targets-units")
PRESENT, SEALED = golden("control-targets-present"), golden("control-targets-sealed")
NOTHING = b"\x20\1\0\0" + bytes(4)  # parts of no rows in a code, which begins with their table


def targets(numbers: bytes, rest: bytes, first: int = 0) -> bytes:
    """Targets with these outputs, rows and labels."""
    return with_body(TARGETS, bytes([first]) + numbers + rest)


CONTROLS = {
    "R1": [FRAME, BLINDED, at_start(RECALL, b"\x20"), at_start(RECALL, b"\x25"), at_start(TARGETS, b"\x2d")],
    "R2": [
        with_body(RECALL, text)
        for text in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"session":2}',
            b'{"type":"racall","session":2}',
            b'{"type":"recall"}',
            b'{"type":"recall","session":"2"}',
            b'{"type":"recall","session":2.5}',
            b'{"type":"recall","session":2,"more":1}',
            b"\xff\xfe",
        )
    ],
    "R3": [with_body(RECALL, b'{"type":"refusal","reason":"' + b"x" * (1 << 20) + b'"}')],
    "R4": [
        *(with_body(TARGETS, body(TARGETS)[:size]) for size in range(len(body(TARGETS)))),
        with_body(TARGETS, body(TARGETS) + b"\0"),
        *(with_body(UNITS, body(UNITS)[:size]) for size in range(len(body(UNITS)))),
        *(with_body(CLASSES, body(CLASSES)[:size]) for size in range(16)),
        *(with_body(PRESENT, body(PRESENT)[:size]) for size in range(17)),
        *(with_body(SEALED, body(SEALED)[:size]) for size in range(len(body(SEALED)))),
        with_body(SEALED, body(SEALED) + b"\0"),
        in_body(PRESENT, 4, b"\x40"),  # 32 parties
        with_body(CLASSES, body(CLASSES) + b"\0"),
        with_body(CLASSES, body(CLASSES) + bytes(8)),
    ],
    "R5": [targets(b"\x80\x80\4\0\0", b""), targets(b"\1\4\0", b"\0", 0x10), targets(b"\1\4\1", b"\0")],
    "R6": [
        targets(b"\1\x81\x80\x80\x20\0", b""),  # 2^26 + 1 rows
        targets(b"\1\xff\xff\xff\xff\x7f\0", b""),
        targets(b"\1\x7f\0", bytes(2)),  # 127 rows in 6 bytes
        targets(b"\1\2\3", b"\0" + bytes(12), 0x10),
    ],
    "R7": [
        *(in_body(CLASSES, 12, bytes([first])) for first in (0x10, 0x30, 0x21, 0x22, 0x24)),
        *(in_body(CLASSES, 13, bytes([head])) for head in (0x80, 0x82)),
        in_body(CLASSES, 15, b"\x1f"),
        in_body(CLASSES, 4, b"\1"),
        targets(b"\1\1\1", b"\0\x80\x80\4\x10\x11" + bytes(8), 0x08),
        with_body(TARGETS, NOTHING + b"\x90" + b"\x41\0" * 9),
    ],
    "R8": [
        *(targets(b"\1\4\0", parties + b"\5\1", 0x80) for parties in (b"\0", b"\1")),
        *(targets(b"\1\0\0", parties, 0x80) for parties in (b"\0", b"\2", b"\3" + bytes(16))),
        *(targets(b"\1\4\0", b"\4\5" + bits + b"\1", 0x80) for bits in (b"\x10", b"\x80")),
    ],
}
WHY = {"V1": "a number", "E1": "announced|cut off|end within", "E2": "planes, more than", "E3": "bits wide|two numbers"}
WHY |= {"E4": "do not fit", "E5": "do not fit", "E6": "no encoder wrote", "E7": "bytes too many"}
SMALL = b"\x12\x41\1"  # one plain symbol of one bit, and no code yet


def planes(*heads: tuple[int, ...], tail: bytes = b"") -> bytes:
    """A code with these bytes as heads of its planes; without a code all symbols are 0."""
    return bytes([len(heads) << 4 | 2]) + b"".join(bytes(head) for head in heads) + tail


CODES = {
    "V1": [planes((0x50, 0x80, 0)), planes((0xCF, 0x81, 0)), planes((0x50, *[0x80] * 4, 0x80, 1))],
    "E1": [
        CODED[:2],
        CODED[:4],
        b"\6\0\0\0",
        b"\x0e",
        b"\x12",
        b"\x12\x50",
    ],
    "E2": [planes(*[(0x41, 1)] * 9), planes(*[(0x41, 1)] * 15), b"\x0e\x11" + bytes(68)],
    "E3": [planes((head,)) for head in (33, 34, 63, 0x7F, 0xBF, 0xB0)],
    "E4": [planes((0x40 | width % 64, 67)) for width in (1, 64)]
    + [planes((0xA0, 67)), planes((0x50, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F)), planes((0xDF, 3))],
    "E5": [planes((0xCF, columns)) for columns in (0, 3, 32, 63)]
    + [planes((0xC7, 2)), planes((0xEF, 2, 6)), planes((0xCF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F)), planes((0xDF, 0))],
    "E6": [planes((16,), tail=b"\xff" * 12), planes((0xCF, 2), tail=b"\xff" * 12)],
    "E7": [
        CODED + bytes(8),
        CODED + bytes(12),
        CODED + b"\xff" * 12,
        CODED + b"\0",
        SMALL + b"\x80" * 7,
        planes((0x50, 0), tail=b"\1"),
        planes(tail=b"\1"),
    ],
}
RANGE = struct.pack("<ff", -1.0, 1.0)


def ranged(*values: float) -> bytes:
    return SCALAR.replace(RANGE, struct.pack("<ff", *values))


VALUES = COLUMN[-16:]
PAIR, ROWS, MATRIX = (3,), (2, 3), (2, 4)
COMPRESSORS: dict[str, list[tuple[str, bytes, tuple[int, ...]]]] = {
    "C1": [
        ("scalar:bits=2", SCALAR, ROWS),
        ("lattice:bits=4", SCALAR, ROWS),
        ("identity", golden("packet-scalar-fixed"), ROWS),
        ("scalar:bits=3", b"\x18\x43\6" + SCALAR[2:], (2, 4)),
        ("topk:bits=8", golden("packet-identity-float32"), PAIR),
        ("topk:bits=16", b"\x10\3" + SCALAR[10:], ROWS),
        ("scalar:bits=3", b"\x28\3\x43\0" + SCALAR[2:], ROWS),
    ],
    "C2": [
        ("scalar:bits=3", b"\x10" + SCALAR[1:2] + SCALAR[10:], ROWS),
        ("scalar:bits=3,low=-1,high=1", SCALAR, ROWS),
        ("scalar:bits=3", ranged(1.0, -1.0), ROWS),
        ("lattice:bits=3", ranged(float("nan"), 1.0), ROWS),
        ("scalar:bits=3", ranged(-1.0, float("inf")), ROWS),
        ("lattice:bits=3", ranged(-1e38, 1e38), ROWS),
        ("identity", b"\x14\x20" + struct.pack("<ff", 0.0, 1.0), ()),
        ("topk:bits=16", b"\x24\1\x20" + struct.pack("<fBf", 0.0, 1, 1.0), ()),
    ],
    "C3": [
        ("topk:bits=16", b"\x20\x42\2\x60\4" + bytes([places]) + VALUES, MATRIX)
        for places in (0b0000, 0b0001, 0b1010)  # raw (0, 0), (1, 0), (2, 2)
    ]
    + [("topk:bits=16", b"\x20\x41\3\x60\4\1" + VALUES, MATRIX)],
    "C4": [
        ("topk:bits=8", COLUMN, MATRIX),
        ("topk:bits=16,by=entry", golden("packet-topk-entry"), MATRIX),
        ("topk:bits=16", COLUMN.replace(b"\x09", b"\x0b", 1), MATRIX),
    ],
    "C5": [("topk:bits=16", b"\x20\x41\4\x60\3\x09" + VALUES[:-4], MATRIX)],
    "C6": [
        ("shaped", golden("packet-shaped-known"), ROWS),
        ("shaped", golden("packet-shaped-scaled"), ROWS),
        ("shaped", SHAPED, (3, 2)),
        ("shaped", b"\x30\x10\x4c\2\x48\5" + SHAPED[5:-1], ROWS),
        ("shaped", b"\x30\x50\4" + SHAPED[2:13] + SHAPED[17:], ROWS),  # nothing about what rounding left
        ("shaped", b"\x30\x50\0\x4c\0\x48\0", ROWS),
        ("shaped", b"\x30\x50\x82\2\x4c\x81\1\x48\x81\1" + bytes(516 + 194 + 129), (1,)),
    ],
    "C7": [
        ("deadzone", edited(golden("packet-deadzone"), 4, b"\xff\x0f"), (2, 2)),
        ("shaped", edited(SHAPED, len(SHAPED) - 9, b"\xff\xff\x1f"), ROWS),
    ],
    "C8": [
        *(
            (spec, CODED, (32, 2))
            for spec in ("identity", "scalar:bits=3", "shaped", "topk:bits=2", "feedback(deadzone)")
        ),
        ("entropy(scalar:bits=3)", SCALAR, ROWS),
        ("feedback(entropy(deadzone))", golden("packet-deadzone"), (2, 2)),
    ],
}


def codec(spec: str = "scalar:bits=3") -> Codec:
    return Codec(build(spec), 7, 1, "hospital")


def float_packet(value: float) -> bytes:
    return golden("packet-identity-float32")[:-4] + struct.pack("<f", value)


RECEIVERS = {
    "S1": [
        lambda: codec().decode(SCALAR, 3, (2, 3), torch.float64),
        lambda: codec().decode(SCALAR, 3, (3, 3), torch.float32),
        lambda: codec().decode(SCALAR, 3, (2, 1), torch.float32),
        lambda: codec("entropy(deadzone:step=0.2)").decode(CODED, 3, (32, 2), torch.float64),
        lambda: codec("shaped").decode(SHAPED, 3, (3, 2), torch.float32),
    ],
    "S2": [
        lambda: codec("identity").decode(float_packet(math.nan), 3, (3,), torch.float32),
        lambda: codec("identity").decode(float_packet(1e19), 3, (3,), torch.float32),
    ],
}


def test_every_line_of_the_page_has_a_test():
    section = PAGE.partition("## What a decoder must refuse")[2]
    assert set(re.findall(r"^- `([A-Z]\d+)`", section, flags=re.M)) == set(
        CODES.keys()
        | FRAMES.keys()
        | SETUPS.keys()
        | CONTROLS.keys()
        | PACKETS.keys()
        | COMPRESSORS.keys()
        | RECEIVERS.keys()
    )


@pytest.mark.parametrize("rule", FRAMES)
def test_frames(rule):
    for bad in FRAMES[rule]:
        with pytest.raises(DecodeError):
            decode(bad, max_body=99 if rule == "F4" else MAX_BODY)


@pytest.mark.parametrize("rule", SETUPS)
def test_frames_of_the_alignment(rule):
    decode_setup(BLINDED), decode_setup(MATCHED)
    for bad in SETUPS[rule]:
        with pytest.raises(DecodeError):
            decode_setup(bad)


@pytest.mark.parametrize("rule", CONTROLS)
def test_frames_of_the_handshake(rule):
    decode_control(RECALL), decode_control(TARGETS), decode_control(CLASSES)
    for bad in CONTROLS[rule]:
        with pytest.raises(DecodeError):
            decode_control(bad)


@pytest.mark.parametrize("rule", PACKETS)
def test_packets(rule):
    for bad in PACKETS[rule]:
        with pytest.raises(DecodeError):
            decode_packet(bad, (2, 3))


@pytest.mark.parametrize("rule", CODES)
def test_codes(rule):
    for bad in CODES[rule]:
        with pytest.raises(DecodeError, match=WHY[rule]):
            build("entropy(deadzone:step=0.2)").decompress(decode_packet(bad, (32, 2)), Context(7, 3, 1))


@pytest.mark.parametrize("rule", COMPRESSORS)
def test_compressors(rule):
    for spec, data, shape in COMPRESSORS[rule]:
        packet = decode_packet(data, shape)  # the packet itself is in order
        with pytest.raises(DecodeError):
            build(spec).decompress(packet, Context(7, 3, 1))


@pytest.mark.parametrize("rule", RECEIVERS)
def test_receivers(rule):
    for attempt in RECEIVERS[rule]:
        with pytest.raises(DecodeError, match="hospital, round 3"):
            attempt()


def test_the_undamaged_examples_are_accepted():
    """So that it is the damage above that is refused."""
    assert resealed(FRAME) == FRAME
    assert with_body(BROADCAST, BODY) == BROADCAST
    assert isinstance(decode(FRAME), Embedding)
    assert decode(with_body(BROADCAST, listed(0, 0, 1, 5))) == Broadcast(3, (b"", b""), ((1, b""), (5, b"")))
    build("scalar:bits=3").decompress(decode_packet(SCALAR, ROWS), Context(7, 3, 1))
    build("topk:bits=16").decompress(decode_packet(COLUMN, MATRIX), Context(7, 3, 1))
    raw = b"\x20\x42\2\x60\4" + bytes([0b1100]) + VALUES
    assert build("topk:bits=16").decompress(decode_packet(raw, MATRIX), Context(7, 3, 1)).tolist()[0] == [1, 0, 0, 0.5]
    assert decode(sealed(b"\x21\1\3" + bytes(99)), max_body=99) == Embedding(3, 1, bytes(99))
    assert len(decode_packet(b"\x0c\x10" + bytes(64), ()).scalars) == 16
    assert codec().decode(SCALAR, 3, (2, 3), torch.float32).shape == (2, 3)
    assert isinstance(decode(with_body(FOLDED, PIECES)), Folded)
    assert decode(with_body(PASSED, b"\1\4")) == Passed(3, 2, 1, 4, b"")
    assert decode(with_body(REPORT, b'{"loss":1,"metrics":null}')) == Report(3, 2, 1.0)
    assert decode(with_body(FOLDED, b"\x80\x20" + bytes(4095))) == Folded(3, b"", (b"",) * 4095)
    assert decode(sealed(b"\x22\3\x80\x20" + bytes(2 * 4096 - 1))) == Broadcast(3, (b"",) * 4096, ())
    for inner in (NOTHING + b"\x10\2", b"\0\1\0\0", body(CLASSES)):
        decode_control(with_body(TARGETS, inner))
    for code in (CODED, planes((0xCF, 2)), planes((0xDF, 2)), planes((0x50, 66)), SMALL + b"\0\0\0\x80", planes()):
        decoded(decode_packet(code, (32, 2)), {})
    known = build("shaped")
    known.settle(decode_packet(SHAPED, ROWS), torch.zeros(2, 3), Context())
    for data in (SHAPED, golden("packet-shaped-known"), golden("packet-shaped-scaled")):
        assert known.decompress(decode_packet(data, ROWS), Context()).shape == (2, 3)


def test_a_lower_cap_is_kept():
    frame = encode(Embedding(1, 1, bytes(100)))
    assert decode(frame, max_body=100) == Embedding(1, 1, bytes(100))
    with pytest.raises(DecodeError, match="100 bytes is over the cap of 99"):
        decode(frame, max_body=99)


def test_frames_of_the_version_before_are_named_as_such():
    """Whoever has not been brought up to date is told so in one line."""
    with pytest.raises(DecodeError, match=r"^a frame of version 1, this is version 2$"):
        decode(b"cvfl\1\1\1\0\3\0\0\0\0\0\0\0\0\0\0\0")
    with pytest.raises(DecodeError, match=r"^a frame of version 3, or none at all; this is version 2$"):
        decode(at_start(FRAME, b"\x31"))
