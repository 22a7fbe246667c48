"""Law 7 for codes, and for packets that mean something to a receiver that has learned: a value, or a DecodeError.

The shape is what the receiver expects, so memory is measured by it: as docs/wire-format.md states, opening a code takes
at most 160 bytes for each symbol that a plane may have for that shape, and 1 MiB.
"""

import copy
import math
import struct

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cvfl.compress import build
from cvfl.errors import DecodeError
from cvfl.wire import Embedding, Evaluation, Gradient, decode, decode_packet, encode
from cvfl.wire.varint import varint
from mutations import CONTEXT, LEARNING, MIB, SHAPES, cases, endless, mutated, opened, outcome, peak, received

CASES = cases()
FRAMES = [encode(Embedding(2, 3, case.data)) for case in CASES]
CODED = [i for i, case in enumerate(CASES) if case.data[0] & 2]
numbers = st.integers(0, len(CASES) - 1)
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure


def allowed(shape: tuple[int, ...]) -> int:
    P = shape[-1] if shape else 1
    return 160 * max(64, P * max(math.prod(shape[:-1]) + 1, min(P, 128))) + MIB


def test_undamaged_ones_are_accepted():
    """The tests below would pass with a decoder that refuses everything."""
    assert len(CASES) == len(LEARNING) * len(SHAPES) * 2
    assert len(CODED) >= len(CASES) // 2
    for case in CASES:
        h = opened(case.data, case.receiver, case.shape)
        assert (h.shape, h.dtype) == (case.shape, case.dtype)
        assert h.isfinite().all()


@settings(relaxed, max_examples=600)
@given(i=numbers, j=numbers, seed=st.integers(0, 2**32))
def test_damaged_codes(i, j, seed):
    frame, case = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64)), CASES[i]
    result = outcome(received, frame, case.receiver, case.shape)
    assert isinstance(result, DecodeError) or [h.shape for h in result] == [case.shape]


@settings(relaxed, max_examples=200)
@given(i=numbers, j=numbers, seed=st.integers(0, 2**32))
def test_what_was_decoded_can_be_settled(i, j, seed):
    """A receiver that took a damaged packet for a sound one goes on: it learns, and decodes the next or refuses it."""
    frame, case = mutated(FRAMES[i], FRAMES[j], endless(seed, block=64)), CASES[i]
    receiver = copy.deepcopy(case.receiver)
    result = outcome(received, frame, receiver, case.shape)
    if not isinstance(result, DecodeError):
        message = decode(frame)
        assert isinstance(message, Embedding | Evaluation | Gradient)  # whose first packet it is
        packet = decode_packet(message.packet, case.shape)
        receiver.settle(packet, result[0], CONTEXT)
        assert isinstance(outcome(opened, case.data, receiver, case.shape), torch.Tensor | DecodeError)


@settings(relaxed, max_examples=300)
@given(i=numbers, cut=st.integers(0, 10_000))
def test_cut_off_anywhere(i, cut):
    """Within its head or its scalars a code is refused; of missing bytes a decoder takes zeros for granted."""
    case = CASES[i]
    data = case.data[: cut % len(case.data)]
    result = outcome(opened, data, case.receiver, case.shape)
    assert isinstance(result, torch.Tensor | DecodeError)
    if not case.data[0] & 2:
        assert isinstance(result, DecodeError)


@settings(relaxed, max_examples=200)
@given(i=st.sampled_from(CODED), tail=st.binary(min_size=1, max_size=36))
def test_bytes_too_many(i, tail):
    """A decoder knows how much the symbols say, and no symbol says more than 64 bits: the rest is left over."""
    case = CASES[i]
    data = case.data + b"\1" * (8 * max(64, 2 * math.prod(case.shape)) + 64) + tail
    assert isinstance(outcome(opened, data, case.receiver, case.shape), DecodeError)


@pytest.mark.parametrize("tail", [b"\0", b"\1", bytes(4), b"\1" * 12])
def test_bytes_where_there_are_no_symbols(tail):
    empty, compressor = b"\x12\x20", build("entropy(identity)")
    assert opened(empty, compressor, (0, 4)).shape == (0, 4)
    assert isinstance(outcome(opened, empty + tail, compressor, (0, 4)), DecodeError)


