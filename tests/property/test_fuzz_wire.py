"""Law 7: any bytes end in a value or a DecodeError, in memory that the bytes themselves pay for.

Stated multiples, as in docs/wire-format.md: decoding a frame takes at most 64 times its size and 1 MiB, opening a
packet at most 10 times its size and 1 MiB. A decompressed tensor has the shape that was expected.
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
from cvfl.wire.frame import seal
from cvfl.wire.message import MAX_PACKETS
from cvfl.wire.packet import plain_head
from mutations import (
    COMPRESSORS,
    MIB,
    endless,
    frames,
    mutated,
    opened,
    outcome,
    packets,
    peak,
    received,
    sealed,
    shape_of,
    unsealed,
)

FRAMES = frames()
PACKETS = packets()
compressors = st.sampled_from(COMPRESSORS)
shapes = st.sampled_from([(), (2, 3), (0,), (6,)])
relaxed = settings(deadline=None)  # a busy machine is no failure


@relaxed
@given(data=st.binary(max_size=300))
@example(b"")
@example(b"cvfl" + bytes(16))
@example(b"\x21\1\0")
def test_random_bytes_are_a_message_or_refused(data):
    assert isinstance(outcome(decode, data), Message | DecodeError)


@relaxed
@given(body=st.binary(max_size=200), kind=st.integers(0, 15), sender=st.sampled_from([0, 1, 65_535]), c=compressors)
def test_random_bodies_in_a_sound_frame(body, kind, sender, c):
    assert isinstance(outcome(received, seal(kind, sender, 5, [body]), c, (2, 3)), list | DecodeError)


@relaxed
@given(body=st.binary(max_size=200), kind=st.integers(4, 7), sender=st.sampled_from([0, 1, 65_535]))
def test_random_bodies_before_the_first_round(body, kind, sender):
    frame = seal(kind, sender, 0, [body])
    result = outcome(decode_setup, frame)
    assert isinstance(result, Setup | DecodeError)
    if not isinstance(result, DecodeError):
        assert encode_setup(result) == frame
    assert peak(decode_setup, frame) <= 64 * len(frame) + MIB


@relaxed
@given(data=st.binary(max_size=300), c=compressors, shape=shapes)
@example(b"\x00", COMPRESSORS[0], ())
def test_random_bytes_are_a_packet_or_refused(data, c, shape):
    assert isinstance(outcome(decode_packet, data, shape), Packet | DecodeError)
    assert isinstance(outcome(opened, data, c, shape), torch.Tensor | DecodeError)


@st.composite
def plausible_packets(draw):
    """Headers that could be true, for 6 components, with payloads of the right length or nearly."""
    code = draw(st.integers(0, 1))
    scalars = draw(st.lists(st.floats(width=32), max_size=3))
    planes = draw(st.lists(st.tuples(st.integers(1, 33) | st.just(64), st.integers(0, 40) | st.just(6)), max_size=4))
    payload = sum(-(-width * count // 8) for width, count in planes) + draw(st.sampled_from([0, 0, 0, 1, -1]))
    head = bytes([code | min(len(scalars), 3) << 2 | len(planes) << 4, *[3] * (len(scalars) == 3)])
    head += b"".join(plain_head(width, count, 6) for width, count in planes)
    head += struct.pack(f"<{len(scalars)}{'fd'[code]}", *scalars)
    fill = draw(st.sampled_from([bytes, lambda n: b"\xff" * n, lambda n: draw(st.binary(min_size=n, max_size=n))]))
    return head + fill(max(payload, 0))


@settings(relaxed, max_examples=400)
@given(data=plausible_packets(), shape=shapes)
def test_plausible_packets_through_every_compressor(data, shape):
    for compressor in COMPRESSORS:
        expected = outcome(opened, data, compressor, shape)
        assert isinstance(expected, DecodeError) or expected.shape == shape


@settings(relaxed, max_examples=400)
@given(i=st.integers(0, len(FRAMES) - 1), j=st.integers(0, len(FRAMES) - 1), seed=st.integers(0, 2**32), c=compressors)
def test_damaged_frames(i, j, seed, c):
    frame = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64))
    assert isinstance(outcome(received, frame, c, shape_of(i)), list | DecodeError)


@relaxed
@given(i=st.integers(0, len(PACKETS) - 1), cut=st.integers(0, 10_000), c=compressors)
def test_packets_cut_anywhere_are_refused(i, cut, c):
    data = PACKETS[i]
    assert isinstance(outcome(opened, data[: cut % len(data)], c, shape_of(i)), DecodeError)
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
        assert opened(data, COMPRESSORS[i // 2 % len(COMPRESSORS)], shape_of(i)).isfinite().all()


@settings(relaxed, max_examples=300)
@given(i=st.integers(0, len(FRAMES) - 1), j=st.integers(0, len(FRAMES) - 1), seed=st.integers(0, 2**32))
def test_memory_of_damaged_frames(i, j, seed):
    frame = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64))
    assert peak(decode, frame) <= 64 * len(frame) + MIB
    for compressor in COMPRESSORS[:: 1 + seed % 3]:
        tensors = outcome(received, frame, compressor, shape_of(i))
        assert isinstance(tensors, DecodeError) or all(h.shape == shape_of(i) for h in tensors)


@settings(relaxed, max_examples=300)
@given(data=plausible_packets(), shape=shapes)
def test_memory_of_plausible_packets(data, shape):
    assert peak(decode_packet, data, shape) <= 10 * len(data) + MIB


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 12, 16, 17, 31, 32, 64])
@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_memory_of_large_packets(width, count):
    data = encode_packet(Packet((count,), (Plane(torch.ones(count, dtype=torch.int64), width),)))
    assert peak(decode_packet, data, (count,)) <= 10 * len(data) + MIB


@pytest.mark.parametrize("count", [1000, MAX_PACKETS, MAX_PACKETS + 1, 65_535])
def test_memory_of_many_empty_packets(count):
    """Two bytes each and Python's objects for each, so their number has a cap."""
    for message in (
        Broadcast(0, (), tuple((m, b"") for m in range(1, count + 1))),
        Broadcast(0, (b"",) * count, ()),
    ):
        frame = encode(message)
        assert peak(decode, frame) <= 64 * len(frame) + MIB
        assert isinstance(outcome(decode, frame), DecodeError if count > MAX_PACKETS else Broadcast)


