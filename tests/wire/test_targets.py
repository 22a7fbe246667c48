"""Targets on the wire: every label comes back with its bits, in about as many bytes as it has to tell."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from cvfl.errors import DecodeError
from cvfl.wire import pack
from cvfl.wire.control import TARGETS, decode_control, encode_control
from cvfl.wire.frame import seal, unseal
from cvfl.wire.setup import SEAL
from cvfl.wire.targets import MAX_ROWS, ROWS_A_BYTE, Targets
from cvfl.wire.varint import varint
from mutations import MIB, outcome, peak

relaxed = settings(deadline=None)  # a busy machine is no failure


def told(parts: ArrayLike, labels: ArrayLike = (), loss: int = 0, outputs: int = 1) -> Targets:
    values = np.asarray(labels, dtype="<f8").tobytes()
    return Targets(2, loss, outputs, np.asarray(parts, dtype=np.uint8).tobytes(), values)


def size(targets: Targets) -> int:
    """Bytes of the frame, which says the same when it is read."""
    frame = encode_control(targets, 2)
    assert decode_control(frame) == (2, targets)
    return len(frame)


def drawn(rows: int, held_out: float = 0.25) -> np.ndarray:
    return np.where(np.random.default_rng(1).random(rows) < held_out, 2, 0)


@pytest.mark.parametrize(
    ("classes", "share", "most"),
    [(2, 0.5, 250), (2, 0.3, 235), (2, 0.05, 160), (3, 0.5, 310), (10, 0.9, 545)],
)
def test_a_thousand_rows_with_classes(classes: int, share: float, most: int) -> None:
    """Before, they took a byte a row and eight a label: 9,031 in all."""
    random, parts = np.random.default_rng(2), drawn(1000)
    labels = np.where(random.random(1000) < share, random.integers(1, classes, 1000), 0)
    assert size(told(parts, labels, 0 if classes == 2 else 1, 1 if classes == 2 else classes)) <= most


@pytest.mark.parametrize(("rows", "least"), [(1000, 1.25), (10_000, 1.05), (100_000, 1.02)])
@pytest.mark.parametrize("classes", [2, 7, 200])
def test_classes_take_little_more_than_their_entropy(classes: int, rows: int, least: float) -> None:
    random, parts = np.random.default_rng(3), drawn(rows)
    labels = np.minimum(random.geometric(0.4 if classes < 100 else 0.03, rows) - 1, classes - 1)
    bits = sum(rows * entropy(values) for values in (parts, labels))
    assert size(told(parts, labels, 1, classes)) <= least * bits / 8 + classes + 20


def entropy(values: np.ndarray) -> float:
    shares = np.bincount(values)[np.bincount(values) > 0] / len(values)
    return float(-(shares * np.log2(shares)).sum())


def test_parts_alone() -> None:
    """What parties of Algorithm 2 hear."""
    assert size(told(drawn(1000))) <= 130
    assert size(told(drawn(100_000))) <= 10_300


def test_rows_that_are_all_alike_are_paid_for() -> None:
    """A code would say it in no bytes; two bits a row are what a receiver's memory costs."""
    assert size(told(np.zeros(100_000))) == 2 + 6 + 25_000 + 4
    assert size(told(np.zeros(100_000), np.ones(100_000))) < 25_000 + 700


def test_quantities_have_four_bytes_if_that_is_all_they_have() -> None:
    values = np.random.default_rng(4).normal(size=1000)
    assert size(told(drawn(1000), values.astype(np.float32), 2)) <= 4000 + 130
    assert size(told(drawn(1000), values, 2)) <= 8000 + 130
    assert size(told(drawn(1000), [*values[1:].astype(np.float32), 0.1], 2)) > 8000


SPECIAL = [0.0, -0.0, 1.0, -1.0, 65_535.0, 65_536.0, 0.5, 0.1, 1e-300, 1e300, 1e38, 3.5e38, math.inf, -math.inf]


