"""Each line of "What a decoder must refuse" in docs/wire-format.md, one golden example damaged in that way alone."""

import math
import re
import struct
import zlib
from pathlib import Path

import pytest
import torch

from cvfl.compress import Context, build
from cvfl.errors import DecodeError
from cvfl.protocol.codec import Codec
from cvfl.wire import HEADER, Broadcast, Embedding, Folded, Passed, Report, decode, decode_packet, decode_setup, encode
from cvfl.wire.control import decode_control
from cvfl.wire.rangecode import decoded

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


def header(frame: bytes, at: int, new: bytes) -> bytes:
    """A frame with other bytes in its header, and the checksum that goes with them."""
    return resealed(edited(frame, at, new))


def resealed(frame: bytes) -> bytes:
    crc = zlib.crc32(frame[20:], zlib.crc32(frame[:16]))
    return edited(frame, 16, struct.pack("<I", crc))


def with_body(frame: bytes, body: bytes) -> bytes:
    return resealed(edited(frame[:20], 12, struct.pack("<I", len(body))) + body)


def listed(*roles: int) -> bytes:
    """A broadcast's body with these roles and empty packets."""
    return struct.pack("<H", len(roles)) + b"".join(struct.pack("<HI", role, 0) for role in roles)


BODY = BROADCAST[20:]
PIECES = FOLDED[20:]
SLOPED = golden("frame-sloped")
FRAMES = {
    "F1": [b"", FRAME[:1], FRAME[:19]],
    "F2": [header(FRAME, 0, b"CVFL"), bytes(48)],
    "F3": [header(FRAME, 4, b"\0"), header(FRAME, 4, b"\2")],
    "F4": [header(FRAME, 12, struct.pack("<I", 2**30 + 1)), header(FRAME, 12, b"\xff" * 4)],
    "F5": [FRAME[:-1], FRAME[:20], FRAME + b"\0", header(FRAME, 12, b"\x1b"), header(FRAME, 12, b"\x1d")],
    "F6": [edited(FRAME, 16, b"\0"), edited(FRAME, 25, b"\xff"), edited(FRAME, 8, b"\7"), edited(FRAME, 6, b"\7")],
    "F7": [header(FRAME, 5, bytes([kind])) for kind in (0, 5, 255)],
    "F8": [
        header(FRAME, 6, b"\0\0"),
        header(golden("frame-evaluation"), 6, b"\0\0"),
        header(BROADCAST, 6, b"\1\0"),
        header(golden("frame-gradient"), 6, b"\0\1"),
        header(FOLDED, 6, b"\1\0"),
        header(SLOPED, 6, b"\1\0"),
        header(PASSED, 6, b"\0\0"),
        header(REPORT, 6, b"\0\0"),
    ],
    "F9": [
        with_body(BROADCAST, body)
        for body in (b"", b"\0", BODY[:-1], BODY + b"\0", BODY[:2], edited(BODY, 0, b"\4"), edited(BODY, 0, b"\2"))
    ]
    + [with_body(BROADCAST, edited(BODY, 4, b"\xff\xff\xff\xff"))],
    "F10": [with_body(BROADCAST, listed(*roles)) for roles in ((2, 1), (1, 1), (1, 0), (0, 3, 0), (0, 1, 5, 4))],
    "F11": [
        with_body(FOLDED, body)
        for body in (
            b"",
            b"\0",
            PIECES[:-1],
            PIECES + b"\0",
            PIECES[:1],
            edited(PIECES, 0, b"\3"),
            edited(PIECES, 0, b"\1"),
        )
    ]
    + [with_body(SLOPED, body) for body in (b"\0", b"\1\1\0", b"\2\1\0\0", b"\3\1\0\1\0\1\0", SLOPED[20:-1])]
    + [with_body(FOLDED, b"\x81\x20" + bytes(4097)), with_body(FOLDED, b"\1\xff\xff\xff\xff\x0f")],
    "F12": [with_body(PASSED, body) for body in (b"", b"\1", b"\1\0", b"\0\0\1more", b"\2\0\1more")]
    + [with_body(PASSED, edited(PASSED[20:], 2, bytes([kind]))) for kind in (0, 5, 7, 10, 11, 255)],
    "F13": [
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
            REPORT[20:] + b" " * (1 << 14),
        )
    ],
    "V1": [with_body(FOLDED, number + bytes(4)) for number in (b"\x81\x80\x80\x80\x80\0", b"\x81\0", b"\xff" * 5)],
}
PACKETS = {
    "P1": [b"", b"\3", b"\4", SCALAR[:3], SCALAR[:10], SCALAR[:17], SCALAR[:22], SCALAR[:-1], SCALAR + b"\0"],
    "P2": [edited(SCALAR, 0, bytes([code])) for code in (0, 5, 255)],
    "P3": [
        struct.pack("<BBBB", 1, 9, 0, 0) + b"\1\0\0\0" * 9,
        struct.pack("<BBBB", 1, 0, 17, 0) + bytes(4 * 17),
        struct.pack("<BBBB", 1, 0, 0, 9) + b"\1\0\0\0\0" * 9,
    ],
    "P4": [
        struct.pack("<BBBBII", 1, 2, 0, 0, 2**16, 2**16),
        struct.pack("<BBBB8I", 1, 8, 0, 0, 0, *[2**32 - 1] * 7),
    ],
    "P5": [struct.pack("<BBBBBI", 1, 0, 0, 1, width, 0) for width in (0, 33, 63, 65, 255)],
    "P6": [edited(SCALAR, len(SCALAR) - 1, bytes([SCALAR[-1] | 1 << bit])) for bit in (2, 5, 7)],
}
BLINDED, MATCHED = golden("setup-blinded"), golden("setup-matched")
SETUPS = {
    "A1": [FRAME, BROADCAST, header(BLINDED, 5, b"\7"), header(BLINDED, 8, b"\1"), header(MATCHED, 8, b"\1")],
    "A2": [header(BLINDED, 20, b"\0\0")],
    "A3": [header(BLINDED, 24, b"\4"), header(BLINDED, 28, bytes(4)), header(BLINDED, 32, b"\3")],
    "A4": [
        with_body(BLINDED, BLINDED[20:-1]),
        *(header(BLINDED, 33, size) for size in (b"\0", b"\x21", b"\xff", b"\x1f")),
        with_body(BLINDED, BLINDED[20:30]),
        with_body(MATCHED, MATCHED[20:-1]),
        with_body(MATCHED, MATCHED[20:] + b"\0"),
        header(MATCHED, 20, b"\xff\xff\xff\xff"),
    ],
    "A5": [header(MATCHED, 25, b"\6")],
}
RECALL, TARGETS = golden("control-recall"), golden("control-targets")
CONTROLS = {
    "R1": [FRAME, BLINDED, header(RECALL, 5, b"\x09"), header(RECALL, 8, b"\1"), header(TARGETS, 8, b"\1")],
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
        with_body(TARGETS, TARGETS[20:-1]),
        with_body(TARGETS, TARGETS[20:] + b"\0"),
        with_body(TARGETS, TARGETS[20:25]),
        header(TARGETS, 23, b"\xff\xff\xff\xff"),
    ],
}
WHY = {"V1": "a number", "E1": "ends within|cut off|end within", "E2": "planes, more than 8", "E3": "bits wide"}
WHY |= {"E4": "do not fit", "E5": "do not fit", "E6": "no encoder wrote", "E7": "bytes too many"}
SMALL = b"\3\1\1\2\1"  # one plain symbol of one bit, and no code yet


