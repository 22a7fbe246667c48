"""Law 7: any bytes end in a value or a DecodeError, in memory that the bytes themselves pay for.

Stated multiples, as in docs/wire-format.md: decoding a frame takes at most 64 times its size and 1 MiB, opening a
packet at most 10 times its size and 1 MiB, and a decompressed tensor has at most 64 times its packet's size.
"""

import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cvfl.compress import Packet, Plane
from cvfl.errors import DecodeError
from cvfl.wire import (
    Broadcast,
    Embedding,
    Folded,
    Message,
    Setup,
    decode,
    decode_packet,
    decode_setup,
    encode,
    encode_packet,
    encode_setup,
)
from cvfl.wire.message import MAX_PACKETS
from mutations import (
    COMPRESSORS,
    MIB,
    endless,
    fitted,
    frames,
    mutated,
    opened,
    outcome,
    packets,
    peak,
    received,
    sealed,
)

FRAMES = frames()
PACKETS = packets()
compressors = st.sampled_from(COMPRESSORS)
relaxed = settings(deadline=None)  # a busy machine is no failure


@relaxed
@given(data=st.binary(max_size=300))
@example(b"")
@example(b"cvfl" + bytes(16))
def test_random_bytes_are_a_message_or_refused(data):
    assert isinstance(outcome(decode, data), Message | DecodeError)


@relaxed
@given(body=st.binary(max_size=200), kind=st.integers(0, 13), sender=st.sampled_from([0, 1, 65_535]), c=compressors)
def test_random_bodies_in_a_sound_frame(body, kind, sender, c):
    head = struct.pack("<4sBBHIII", b"cvfl", 1, kind, sender, 5, len(body), 0)
    assert isinstance(outcome(received, sealed(head + body), c), list | DecodeError)


@relaxed
@given(
    body=st.binary(max_size=200), kind=st.integers(4, 7), sender=st.sampled_from([0, 1, 65_535]), t0=st.integers(0, 1)
)
def test_random_bodies_before_the_first_round(body, kind, sender, t0):
    head = struct.pack("<4sBBHIII", b"cvfl", 1, kind, sender, t0, len(body), 0)
    result = outcome(decode_setup, sealed(head + body))
    assert isinstance(result, Setup | DecodeError)
    if not isinstance(result, DecodeError):
        assert encode_setup(result) == sealed(head + body)
    assert peak(decode_setup, sealed(head + body)) <= 64 * len(head + body) + MIB


@relaxed
@given(data=st.binary(max_size=300), c=compressors)
@example(b"\x01\x00\x00\x00", COMPRESSORS[0])
def test_random_bytes_are_a_packet_or_refused(data, c):
    assert isinstance(outcome(decode_packet, data), Packet | DecodeError)
    assert isinstance(outcome(opened, data, c), torch.Tensor | DecodeError)


@st.composite
def plausible_packets(draw):
    """Headers that could be true, with payloads of the right length or nearly."""
    shape = draw(st.lists(st.integers(0, 6) | st.sampled_from([2**16, 2**31, 2**32 - 1]), max_size=4))
    code = draw(st.integers(1, 2))
    scalars = draw(st.lists(st.floats(width=32), max_size=3))
    planes = draw(st.lists(st.tuples(st.integers(1, 33) | st.just(64), st.integers(0, 40)), max_size=4))
    payload = sum(-(-width * count // 8) for width, count in planes) + draw(st.sampled_from([0, 0, 0, 1, -1]))
    head = struct.pack(f"<BBBB{len(shape)}I", code, len(shape), len(scalars), len(planes), *shape)
    head += struct.pack(f"<{len(scalars)}{'fd'[code - 1]}", *scalars)
    head += b"".join(struct.pack("<BI", *plane) for plane in planes)
    fill = draw(st.sampled_from([bytes, lambda n: b"\xff" * n, lambda n: draw(st.binary(min_size=n, max_size=n))]))
    return head + fill(max(payload, 0))


@settings(relaxed, max_examples=400)
@given(data=plausible_packets(), shape=st.sampled_from([(), (2, 3), (0,), (6,)]))
def test_plausible_packets_through_every_compressor(data, shape):
    for compressor in COMPRESSORS:
        assert isinstance(outcome(opened, data, compressor), torch.Tensor | DecodeError)
        expected = outcome(opened, data, compressor, shape)
        assert isinstance(expected, DecodeError) or expected.shape == shape


@settings(relaxed, max_examples=400)
@given(i=st.integers(0, len(FRAMES) - 1), j=st.integers(0, len(FRAMES) - 1), seed=st.integers(0, 2**32), c=compressors)
def test_damaged_frames(i, j, seed, c):
    frame = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64))
    assert isinstance(outcome(received, frame, c), list | DecodeError)