@pytest.mark.parametrize("count", [1, 1000, MAX_PACKETS - 1, MAX_PACKETS, 10**6])
def test_memory_of_many_empty_pieces(count):
    """One byte each, so their number has a cap of its own."""
    frame = encode(Folded(0, b"", (b"",) * count))
    assert peak(decode, frame) <= 64 * len(frame) + MIB
    assert isinstance(outcome(decode, frame), DecodeError if count >= MAX_PACKETS else Folded)


def claims(*planes: tuple[int, int]) -> bytes:
    return bytes([len(planes) << 4]) + b"".join(plain_head(width, count, 0) for width, count in planes)


@pytest.mark.parametrize(
    "data",
    [
        claims((1, 2**31)),
        claims(*[(64, 2**32 - 1)] * 8),
        claims(*[(64, 2**35 - 1)] * 8),
        claims((1, 0), (32, 0)),
        claims((31, 1), (32, 1)) + bytes(8),
        b"\x20\1\x20",
    ],
    ids=["bits", "eight planes", "largest numbers", "nothing", "one index", "as many as expected"],
)
def test_claims_of_gigabytes_cost_nothing(data):
    for compressor in COMPRESSORS:
        for shape in ((2**16, 2**15), (2**31,), (1, 2**31), (0, 2**31)):
            assert peak(opened, data, compressor, shape) < MIB
            result = outcome(opened, data, compressor, shape)
            assert isinstance(result, DecodeError) or result.numel() == 0


def test_a_checksum_has_two_bytes_up_to_a_kilobyte_and_four_beyond():
    """Nothing else of a frame depends on its length."""
    for size in (0, 1, 1019, 1020, 1021, 1022, 1023, 5000):
        frame = encode(Embedding(1, 1, bytes(size)))
        assert len(frame) == 3 + size + (2 if size <= 1021 else 4)
        assert sealed(unsealed(frame)) == frame
        assert decode(frame) == Embedding(1, 1, bytes(size))


def test_peak_measures():
    """The instrument sees what NumPy allocates, also when it is gone at the end."""
    assert peak(lambda: np.zeros(3 * MIB, dtype=np.uint8).sum()) > 3 * MIB