def planes(*heads: tuple[int, ...], tail: bytes = b"") -> bytes:
    """A code with these bytes as heads of its planes; without a code all symbols are 0."""
    return bytes([3, len(heads)]) + b"".join(bytes(head) for head in heads) + tail


CODES = {
    "V1": [planes((0x10, 0x80, 0, 1)), planes((0x10, 0, 0x81, 0)), planes((0x10, *[0x80] * 4, 0x80, 1, 1))],
    "E1": [CODED[:2], CODED[:3], CODED[:6], CODED[:7], b"\3\x10\0\0\0"],
    "E2": [planes(*[(1, 1, 1)] * 9), planes(*[(1, 1, 1)] * 15)],
    "E3": [planes((width, 0, 1)) for width in (0, 33, 63, 65, 127, 0x80, 0x80 | 17, 0x80 | 32, 0x80 | 64)],
    "E4": [planes((width, 68, 1)) for width in (1, 64, 0x81)] + [planes((16, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1))],
    "E5": [planes((0x90, 0, columns)) for columns in (0, 3, 32, 63)]
    + [planes((0x88, 0, 2)), planes((8, 33, 2)), planes((0x90, 7, 2)), planes((16, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F))],
    "E6": [planes((16, 0, 1), tail=b"\xff" * 12), planes((0x90, 0, 2), tail=b"\xff" * 12)],
    "E7": [
        CODED + bytes(8),
        CODED + bytes(12),
        CODED + b"\xff" * 12,
        CODED + b"\0",
        SMALL + b"\x80" * 7,
        planes((16, 1, 1), tail=b"\1"),
        planes(tail=b"\1"),
    ],
}
RANGE = struct.pack("<ff", -1.0, 1.0)