@relaxed
@given(i=st.integers(0, len(PACKETS) - 1), cut=st.integers(0, 10_000), c=compressors)
def test_packets_cut_anywhere_are_refused(i, cut, c):
    data = PACKETS[i]
    assert isinstance(outcome(opened, data[: cut % len(data)], c), DecodeError)
    assert isinstance(outcome(decode, FRAMES[i][: cut % len(FRAMES[i])]), DecodeError)


@relaxed
@given(i=st.integers(0, len(FRAMES) - 1), bit=st.integers(0, 10**6))
def test_any_flipped_bit_of_a_frame_is_noticed(i, bit):
    frame = bytearray(FRAMES[i])
    frame[bit // 8 % len(frame)] ^= 1 << bit % 8
    assert isinstance(outcome(decode, bytes(frame)), DecodeError)


def test_undamaged_ones_are_accepted():
    """The tests above would pass with a decoder that refuses everything."""
    assert all(isinstance(decode(frame), Message) for frame in FRAMES)
    for i, data in enumerate(PACKETS):
        assert opened(data, COMPRESSORS[i // 2 % len(COMPRESSORS)]).isfinite().all()


@settings(relaxed, max_examples=300)
@given(i=st.integers(0, len(FRAMES) - 1), j=st.integers(0, len(FRAMES) - 1), seed=st.integers(0, 2**32))
def test_memory_of_damaged_frames(i, j, seed):
    frame = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64))
    assert peak(decode, frame) <= 64 * len(frame) + MIB
    for compressor in COMPRESSORS[:: 1 + seed % 3]:
        tensors = outcome(received, frame, compressor)
        if not isinstance(tensors, DecodeError):
            assert sum(h.numel() * h.element_size() for h in tensors) <= 64 * len(frame)


@settings(relaxed, max_examples=300)
@given(data=plausible_packets())
def test_memory_of_plausible_packets(data):
    assert peak(decode_packet, data) <= 10 * len(data) + MIB


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 12, 16, 17, 31, 32, 64])
@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_memory_of_large_packets(width, count):
    data = encode_packet(Packet((count,), (Plane(torch.ones(count, dtype=torch.int64), width),)))
    assert peak(decode_packet, data) <= 10 * len(data) + MIB


@pytest.mark.parametrize("count", [1000, 65_535])
def test_memory_of_many_empty_packets(count):
    """The worst case: six bytes each, and Python's objects for each."""
    for message in (
        Broadcast(0, (), tuple((m, b"") for m in range(1, count + 1))),
        Broadcast(0, (b"",) * count, ()),
    ):
        frame = encode(message)
        assert 20 * len(frame) < peak(decode, frame) <= 64 * len(frame) + MIB


@pytest.mark.parametrize("count", [1, 1000, MAX_PACKETS - 1, MAX_PACKETS, 10**6])
def test_memory_of_many_empty_pieces(count):
    """One byte each, so their number has a cap of its own."""
    frame = encode(Folded(0, b"", (b"",) * count))
    assert peak(decode, frame) <= 64 * len(frame) + MIB
    assert isinstance(outcome(decode, frame), DecodeError if count >= MAX_PACKETS else Folded)


def claims(*shape: int, planes: list[tuple[int, int]], dtype: int = 1) -> bytes:
    head = struct.pack(f"<BBBB{len(shape)}I", dtype, len(shape), 0, len(planes), *shape)
    return head + b"".join(struct.pack("<BI", *plane) for plane in planes)


@pytest.mark.parametrize(
    "data",
    [
        claims(2**16, 2**15, planes=[(1, 2**31)]),
        claims(2**31, planes=[(64, 2**32 - 1)] * 8),
        claims(2**31, planes=[(1, 0), (32, 0)]),
        claims(1, 2**31, planes=[(31, 1), (32, 1)]) + bytes(8),
        claims(2**31, 1, planes=[(1, 1), (32, 1)]) + b"\1" + bytes(4),
        claims(2**31, 0, planes=[(1, 0), (32, 0)]),
        claims(*[2**32 - 1] * 7, 0, planes=[]),
    ],
    ids=["bits", "eight planes", "nothing", "one index", "one row", "no columns", "strides"],
)
def test_claims_of_gigabytes_cost_nothing(data):
    for compressor in COMPRESSORS:
        assert peak(opened, data, compressor) < MIB
        result = outcome(opened, data, compressor)
        assert isinstance(result, DecodeError) or result.numel() == 0


def test_a_length_is_checked_before_the_body_is_read():
    frame = bytearray(encode(Embedding(1, 1, b"")))
    frame[12:16] = struct.pack("<I", 2**30)
    assert peak(decode, sealed(frame)) < MIB
    assert "announced" in str(outcome(decode, sealed(frame)))
    assert fitted(frame)[12:16] == bytes(4)


def test_peak_measures():
    """The instrument sees what NumPy allocates, also when it is gone at the end."""
    assert peak(lambda: np.zeros(3 * MIB, dtype=np.uint8).sum()) > 3 * MIB