@st.composite
def plausible_codes(draw):
    """Heads that could be true, with any words."""
    scalars, planes = draw(st.integers(0, 3)), draw(st.integers(0, 9))
    data = bytearray([2 + draw(st.integers(0, 1)) + 4 * scalars + 16 * planes])
    data += bytes([draw(st.sampled_from([0, 3, 4, 17]))]) if scalars == 3 else b""
    for _ in range(planes):
        count = draw(st.sampled_from([0, 0, 1, 2, 33, 65, 66, 4097, 2**20, 2**32, 2**34]) | st.integers(0, 2000))
        columns = draw(st.sampled_from([0, 1, 1, 1, 2, 5, 8, 40, 2**33]))
        first = draw(st.integers(0, 255))
        data += bytes([first])
        data += varint(columns) if first & 0xC0 == 0xC0 else b""
        data += varint(count) if first & 0xA0 == 0xA0 or first & 0xC0 == 0x40 else b""
    data += draw(st.sampled_from([b"", bytes(8), b"\xff" * 8, struct.pack("<ff", -1, 1)]))
    data += draw(st.binary(max_size=64) | st.sampled_from([b"", b"\xff" * 32, bytes(32)]))
    return bytes(data)


@settings(relaxed, max_examples=600)
@given(data=plausible_codes() | st.binary(min_size=1, max_size=100).map(lambda tail: b"\x12" + tail), i=numbers)
@example(b"\x12\x8f" + b"\xff" * 8, 4)
@example(b"\x12\x10", 4)
def test_plausible_codes(data, i):
    case = CASES[i]
    result = outcome(opened, data, case.receiver, case.shape)
    assert isinstance(result, DecodeError) or result.shape == case.shape
    assert peak(opened, data, case.receiver, case.shape) <= allowed(case.shape)


def head(width: int, count: int, columns: int, adaptive: bool) -> bytes:
    """The head of a plane; a count of 0 is that of the components."""
    if not adaptive:
        return bytes([width % 64 | 64 * bool(count)]) + (varint(count) if count else b"")
    return bytes([0xC0 | 32 * bool(count) | width - 1]) + varint(columns) + (varint(count) if count else b"")


@pytest.mark.parametrize("shape", [(6,), (1, 3000), (200, 160)])
@pytest.mark.parametrize(
    ("width", "adaptive", "rows"),
    [(64, False, 1), (32, False, 1), (16, True, 1), (16, True, 32), (5, True, 32), (8, True, 256), (1, True, 32)],
)
def test_memory_of_eight_planes_with_as_many_models_as_may_be(shape, width, adaptive, rows):
    n = math.prod(shape)
    columns = max(c for c in range(1, max(1, n // max(32, rows)) + 1) if n % c == 0)
    data = b"\x82" + head(width, 0, columns, adaptive) * 8
    compressor = build("entropy(identity)")
    assert peak(opened, data, compressor, shape) <= allowed(shape)
    assert isinstance(outcome(opened, data, compressor, shape), DecodeError)  # after all eight were decoded


@pytest.mark.parametrize(
    "plane",
    [
        head(16, 2**34, 1, True),
        head(64, 2**34, 1, False),
        head(8, 0, 3000, True),
        b"\xdf" + varint(2**30),
        head(1, 2**30, 2**25, True),
    ],
)
def test_claims_of_gigabytes_cost_nothing(plane):
    data = b"\x82" + plane * 8
    for spec in LEARNING:
        assert peak(opened, data, build(spec), (30, 100)) < MIB
        assert isinstance(outcome(opened, data, build(spec), (30, 100)), DecodeError)


@pytest.mark.parametrize("spec", LEARNING)
def test_a_code_for_another_shape(spec):
    """Basis, counts and columns do not fit: refused, or numbers of the expected shape."""
    for case in CASES[LEARNING.index(spec) * len(SHAPES) * 2 :][: len(SHAPES) * 2]:
        for shape in SHAPES:
            result = outcome(opened, case.data, build(spec), shape)
            assert isinstance(result, DecodeError) or result.shape == shape
