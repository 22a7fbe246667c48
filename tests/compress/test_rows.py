"""Rows coded one by one: the same alone, among others, and in every message; within the bound, and safe to decode."""

from __future__ import annotations

import pytest
import torch

from cvfl.compress import Context, Packet, Plane, build
from cvfl.compress.rows import EachRow, ScalarRows, by_row
from cvfl.errors import CompressError, DecodeError
from cvfl.rng import stream
from cvfl.wire import decode_packet, encode_packet

SPECS = ["scalar:bits=8", "scalar:bits=3", "scalar:bits=12", "scalar:bits=8,low=-4,high=4", "lattice:bits=4"]
DTYPES = [torch.float32, torch.float64]


def rows(n: int, width: int = 5) -> torch.Tensor:
    return torch.from_numpy(6 * stream(n, "rows").uniform(n * width) - 3).reshape(n, width)


def carried(spec: str, h: torch.Tensor, t0: int = 0, m: int = 1) -> torch.Tensor:
    compressor, context = by_row(build(spec)), Context(3, t0, m, "test embedding")
    data = encode_packet(compressor.compress(h, context))
    return by_row(build(spec)).decompress(decode_packet(data, tuple(h.shape)), context)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_among_others_and_in_every_message(spec, dtype):
    h = rows(40).to(dtype)
    together = carried(spec, h)
    assert together.dtype == dtype
    assert torch.equal(carried(spec, h.flip(0), t0=7).flip(0), together)
    assert all(torch.equal(carried(spec, h[i : i + 1], t0=i), together[i : i + 1]) for i in range(40))
    assert not torch.equal(carried(spec, h, m=2), together)  # each party has its own dither


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_is_within_the_sum_of_the_bounds_of_its_rows(spec, dtype):
    h, context = rows(60).to(dtype), Context(3, 0, 1, "test embedding")
    compressor = by_row(build(spec))
    bound = compressor.bound(h, context)
    assert 0 < float((carried(spec, h) - h).double().square().sum()) <= bound.worst
    assert bound.worst <= 60 * build(spec).bound(h, context).worst
    flat = torch.full((2, 3), 1.5, dtype=dtype)
    assert torch.equal(carried("scalar:bits=8", flat), flat)


def test_those_that_remember_or_send_every_bit_stay_as_they_are():
    assert all(by_row(one) is one for one in map(build, ["identity", "feedback(scalar:bits=4)"]))
    assert isinstance(by_row(build("scalar:bits=8")), ScalarRows)
    assert isinstance(by_row(build("lattice:bits=4")), EachRow)


@pytest.mark.parametrize("spec", SPECS)
def test_what_cannot_be_sent_or_read_is_refused(spec):
    context, compressor = Context(), by_row(build(spec))
    with pytest.raises(CompressError):
        compressor.compress(torch.tensor([[1.0, float("nan")]]), context)
    data = encode_packet(compressor.compress(rows(3).float(), context))
    for bad in (data[:-1], data + b"\0", data[:1], b"\2\3", b"\2\1\0"):
        with pytest.raises(DecodeError):
            compressor.decompress(decode_packet(bad, (3, 5)), context)
    with pytest.raises(DecodeError):
        compressor.decompress(decode_packet(data, (4, 5)), context)


def test_a_range_that_is_none_is_refused():
    ends = torch.tensor([[2.0, 1.0]]).reshape(-1).view(torch.int32)
    planes = (Plane(ends, 32), Plane(torch.zeros(5, dtype=torch.uint8), 8))
    with pytest.raises(DecodeError, match="two ordered numbers"):
        by_row(build("scalar:bits=8")).decompress(Packet((1, 5), planes), Context())