def ranged(*values: float) -> bytes:
    return SCALAR.replace(RANGE, struct.pack("<ff", *values))


COMPRESSORS = {
    "C1": [
        ("scalar:bits=2", SCALAR),
        ("lattice:bits=4", SCALAR),
        ("identity", golden("packet-scalar-fixed")),
        ("scalar:bits=3", edited(SCALAR, 4, struct.pack("<II", 2, 4))),
        ("topk:bits=8", golden("packet-identity-float32")),
        ("topk:bits=16", edited(SCALAR, 2, b"\0")[:12] + SCALAR[20:]),
    ],
    "C2": [
        ("scalar:bits=3", SCALAR.replace(RANGE, b"").replace(b"\1\2\2\1", b"\1\2\0\1")),
        ("scalar:bits=3,low=-1,high=1", SCALAR),
        ("scalar:bits=3", ranged(1.0, -1.0)),
        ("lattice:bits=3", ranged(float("nan"), 1.0)),
        ("scalar:bits=3", ranged(-1.0, float("inf"))),
        ("lattice:bits=3", ranged(-1e38, 1e38)),
        ("identity", struct.pack("<BBBBf", 1, 0, 1, 1, 0.0) + struct.pack("<BIf", 32, 1, 1.0)),
        ("topk:bits=16", struct.pack("<BBBBfBIBIBf", 1, 0, 1, 2, 0.0, 1, 1, 32, 1, 1, 1.0)),
    ],
    "C3": [
        ("topk:bits=16", COLUMN[:12] + struct.pack("<BIBI", 2, 2, 32, 4) + bytes([places]) + COLUMN[-16:])
        for places in (0b0000, 0b0001, 0b1010)  # raw (0, 0), (1, 0), (2, 2)
    ]
    + [("topk:bits=16", COLUMN[:12] + struct.pack("<BIBI", 1, 3, 32, 4) + b"\1" + COLUMN[-16:])],
    "C4": [
        ("topk:bits=8", COLUMN),
        ("topk:bits=16,by=entry", golden("packet-topk-entry")),
        ("topk:bits=16", COLUMN.replace(b"\x09", b"\x0b", 1)),
    ],
    "C5": [("topk:bits=16", COLUMN[:18] + b"\3" + COLUMN[19:-4])],
    "C6": [
        ("shaped", golden("packet-shaped-known")),
        ("shaped", golden("packet-shaped-scaled")),
        ("shaped", edited(SHAPED, 8, b"\2")),
        ("shaped", edited(SHAPED, 23, b"\5")[:-1]),
        ("shaped", edited(SHAPED[:35] + SHAPED[39:], 13, b"\4")),  # nothing about what rounding left
        ("shaped", struct.pack("<BBBBIIBIBIBI", 1, 2, 0, 3, 2, 3, 16, 0, 12, 0, 8, 0)),
        ("shaped", struct.pack("<BBBBIBIBIBI", 1, 1, 0, 3, 1, 16, 258, 12, 129, 8, 129) + bytes(516 + 194 + 129)),
    ],
    "C7": [
        ("deadzone", edited(golden("packet-deadzone"), 22, b"\xff\x0f")),
        ("shaped", edited(SHAPED, len(SHAPED) - 9, b"\xff\xff\x1f")),
    ],
    "C8": [
        *((spec, CODED) for spec in ("identity", "scalar:bits=3", "shaped", "topk:bits=2", "feedback(deadzone)")),
        ("entropy(scalar:bits=3)", SCALAR),
        ("feedback(entropy(deadzone))", golden("packet-deadzone")),
    ],
}


