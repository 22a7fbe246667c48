"""Scalar quantizer: examples by hand, and the three promises of subtractive dither."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from cvfl.compress import Context, Identity, Packet, Plane, Scalar, base
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.theory import scalar_error, scalar_step

N = 100_000
SIX = 6 / math.sqrt(N)
"""Six deviations of a mean of N numbers of variance one."""


@dataclass(frozen=True)
class Dithered(Context):
    """A context whose dither is one number, in cells."""

    v: float = 0.0

    def dither(self, n):
        return torch.full((n,), round(self.v * 2**16), dtype=torch.int16)


def symbols(compressor, h, context):
    return compressor.compress(torch.as_tensor(h), context).planes[0].symbols.tolist()


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        (0.0, [0, 0, 1, 1, 2, 3]),  # floor(y + 1/2)
        (0.25, [0, 1, 1, 2, 2, 3]),
        (-0.5, [0, 0, 0, 1, 1, 3]),  # floor(y)
    ],
)
def test_by_hand(v, expected):
    """Four levels over [0, 3]: cells of 1."""
    compressor, h = Scalar(2, low=0.0, high=3.0), [0.0, 0.4, 0.5, 1.49, 1.5, 3.0]
    packet = compressor.compress(torch.tensor(h), Dithered(v=v))
    assert packet.planes[0].symbols.tolist() == expected
    assert packet.planes[0].width == 2
    assert packet.scalars == ()
    assert compressor.decompress(packet, Dithered(v=v)).tolist() == [q - v for q in expected]


def test_a_measured_range_travels():
    compressor = Scalar(1)
    packet = compressor.compress(torch.tensor([[-2.0, 6.0], [0.0, 1.9]]), Dithered())
    assert packet.scalars == (-2.0, 6.0)
    assert packet.planes[0].symbols.tolist() == [0, 1, 0, 0]
    assert compressor.decompress(packet, Dithered()).tolist() == [[-2.0, 6.0], [-2.0, -2.0]]


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_range_never_leave_the_levels(bits, dtype):
    """Whatever the dither: q is 0 or next to it at low, 2^b - 1 or next to it at high; nothing is clipped."""
    compressor = Scalar(bits, low=-1.0, high=1.0)
    delta = scalar_step(bits, -1.0, 1.0)
    ends = torch.tensor([-1.0, 1.0], dtype=dtype)
    for v in (-0.5, -(2**-16), 0.0, 2**-16, 0.5 - 2**-16):
        context = Dithered(v=v)
        packet = compressor.compress(ends, context)
        assert packet.planes[0].symbols.tolist() == [0, 2**bits - 1]
        error = (compressor.decompress(packet, context) - ends).abs().max()
        assert error <= delta / 2 * (1 + 2**-11) + 2**-23


@pytest.mark.parametrize("bits", [1, 2, 5, 11])
@pytest.mark.parametrize("shape", ["uniform", "atoms"])
def test_the_error_is_uniform_over_a_cell_and_knows_nothing_of_h(bits, shape):
    random = torch.Generator().manual_seed(bits)
    h = torch.rand(N, generator=random, dtype=torch.float64) * 2 - 1
    if shape == "atoms":
        h = torch.tensor([-1.0, -0.37, 0.5, 1.0])[(h * 2 + 2).long()].double()
    compressor, context = Scalar(bits, low=-1.0, high=1.0), Context(seed=bits, t0=1, m=2)
    error = (compressor.decompress(compressor.compress(h, context), context) - h) / scalar_step(bits, -1.0, 1.0)

    assert error.abs().max() <= 0.5 + 1e-9
    assert abs(error.mean()) < SIX / math.sqrt(12)
    assert abs(error.square().mean() - 1 / 12) < SIX / math.sqrt(180)
    counts = torch.histc(error, bins=20, min=-0.5, max=0.5)
    assert (counts - N / 20).abs().max() < 6 * math.sqrt(N / 20)
    for function in (h, h.square(), (h > 0.4).double(), torch.sin(40 * h)):
        assert abs(torch.corrcoef(torch.stack([error, function]))[0, 1]) < SIX
        assert abs(torch.corrcoef(torch.stack([error.square(), function]))[0, 1]) < SIX


def test_without_subtracting_the_dither_the_error_would_know_h():
    """The test above can fail: leave the dither out and the error of an atom is always the same."""
    compressor, h = Scalar(2, low=-1.0, high=1.0), torch.full((100,), 0.5)
    error = compressor.decompress(compressor.compress(h, Dithered()), Dithered()) - h
    assert error.std() < 1e-6
    assert abs(error[0]) > 0.1


@pytest.mark.parametrize("value", [0.0, 7.25, -1e-42, 1e30])
@pytest.mark.parametrize("bits", [1, 8, 16])
def test_a_constant_returns_exactly(value, bits):
    h = torch.full((3, 5), value)
    context = Context(seed=1)
    assert torch.equal(Scalar(bits).decompress(Scalar(bits).compress(h, context), context), h)
    assert Scalar(bits).bound(h, context).worst == 0


def test_a_fixed_range_names_what_is_outside():
    with pytest.raises(CompressError, match=r"spans \[-0.25, 1.5\], outside the compressor's \[-1, 1\]; widen"):
        Scalar(4, low=-1.0, high=1.0).compress(torch.tensor([0.0, 1.5, -0.25]), Context())


@pytest.mark.parametrize("limit", [0.1, 1 / 3, 0.7])
def test_a_limit_that_is_no_float32_includes_its_float32(limit):
    """hardtanh(-0.1, 0.1) gives float32(-0.1), which is below -0.1."""
    compressor, context = Scalar(8, low=-limit, high=limit), Context(seed=2)
    h = torch.tensor([-limit, limit])
    error = compressor.decompress(compressor.compress(h, context), context) - h
    assert float(error.double().square().sum()) <= compressor.bound(h, context).worst
    with pytest.raises(CompressError, match="outside"):
        compressor.compress(torch.nextafter(h, h * 2), context)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("compressor", [Scalar(3), Scalar(3, low=-1, high=1)], ids=["measured", "fixed"])
def test_what_is_not_finite_is_refused(compressor, bad):
    with pytest.raises(CompressError, match="NaN or an infinite"):
        compressor.compress(torch.tensor([0.0, bad]), Context())


def test_what_could_overflow_is_refused():
    with pytest.raises(CompressError, match=r"beyond the ±8.51e\+37"):
        Scalar(1).compress(torch.tensor([-2e38, 2e38]), Context())
    with pytest.raises(CompressError, match=r"beyond the ±3.12e\+144"):
        Scalar(1).bound(torch.tensor([0.0, 1e200], dtype=torch.float64), Context())


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 1.0, "low must be below high"),
        (math.nan, 1.0, "low must be below high"),
        (-math.inf, 1.0, "both finite"),
        (0.0, None, "give both low and high"),
        (0.0, 1e39, r"within ±8.51e\+37"),
    ],
)
def test_a_range_that_is_none(low, high, text):
    with pytest.raises(ConfigError, match=text):
        Scalar(2, low=low, high=high)


def test_the_bound_is_the_theorys_where_floats_are_fine_enough():
    h = torch.tensor([[-1.0, 1.0, 0.25]])
    assert Scalar(4).bound(h, Context()) == scalar_error(3, 4, -1.0, 1.0)
    assert Scalar(4, low=-2, high=2).bound(h, Context()) == scalar_error(3, 4, -2.0, 2.0)
    # Near 1000 a float32 moves in steps of 6e-5, more than a cell of 8 bits over 0.002.
    offset = torch.tensor([999.999, 1000.001])
    assert Scalar(8).bound(offset, Context()).worst > scalar_error(2, 8, *offset.tolist()).worst


def test_refined_adds_bits_and_ends_in_the_floats_themselves():
    fixed = Scalar(4, low=-1, high=2)
    finer = fixed.refined(1 / 16)
    assert isinstance(finer, Scalar)
    assert (finer.bits, finer.range.fixed) == (6, (-1.0, 2.0))
    assert fixed.refined(1.0).nominal_bits(0) == 4
    assert Scalar(15).refined(1 / 4).nominal_bits(0) == 16
    assert isinstance(Scalar(15).refined(1 / 5), Identity)


@pytest.mark.parametrize(
    "packet",
    [
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 3),), scalars=(0.0, 1.0)),
        Packet((3,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),), scalars=(0.0, 1.0)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),), scalars=(1.0, 0.0)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),), scalars=(0.0, math.nan)),
        Packet((2,), (Plane(torch.zeros(2, dtype=torch.uint8), 2),), scalars=(-3e38, 3e38)),
    ],
    ids=["width", "count", "no range", "unordered", "nan", "too wide"],
)
def test_a_packet_of_another_form_is_refused(packet):
    with pytest.raises(DecodeError):
        Scalar(2).decompress(packet, Context())


def test_a_fixed_range_takes_no_scalars():
    packet = Scalar(2).compress(torch.tensor([0.0, 1.0]), Context())
    with pytest.raises(DecodeError, match="no scalars, got 2"):
        Scalar(2, low=0, high=1).decompress(packet, Context())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [1, 3, 8, 9, 16])
@pytest.mark.parametrize("scale", [1e-35, 1e-3, 1.0, 1e5, 1e33])
def test_few_components_are_computed_in_the_same_bits(dtype, bits, scale, monkeypatch):
    """NumPy takes few components, PyTorch many: nobody can tell which."""
    random, compressor = torch.Generator().manual_seed(bits), Scalar(bits)
    for n, offset in itertools.product((1, 2, 16, 401), (0.0, 1000.0)):
        h = (scale * (offset + torch.randn(n, generator=random, dtype=torch.float64))).to(dtype).reshape(1, n)
        found = []
        for most in (n, -1):
            monkeypatch.setattr(base, "FEW", most)
            packet = compressor.compress(h, Context(1, n, 2))
            decoded = compressor.decompress(packet, Context(1, n, 2))
            found.append((packet.planes[0].symbols, packet.scalars, decoded))
        (few, interval, one), (many, same, other) = found
        assert few.dtype == many.dtype
        assert torch.equal(few, many)
        assert interval == same
        assert one.dtype == other.dtype == dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("most", [10, -1])
def test_ends_of_few_and_of_many(most, monkeypatch):
    monkeypatch.setattr(base, "FEW", most)
    assert base.ends(torch.tensor([2.0, -3.0, 1.0])) == (-3.0, 2.0)
    assert all(map(math.isnan, base.ends(torch.tensor([2.0, math.nan, 1.0]))))