@relaxed
@given(
    parts=st.lists(st.integers(0, 3), max_size=200),
    labels=st.lists(st.sampled_from(SPECIAL) | st.integers(0, 70_000).map(float) | st.floats(), max_size=200)
    | st.lists(st.integers(0, 3).map(float), max_size=200),
    loss=st.integers(0, 7),
    outputs=st.integers(0, 65_535),
)
def test_any_labels_come_back_with_their_bits(parts: list[int], labels: list[float], loss: int, outputs: int) -> None:
    size(told(parts, labels[: len(parts)], loss, outputs))


@relaxed
@given(
    rows=st.integers(1, 70),
    parties=st.integers(1, 5),
    sealed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_which_rows_parties_hold_comes_back_with_its_bits(rows: int, parties: int, sealed: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    bits = [pack(random.integers(0, 2, rows), 1) + bytes(SEAL if sealed else 0) for _ in range(parties)]
    plain = told(drawn(rows), random.integers(0, 2, rows))
    whole = replace(plain, present=tuple(bits), sealed=sealed)
    assert size(whole) - size(plain) in range(1 + len(b"".join(bits)), 4 + len(b"".join(bits)))  # a longer checksum


@relaxed
@given(
    first=st.integers(0, 255),
    numbers=st.tuples(*[st.sampled_from([0, 1, 2, 33, 64, 300, 1 << 16, 1 << 26, 1 << 34])] * 3),
    rest=st.binary(max_size=80) | st.just(b"\x20\x81\x81") | st.just(bytes(80)),
)
def test_any_bytes_are_targets_or_refused_in_little_memory(first: int, numbers: tuple[int, ...], rest: bytes) -> None:
    frame = seal(TARGETS, 2, 0, [bytes([first]), *(varint(number) for number in numbers), rest])
    assert isinstance(outcome(decode_control, frame), tuple | DecodeError)
    assert peak(decode_control, frame) <= 32 * ROWS_A_BYTE * len(frame) + MIB


@pytest.mark.parametrize("rows", [10_000, 1_000_000])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5])
def test_the_memory_of_targets_is_that_of_their_rows(rows: int, share: float) -> None:
    labels = (np.random.default_rng(5).random(rows) < share).astype(float)
    frame = encode_control(told(drawn(rows), labels), 2)
    assert peak(decode_control, frame) <= 32 * rows + MIB
    assert rows <= ROWS_A_BYTE * len(frame)


@pytest.mark.parametrize(("rows", "parties"), [(100_000, 3), (1_000, 2_000)])
def test_which_rows_parties_hold_takes_no_memory(rows: int, parties: int) -> None:
    present = (bytes(rows // 8),) * parties
    frame = encode_control(replace(told(drawn(rows)), present=present), 2)
    assert peak(decode_control, frame) <= 32 * rows + MIB


def test_claims_of_rows_cost_nothing() -> None:
    """All zeros, in a code of no words: as many as the bytes pay for, and no more."""
    for rows in (MAX_ROWS, MAX_ROWS + 1, 1 << 34):
        frame = seal(TARGETS, 2, 0, [b"\x20\1", varint(rows), b"\0", bytes(4), b"\x10\x81"])
        assert isinstance(outcome(decode_control, frame), DecodeError)
        assert peak(decode_control, frame) < MIB
    body = b"\x20\1" + varint(150) + b"\0" + bytes(4) + b"\x10\x81"
    assert isinstance(decode_control(seal(TARGETS, 2, 0, [body]))[1], Targets)


@relaxed
@given(rows=st.integers(1, 120), at=st.integers(0, 10_000), bit=st.integers(0, 7), seed=st.integers(0, 99))
def test_damage_that_no_checksum_noticed(rows: int, at: int, bit: int, seed: int) -> None:
    labels, held = np.random.default_rng(seed).integers(0, 3, rows), pack(drawn(rows) // 2, 1)
    sent = replace(told(drawn(rows), labels, 1, 3), present=(held, held) if seed % 2 else ())
    body = bytearray(unseal(encode_control(sent, 2)).body)
    body[at % len(body)] ^= 1 << bit
    result = outcome(decode_control, seal(TARGETS, 2, 0, [body]))
    if not isinstance(result, DecodeError):
        _, targets = result
        assert set(targets.parts) <= {0, 1, 2, 3}
        assert all(math.isfinite(value) and value >= 0 for (value,) in struct.iter_unpack("<d", targets.labels))