def codec(spec: str = "scalar:bits=3") -> Codec:
    return Codec(build(spec), 7, 1, "hospital")


def float_packet(value: float) -> bytes:
    return golden("packet-identity-float32")[:-4] + struct.pack("<f", value)


RECEIVERS = {
    "S1": [
        lambda: codec().decode(SCALAR, 3, (3, 2), torch.float32),
        lambda: codec().decode(SCALAR, 3, (6,), torch.float32),
        lambda: codec().decode(SCALAR, 3, (2, 3), torch.float64),
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
            decode(bad)


@pytest.mark.parametrize("rule", SETUPS)
def test_frames_of_the_alignment(rule):
    decode_setup(BLINDED), decode_setup(MATCHED)
    for bad in SETUPS[rule]:
        with pytest.raises(DecodeError):
            decode_setup(bad)


@pytest.mark.parametrize("rule", CONTROLS)
def test_frames_of_the_handshake(rule):
    decode_control(RECALL), decode_control(TARGETS)
    for bad in CONTROLS[rule]:
        with pytest.raises(DecodeError):
            decode_control(bad)


@pytest.mark.parametrize("rule", PACKETS)
def test_packets(rule):
    for bad in PACKETS[rule]:
        with pytest.raises(DecodeError):
            decode_packet(bad)


@pytest.mark.parametrize("rule", CODES)
def test_codes(rule):
    for bad in CODES[rule]:
        with pytest.raises(DecodeError, match=WHY[rule]):
            build("entropy(deadzone:step=0.2)").decompress(decode_packet(bad, (32, 2)), Context(7, 3, 1))


@pytest.mark.parametrize("rule", COMPRESSORS)
def test_compressors(rule):
    for spec, data in COMPRESSORS[rule]:
        packet = decode_packet(data)  # the packet itself is in order
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
    build("scalar:bits=3").decompress(decode_packet(SCALAR), Context(7, 3, 1))
    build("topk:bits=16").decompress(decode_packet(COLUMN), Context(7, 3, 1))
    raw = COLUMN[:12] + struct.pack("<BIBI", 2, 2, 32, 4) + bytes([0b1100]) + COLUMN[-16:]
    assert build("topk:bits=16").decompress(decode_packet(raw), Context(7, 3, 1)).tolist()[0] == [1, 0, 0, 0.5]
    assert codec().decode(SCALAR, 3, (2, 3), torch.float32).shape == (2, 3)
    assert isinstance(decode(with_body(FOLDED, PIECES)), Folded)
    assert decode(with_body(PASSED, b"\1\0\4")) == Passed(3, 2, 1, 4, b"")
    assert decode(with_body(REPORT, b'{"loss":1,"metrics":null}')) == Report(3, 2, 1.0)
    assert decode(with_body(FOLDED, b"\x80\x20" + bytes(4096))) == Folded(3, b"", (b"",) * 4095)
    for code in (CODED, planes((0x90, 0, 2)), planes((16, 67, 1)), SMALL + b"\0\0\0\x80", planes()):
        decoded(decode_packet(code, (32, 2)), {})
    known = build("shaped")
    known.settle(decode_packet(SHAPED), torch.zeros(2, 3), Context())
    for data in (SHAPED, golden("packet-shaped-known"), golden("packet-shaped-scaled")):
        assert known.decompress(decode_packet(data), Context()).shape == (2, 3)


def test_a_lower_cap_is_kept():
    frame = encode(Embedding(1, 1, bytes(100)))
    assert decode(frame, max_body=100) == Embedding(1, 1, bytes(100))
    with pytest.raises(DecodeError, match="100 bytes is over the cap of 99"):
        decode(frame, max_body=99)


def test_the_header_has_20_bytes():
    assert HEADER.size == 20
