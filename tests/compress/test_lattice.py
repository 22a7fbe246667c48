"""Lattice quantizer against a search through its whole codebook, rebuilt here from the description alone."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cvfl.compress import Context, Identity, Lattice, Packet, Plane
from cvfl.errors import CompressError, DecodeError
from cvfl.theory import lattice_error, lattice_spacing


def codebook(bits: int) -> np.ndarray:
    """Points [column, row] of the unit square: 2^b rows 2^-b apart, odd rows shifted by s/2, all of it centred."""
    size, s = 2**bits, 2 / (math.sqrt(3) * 2**bits)
    column, row = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    points = np.stack([(column + row % 2 / 2) * s, row / size], axis=-1)
    middle = (points.reshape(-1, 2).max(0) + points.reshape(-1, 2).min(0)) / 2
    return points - middle + 0.5


def brick(dither: np.ndarray, bits: int) -> np.ndarray:
    """16-bit dither (across, upwards) as an offset in the unit square: s across, one row of cells upwards."""
    return dither / 2**16 * np.array([2 / (math.sqrt(3) * 2**bits), 2.0**-bits])


@dataclass(frozen=True)
class Dithered(Context):
    """A context whose dither is given, for pairs: all of `across`, then all of `upwards`."""

    across: tuple[int, ...] = ()
    upwards: tuple[int, ...] = ()

    def dither(self, n):
        return torch.tensor([*self.across, *self.upwards], dtype=torch.int16)[:n]


def chosen(compressor: Lattice, pairs: np.ndarray, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows that pairs of the unit square are sent as, in float64."""
    packet = compressor.compress(torch.from_numpy(pairs.reshape(-1)), context)
    return tuple(packet.planes[0].symbols.numpy().astype(int).reshape(2, -1))  # type: ignore[return-value]


