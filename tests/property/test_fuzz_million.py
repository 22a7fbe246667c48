"""Law 7 by the million: damaged frames through decode, decode_packet and decompress."""

import collections

import pytest

from cvfl.errors import DecodeError
from cvfl.wire import Embedding, encode
from mutations import COMPRESSORS, cases, endless, frames, mutated, received, shape_of

COUNT = 1_000_000


@pytest.mark.slow
def test_a_million_damaged_frames_end_in_a_value_or_a_decode_error():
    valid = frames()
    draw = endless(seed=20_240_607)
    outcomes: collections.Counter[str] = collections.Counter()
    reasons = set()
    for i in range(COUNT):
        frame = mutated(valid[i % len(valid)], valid[next(draw) % len(valid)], draw)
        # Frame i // 2 of a shape belongs to compressor i // 2 % 11; one in four goes to another one.
        guess = i // 2 if next(draw) % 4 else next(draw)
        try:
            received(frame, COMPRESSORS[guess % len(COMPRESSORS)], shape_of(i % len(valid)))
            outcomes["value"] += 1
        except DecodeError as error:
            outcomes["refused"] += 1
            reasons.add(" ".join(word for word in str(error).split() if word.isalpha())[:40])
    assert outcomes.total() == COUNT
    assert outcomes["value"] > COUNT // 50
    assert outcomes["refused"] > COUNT // 50
    assert len(reasons) >= 15  # the damage reached every depth, not one check alone
    print(dict(outcomes), len(reasons), "reasons")


@pytest.mark.slow
def test_damaged_codes_by_the_hundred_thousand():
    """Codes, and packets whose meaning depends on what the receiver has learned; the shape is what it expects."""
    known = cases()
    valid = [encode(Embedding(2, 3, case.data)) for case in known]
    draw = endless(seed=20_250_117)
    outcomes: collections.Counter[str] = collections.Counter()
    reasons = set()
    for i in range(COUNT // 5):
        case = known[i % len(known)]
        frame = mutated(valid[i % len(known)], valid[next(draw) % len(valid)], draw)
        try:
            (h,) = received(frame, case.receiver, case.shape)
            assert h.shape == case.shape
            outcomes["value"] += 1
        except DecodeError as error:
            outcomes["refused"] += 1
            reasons.add(" ".join(word for word in str(error).split() if word.isalpha())[:40])
    assert outcomes.total() == COUNT // 5
    assert min(outcomes.values()) > COUNT // 50
    assert len(reasons) >= 15
    print(dict(outcomes), len(reasons), "reasons")
