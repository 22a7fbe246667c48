"""Messages of the handshake: what goes in comes out, and anything else is one typed error."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvfl.errors import DecodeError
from cvfl.wire.control import (
    CONTROL,
    MAX_CONTROL,
    TARGETS,
    Begin,
    Complete,
    Control,
    End,
    Have,
    Hello,
    Offer,
    PublicKey,
    Recall,
    Refusal,
    RowSecret,
    Settle,
    Settled,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import round_of, seal, unseal
from cvfl.wire.targets import Targets
from cvfl.wire.varint import varint

OFFER = Offer(width=4, compressor="auto", label=True)
KEY = PublicKey(public="0f" * 32, certificate="-----BEGIN", signature="00ff")
MESSAGES: list[Control | Targets] = [
    Hello(name="bank", terms={"seed": 1, "eta": 0.1, "nested": {"list": [1, None, "x"]}}, offer=OFFER),
    Recall(session=3),
    Have(session=3, run="ab12", rounds=[0, 10, 20], ids=7, key=KEY),
    Settle(session=3, run="ab12", m=2, how="align", keys=[KEY, KEY], ids=[7, 8]),
    RowSecret(session=3, sealed=["00ff", ""]),
    Settled(session=3, rows=[100, 0, 20]),
    Begin(session=3, m=2, t0=20, facts={"names": ["bank"]}),
    Complete(session=3, rounds=40, parameters={"bank": "0f"}, errors=[(0, 0.5, 0.25, 1.0), (39, 0.0, 0.0, 1e300)]),
    End(rounds=40),
    Refusal(reason="äöü: why not"),
    Targets(2, 1, 3, b"\0\1\2\3", struct.pack("<3d", 0.0, 1.5, -2.0)),
    Hello(name="a", terms={}, offer=Offer(width=4, compressor="identity", label=True, classes=["no", "yes"])),
    Targets(2, 2, 1, b"\0\1\2\3", struct.pack("<3d", 0.0, 0.1, -2.0)),
    Targets(2, 0, 1, bytes([0, 0, 2, 3] * 20), struct.pack("<60d", *[0.0, 1.0, 0.0] * 20)),
    Targets(2, 0, 1, b"", b""),
]


def name(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_a_message_comes_back(message: Control | Targets) -> None:
    sender, found = decode_control(encode_control(message, 2))
    assert sender == 2
    if isinstance(message, Targets):
        assert isinstance(found, Targets)
        assert (bytes(found.parts), bytes(found.labels)) == (message.parts, message.labels)
        assert (found.m, found.loss, found.outputs) == (message.m, message.loss, message.outputs)
    else:
        assert found == message


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_every_truncation_and_every_flipped_bit_is_refused(message: Control | Targets) -> None:
    frame = encode_control(message, 2)
    for size in range(len(frame)):
        with pytest.raises(DecodeError):
            decode_control(frame[:size])
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(DecodeError):
            decode_control(bytes(damaged))
    with pytest.raises(DecodeError):
        decode_control(frame + b"\0")


def control(values: object) -> bytes:
    return seal(CONTROL, 1, 0, [json.dumps(values).encode()])


COMPLETE: dict[str, object] = {"type": "complete", "session": 1, "rounds": 2, "parameters": {}}


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        "hello",
        None,
        {"type": "hallo"},
        {"type": "hello"},
        {"type": "hello", "name": 7, "terms": {}, "offer": {}},
        {"type": "hello", "name": "bank", "terms": [], "offer": {}},
        {"type": "hello", "name": "bank", "terms": {}, "offer": {}, "more": 1},
        {"type": "recall", "session": "3"},
        {"type": "recall", "session": 3.0},
        {"type": "recall", "session": True},
        {"type": "have", "session": 1, "run": "", "rounds": ["1"]},
        {"type": "settle", "session": 1, "run": "", "m": 1, "how": "somehow"},
        {"type": "end", "rounds": None},
        *(COMPLETE | {"errors": [[0, 1.0, value, 1.0]]} for value in (math.nan, math.inf, -1.0, None)),
    ],
)
def test_values_that_are_not_as_they_should_be(values: object) -> None:
    with pytest.raises(DecodeError, match="a control message that is malformed"):
        decode_control(control(values))


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"type":"end","rounds":1}x', b"[" * 100_000, b"1" * 10_000])
def test_bodies_that_are_no_json(body: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_control(seal(CONTROL, 1, 0, [body]))


def test_a_control_message_has_a_limit() -> None:
    reason = "x" * MAX_CONTROL
    with pytest.raises(DecodeError):
        decode_control(encode_control(Refusal(reason=reason), 1))
    assert decode_control(encode_control(Refusal(reason=reason[:-100]), 1))


@pytest.mark.parametrize("kind", [0, 1, 4, 5, 6, 9, 15])
def test_other_kinds_are_refused(kind: int) -> None:
    with pytest.raises(DecodeError, match=f"a message of kind {kind} in the handshake"):
        decode_control(seal(kind, 1, 0, [b"{}"]))


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_a_round_has_no_place_here(message: Control | Targets) -> None:
    """Where a frame would name its round, the body begins."""
    frame = encode_control(message, 1)
    kind, sender, _, body = unseal(frame)
    assert seal(kind, sender, 7, [body]) == frame
    assert round_of(frame) == 0


@pytest.mark.parametrize(("rows", "labels"), [(1 << 32 - 1, 0), (0, (1 << 32) - 1), (9, 2), (7, 1), (7, 3), (1, 2)])
def test_targets_that_claim_more_or_less_than_there_is(rows: int, labels: int) -> None:
    def claimed(rows: int, labels: int) -> bytes:
        numbers = varint(1) + varint(rows) + varint(labels)
        return seal(TARGETS, 1, 0, [bytes([3 << 3 if labels else 0]), numbers, b"\0\0", bytes(16)])

    assert decode_control(claimed(7, 2))
    with pytest.raises(DecodeError):
        decode_control(claimed(rows, labels))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_control(data)


@given(kind=st.sampled_from([CONTROL, TARGETS]), body=st.binary(max_size=200), m=st.integers(0, 65535))
def test_any_body_ends_in_a_value_or_a_decode_error(kind: int, body: bytes, m: int) -> None:
    try:
        sender, _ = decode_control(seal(kind, m, 0, [body]))
    except DecodeError:
        return
    assert sender == m


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("type", "name", "terms", "offer", "protocol", "session", "run", "rounds", "m", "how", "rows", "t0", "facts")
TYPES = st.sampled_from(["hello", "recall", "have", "settle", "settled", "begin", "end", "refusal", "x"])


@given(st.fixed_dictionaries({"type": TYPES}, optional=dict.fromkeys(FIELDS[1:], JSON)))
def test_any_values_end_in_a_message_that_comes_back_or_a_decode_error(values: dict[str, object]) -> None:
    try:
        _, message = decode_control(control(values))
    except DecodeError:
        return
    assert type(message).__name__.lower() == values["type"]