def points_to_try(bits: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs in, at the border and in the corners of the square, with random and with extreme dithers."""
    inside = random.random((2000, 2))
    border = np.where(random.random((1500, 2)) < 0.7, random.integers(0, 2, (1500, 2)), random.random((1500, 2)))
    near = np.clip(codebook(bits).reshape(-1, 2)[random.integers(0, 4**bits, 1000)], 0, 1)
    pairs = np.concatenate([inside, border, near])
    dither = random.integers(-(2**15), 2**15, pairs.shape)
    extreme = random.random(pairs.shape) < 0.2
    dither[extreme] = random.choice([-(2**15), 0, 2**15 - 1], extreme.sum())
    return pairs, dither


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_nearest_of_all_codewords_is_chosen(bits):
    pairs, dither = points_to_try(bits, np.random.default_rng(bits))
    context = Dithered(across=tuple(dither[:, 0].tolist()), upwards=tuple(dither[:, 1].tolist()))
    columns, rows = chosen(Lattice(bits, low=0.0, high=1.0), pairs, context)

    place = pairs + brick(dither, bits)
    assert (place.min(0) < 0).all()  # beyond the border, too
    assert (place.max(0) > 1).all()
    points = codebook(bits)
    distance = ((place[:, None, None] - points) ** 2).sum(-1)
    ours = distance[np.arange(len(pairs)), columns, rows]
    flat = np.sort(distance.reshape(len(pairs), -1), axis=1)
    assert (ours <= flat[:, 0] + 1e-15).all()
    clear = flat[:, 1] - flat[:, 0] > 1e-12  # no tie: the very same codeword
    assert clear.mean() > 0.9
    best = distance.reshape(len(pairs), -1).argmin(1)
    assert np.array_equal((columns * 2**bits + rows)[clear], best[clear])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_decoding_gives_the_codeword_less_its_dither(bits):
    pairs, dither = points_to_try(bits, np.random.default_rng(10 + bits))
    context = Dithered(across=tuple(dither[:, 0].tolist()), upwards=tuple(dither[:, 1].tolist()))
    compressor = Lattice(bits, low=0.0, high=1.0)
    packet = compressor.compress(torch.from_numpy(pairs.reshape(-1)), context)
    columns, rows = chosen(compressor, pairs, context)
    expected = codebook(bits)[columns, rows] - brick(dither, bits)
    assert np.abs(compressor.decompress(packet, context).numpy().reshape(-1, 2) - expected).max() < 1e-14


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_every_codeword_is_used_and_no_other(bits):
    pairs, _ = points_to_try(bits, np.random.default_rng(20 + bits))
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=2)) * 500)
    columns, rows = chosen(Lattice(bits, low=0.0, high=1.0), np.concatenate([pairs, corners]), Context(seed=bits))
    assert set(zip(columns, rows, strict=True)) == set(itertools.product(range(2**bits), repeat=2))


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_another_codeword(bits, dtype):
    random = np.random.default_rng(30 + bits)
    pairs, _ = points_to_try(min(bits, 4), random)
    h = torch.from_numpy(np.concatenate([pairs, random.integers(0, 2, (2000, 2))])).to(dtype)
    symbols = Lattice(bits, low=0.0, high=1.0).compress(h, Context(seed=9)).planes[0].symbols.numpy()
    assert int(symbols.min()) >= 0
    assert int(symbols.max()) < 2**bits


@pytest.mark.parametrize("bits", [1, 3, 10])
def test_the_dither_is_uniform_over_the_brick(bits):
    """The same codeword decoded in many messages lies everywhere in a brick round it, evenly."""
    n = 64_000
    middle = 2 ** (bits - 1)
    plane = Plane(torch.full((2 * n,), middle, dtype=torch.int32), bits)
    compressor = Lattice(bits, low=0.0, high=1.0)
    h = compressor.decompress(Packet((n, 2), (plane,), dtype=torch.float64), Context(seed=4, t0=bits)).numpy()
    offset = (h - codebook(bits)[middle, middle]) / brick(np.array([2**16, 2**16]), bits)
    assert offset.min() >= -0.5
    assert offset.max() <= 0.5
    counts, _, _ = np.histogram2d(offset[:, 0], offset[:, 1], bins=8, range=[[-0.5, 0.5]] * 2)
    assert np.abs(counts - n / 64).max() < 6 * math.sqrt(n / 64)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_inside_the_error_is_that_of_a_hexagon(bits):
    """s^2 5/36 a pair, whatever the pair, with mean zero: the dither does not let the error know h."""
    pairs = 60_000
    h = (torch.rand(pairs, 2, generator=torch.Generator().manual_seed(bits), dtype=torch.float64) - 0.5) * 0.1
    compressor, context = Lattice(bits, low=-1.0, high=1.0), Context(seed=bits)
    error = compressor.decompress(compressor.compress(h, context), context) - h
    s = lattice_spacing(bits) * 2
    assert float(error.square().sum(1).max()) <= s**2 / 3 * (1 + 1e-9)  # the hexagon's corner
    assert float(error.square().sum(1).mean()) == pytest.approx(s**2 * 5 / 36, rel=0.02)
    assert error.mean(0).abs().max() < 6 * s * math.sqrt(5 / 72 / pairs)
    assert torch.corrcoef(torch.cat([error, h], 1).T)[:2, 2:].abs().max() < 6 / math.sqrt(pairs)


def test_by_hand():
    """b = 1, four codewords, s = 1/sqrt(3): the even row at y = 1/4, the odd one shifted by s/2 at y = 3/4."""
    s = 1 / math.sqrt(3)
    assert codebook(1).reshape(-1, 2).tolist() == pytest.approx(
        np.array([[0.5 - 0.75 * s, 0.25], [0.5 - 0.25 * s, 0.75], [0.5 + 0.25 * s, 0.25], [0.5 + 0.75 * s, 0.75]])
    )
    pairs = np.array([[0.0, 0.2], [0.2, 0.8], [0.7, 0.3], [1.0, 1.0]])
    columns, rows = chosen(Lattice(1, low=0.0, high=1.0), pairs, Dithered(across=(0,) * 4, upwards=(0,) * 4))
    assert (columns.tolist(), rows.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("n", [1, 3, 5, 65_537])
def test_an_odd_last_component_is_a_column_alone(bits, n):
    h = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    compressor, context = Lattice(bits, low=0.0, high=1.0), Context(seed=n)
    packet = compressor.compress(h, context)
    assert packet.planes[0].symbols.numel() == n  # n b bits, not (n + 1) b
    back = compressor.decompress(packet, context)
    assert back.shape == (n,)
    places = codebook(bits)[:, 0, 0] if bits < 10 else 0.5 + (np.arange(2**bits) * 2 - 2**bits + 0.5) / 2 * s_of(bits)
    dither = float(context.dither(n)[n // 2]) / 2**16 * s_of(bits)
    nearest = places[np.abs(places - (float(h[-1]) + dither)).argmin()]
    assert float(back[-1]) == pytest.approx(nearest - dither, abs=1e-12)


def s_of(bits: int) -> float:
    return 2 / (math.sqrt(3) * 2**bits)


@pytest.mark.parametrize("bits", [1, 2, 3, 6])
def test_an_odd_last_component_keeps_the_bound(bits):
    compressor = Lattice(bits, low=-1.0, high=1.0)
    worst = 0.0
    for t0 in range(400):
        h = torch.tensor([[-1.0, 1.0, 0.0, 0.7][t0 % 4]])
        context = Context(t0=t0)
        worst = max(worst, float((compressor.decompress(compressor.compress(h, context), context) - h).square().sum()))
    assert worst <= compressor.bound(h, Context()).worst


@pytest.mark.parametrize("value", [0.0, 7.25, -1e-42, 1e30])
def test_a_constant_returns_exactly(value):
    h = torch.full((3, 5), value)
    assert torch.equal(Lattice(2).decompress(Lattice(2).compress(h, Context()), Context()), h)
    assert Lattice(2).bound(h, Context()).worst == 0


def test_ranges_are_those_of_the_scalar():
    packet = Lattice(3).compress(torch.tensor([-2.0, 6.0, 0.5]), Context())
    assert packet.scalars == (-2.0, 6.0)
    with pytest.raises(CompressError, match=r"spans \[-2, 6\], outside the compressor's \[-1, 1\]"):
        Lattice(3, low=-1, high=1).compress(torch.tensor([-2.0, 6.0, 0.5]), Context())
    with pytest.raises(CompressError, match="NaN"):
        Lattice(3).compress(torch.tensor([math.nan]), Context())
    with pytest.raises(DecodeError, match="expected 3 symbols of 2 bits"):
        Lattice(2).decompress(packet, Context())
    assert Lattice(3).bound(torch.tensor([-2.0, 6.0, 0.5]), Context()) == lattice_error(3, 3, -2.0, 6.0)


def test_refined_adds_bits_and_ends_in_the_floats_themselves():
    finer = Lattice(3, low=0, high=1).refined(0.2)
    assert isinstance(finer, Lattice)
    assert (finer.bits, finer.range.fixed) == (5, (0.0, 1.0))
    assert isinstance(Lattice(16).refined(0.5), Identity)
