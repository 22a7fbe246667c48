"""Law 7 by the million: damaged frames through decode, decode_packet and decompress."""

import collections

import pytest

from cvfl.errors import DecodeError
from mutations import COMPRESSORS, endless, frames, mutated, received

COUNT = 1_000_000


@pytest.mark.slow
def test_a_million_damaged_frames_end_in_a_value_or_a_decode_error():
    valid = frames()
    draw = endless(seed=20_240_607)
    outcomes: collections.Counter[str] = collections.Counter()
    reasons = set()
    for i in range(COUNT):
        frame = mutated(valid[i % len(valid)], valid[next(draw) % len(valid)], draw)
        # Frame i // 2 of a shape belongs to compressor i // 2 % 10; one in four goes to another one.
        guess = i // 2 if next(draw) % 4 else next(draw)
        try:
            received(frame, COMPRESSORS[guess % len(COMPRESSORS)])
            outcomes["value"] += 1
        except DecodeError as error:
            outcomes["refused"] += 1
            reasons.add(" ".join(word for word in str(error).split() if word.isalpha())[:40])
    assert outcomes.total() == COUNT
    assert outcomes["value"] > COUNT // 50
    assert outcomes["refused"] > COUNT // 50
    assert len(reasons) >= 15  # the damage reached every depth, not one check alone
    print(dict(outcomes), len(reasons), "reasons")
