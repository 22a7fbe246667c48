"""The dead-zone quantizer: cells that 12 bits tell, zero where little is, the same bits everywhere."""

import math
from fractions import Fraction

import pytest
import torch

from cvfl.compress import Context, DeadZone, Identity, Packet, Plane, Schedule, deadzone
from cvfl.compress.deadzone import DEAD, PEAK, cell, cell_code, quantized, unzigzag, zigzag
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.theory import deadzone_error
from cvfl.wire import decode_packet, encode_packet

CONTEXT = Context(seed=1, t0=2, m=3)


def sent(compressor, h, context=CONTEXT):
    data = encode_packet(compressor.compress(h, context))
    return compressor.decompress(decode_packet(data, tuple(h.shape)), context)


def test_by_hand():
    """(1, 7, -7, -1): the root mean square is 5, a step of 1/2 gives 2.5 = 5/8 * 4, and 0.65 cells are one."""
    h = torch.tensor([[1.0, 7.0], [-7.0, -1.0]])
    packet = DeadZone(0.5).compress(h, CONTEXT)
    code, symbols = packet.planes
    assert (code.width, symbols.width, symbols.columns, packet.scalars) == (12, 16, 2, ())
    assert cell(int(code.symbols)) == 2.5
    assert symbols.symbols.tolist() == [0, 6, 5, 0]  # 0.4, 2.8, -2.8 and -0.4 cells: 0, 3, -3, 0 as a zigzag
    assert sent(DeadZone(0.5), h).tolist() == [[0.0, 7.5], [-7.5, 0.0]]


def test_the_dead_zone():
    """A component leaves zero at 0.65 cells, and every level at as much beyond it."""
    y = torch.tensor([0.0, 0.64, 0.66, 1.0, 1.64, 1.66, 2.6, 7.66], dtype=torch.float64)
    assert quantized(y * 3, 3.0).tolist() == [0, 0, 1, 1, 1, 2, 2, 8]
    assert quantized(-y * 3, 3.0).tolist() == [0, 0, -1, -1, -1, -2, -2, -8]


@pytest.mark.parametrize("code", [0, 1, 511, 512, 515, 516, 2047, 4095])
def test_a_cell_is_four_to_seven_times_a_power_of_two(code):
    assert Fraction(cell(code)) == (4 + code % 4) * Fraction(2) ** (code // 4 - 128)
    if cell(code) >= 2.0**-100:
        assert cell_code(cell(code)) == code


def test_the_code_is_that_of_the_smallest_cell_that_is_not_below():
    random = torch.Generator().manual_seed(0)
    for exponent in torch.randint(-99, 480, (300,), generator=random).tolist():
        size = math.ldexp(1 + float(torch.rand(1, generator=random, dtype=torch.float64)), exponent)
        code = cell_code(size)
        assert cell(code - 1) < size <= cell(code) <= 1.25 * size
        assert 0 <= code < 1 << deadzone.CELL_WIDTH
    for size in (0.0, 5e-324, 2.0**-100):
        assert cell(cell_code(size)) == 2.0**-100
    assert cell_code(64 * 2.0**480) < 1 << deadzone.CELL_WIDTH  # the largest step of the largest tensor


def test_zigzag():
    q = torch.tensor([0, -1, 1, -2, 2, -PEAK, PEAK], dtype=torch.int32)
    assert zigzag(q).tolist() == [0, 1, 2, 3, 4, 2 * PEAK - 1, 2 * PEAK]
    assert torch.equal(unzigzag(zigzag(q)), q)
    every = torch.arange(1 << 16, dtype=torch.int32)
    assert torch.equal(zigzag(unzigzag(every)), every)
    assert zigzag(q).max() < 1 << deadzone.WIDTH


def test_decoded_numbers_are_exact():
    """A level has 15 bits and a cell 3: their product is a float32, so no receiver rounds."""
    q = torch.arange(-PEAK, PEAK + 1, 77, dtype=torch.int32)
    for code in (cell_code(size) for size in (1e-20, 0.3, 1.0, 7e20)):
        planes = Plane(torch.tensor([code]), 12), Plane(zigzag(q), 16)
        back = DeadZone().decompress(Packet((q.numel(),), planes), CONTEXT)
        assert back.dtype == torch.float32
        assert [Fraction(x) for x in back.tolist()] == [level * Fraction(cell(code)) for level in q.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [2.0**-20, 0.01, 0.5, 1.0, 3.0, 64.0])
@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e-3, 1.0, 1e30])
def test_no_component_moves_by_more_than_its_share(dtype, step, scale):
    h = (torch.randn(64, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale).to(dtype)
    back = sent(DeadZone(step), h).double()
    size = cell(int(DeadZone(step).compress(h, CONTEXT).planes[0].symbols))
    moved = (back - h.double()).abs()
    assert (moved <= (0.5 + DEAD) * size * (1 + 1e-9)).all()
    assert (moved <= h.double().abs() * (1 + 1e-9)).all()
    assert float(moved.square().sum()) <= DeadZone(step).bound(h, CONTEXT).worst
    assert DeadZone(step).bound(h, CONTEXT).expected == DeadZone(step).bound(h, CONTEXT).worst  # nothing is random


def test_the_bound_is_theorys():
    h = torch.randn(20, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    size = cell(int(DeadZone(0.5).compress(h, CONTEXT).planes[0].symbols))
    assert DeadZone(0.5).bound(h, CONTEXT) == deadzone_error(100, size, DEAD, float(h.square().sum()))
    assert deadzone_error(100, 1.0, 0.15, 1e9).worst == pytest.approx(100 * 0.65**2, rel=2e-3)
    assert deadzone_error(100, 1.0, 0.15, 3.0).worst == pytest.approx(3.0, rel=2e-3)
    zero = torch.zeros(4, 4)
    assert DeadZone().bound(zero, CONTEXT).worst == 0
    assert not sent(DeadZone(), zero).any()


def test_an_outlier_widens_the_cells():
    """No component is further than 32,766 cells from zero, so that 16 bits are enough for all."""
    h = torch.full((2000, 1000), 1e-6)
    h[3, 4] = -1000.0
    packet = DeadZone(2.0**-20).compress(h, CONTEXT)
    levels = unzigzag(packet.planes[1].symbols)
    assert -PEAK <= int(levels.min()) < -0.8 * PEAK
    assert abs(float(sent(DeadZone(2.0**-20), h)[3, 4]) + 1000) <= 0.65 * 1000 / PEAK * 1.25


def test_the_step_follows_the_whole_tensor_when_a_difference_is_sent():
    difference, whole = torch.full((4, 4), 0.1), torch.full((4, 4), 8.0)
    packet = DeadZone(0.5).compress(difference, Context(whole=whole))
    assert cell(int(packet.planes[0].symbols)) == 4.0
    assert DeadZone(0.5).bound(difference, Context(whole=whole)).worst == pytest.approx(16 * 0.01, rel=2e-3)


def test_columns_are_those_of_the_last_dimension():
    for shape, columns in [((), 1), ((5,), 5), ((3, 0), 1), ((0, 4), 4), ((2, 3, 7), 7)]:
        packet = DeadZone().compress(torch.ones(shape), CONTEXT)
        assert packet.planes[1].columns == columns
        assert sent(DeadZone(), torch.ones(shape)).shape == shape


@pytest.mark.parametrize("step", [0.1, 0.5, 1.4, 1.6, 4.0, 64.0])
@pytest.mark.parametrize("factor", [1.0, 0.9, 0.5, 0.1, 1e-3])
def test_a_finer_one_keeps_what_it_promises(step, factor):
    """Also from steps so coarse that the bound is that of sending nothing."""
    for seed in range(5):
        h = torch.randn(30, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3.3**seed
        before, after = DeadZone(step).bound(h, CONTEXT), DeadZone(step).refined(factor).bound(h, CONTEXT)
        assert after.worst <= factor * before.worst * (1 + 1e-12)


def test_the_finest_is_the_floats_themselves():
    assert isinstance(DeadZone(0.5).refined(1e-20), Identity)
    schedule = Schedule(DeadZone(0.5), rate=7.5)
    h = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    assert schedule.bound(h, Context(t0=10_000)).worst == 0
    assert torch.equal(sent(schedule, h, Context(t0=10_000)), h)
    assert DeadZone(0.5).refined(1.0).step == 0.5  # type: ignore[attr-defined]
    assert isinstance(DeadZone(0.5).refined(1e-6), DeadZone)


def test_what_cannot_be_compressed_is_refused():
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(CompressError, match="NaN or an infinite"):
            DeadZone().compress(torch.tensor([0.0, bad]), CONTEXT)
    with pytest.raises(CompressError, match="beyond the"):
        DeadZone().compress(torch.tensor([3e38]), CONTEXT)
    for step in (0, -1, 2.0**-21, 65, math.nan, math.inf):
        with pytest.raises(ConfigError, match="step must be from"):
            DeadZone(step)


@pytest.mark.parametrize(
    "packet",
    [
        Packet((2,), ()),
        Packet((2,), (Plane(torch.zeros(2), 16),)),
        Packet((2,), (Plane(torch.zeros(1), 11), Plane(torch.zeros(2), 16))),
        Packet((2,), (Plane(torch.zeros(2), 12), Plane(torch.zeros(2), 16))),
        Packet((2,), (Plane(torch.zeros(1), 12), Plane(torch.zeros(3), 16))),
        Packet((2,), (Plane(torch.zeros(1), 12), Plane(torch.zeros(2), 15))),
        Packet((2,), (Plane(torch.zeros(2), 16), Plane(torch.zeros(1), 12))),
        Packet((2,), (Plane(torch.tensor([520]), 12), Plane(torch.ones(2, dtype=torch.int32), 16)), scalars=(1.0,)),
        Packet((2,), (Plane(torch.tensor([4095]), 12), Plane(torch.ones(2, dtype=torch.int32), 16))),
    ],
    ids=["none", "no cell", "cell's width", "cells", "count", "width", "order", "scalars", "infinite"],
)
def test_bad_packets_are_refused(packet):
    with pytest.raises(DecodeError):
        DeadZone().decompress(packet, CONTEXT)


def test_the_largest_cell_is_a_number_in_float64():
    planes = Plane(torch.tensor([4095]), 12), Plane(torch.tensor([65_535]), 16)
    back = DeadZone().decompress(Packet((1,), planes, dtype=torch.float64), CONTEXT)
    assert float(back) == -32768 * 7 * 2.0**895
