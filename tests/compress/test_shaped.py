"""Shaped: nothing before there is a gradient, then what the loss can see; receivers need the basis alone.

What a sender chooses by is in test_shaped_chooses.py.
"""

import math

import pytest
import torch

from cvfl.compress import Context, Packet, Plane, Shaped, build
from cvfl.compress.basis import MOST, Basis, in_turn
from cvfl.compress.deadzone import PEAK, cell, cell_code, zigzag
from cvfl.compress.shaped import SHARES
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.wire import decode_packet, encode_packet

CONTEXT = Context(seed=1, t0=2, m=3)
ONE = cell_code(1.0)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exchange(sender, receiver, h, context=CONTEXT) -> tuple[Packet, torch.Tensor]:
    """One round: bytes between two ends, and both settle."""
    packet = decode_packet(encode_packet(sender.compress(h, context)), tuple(h.shape))
    back = receiver.decompress(packet, context)
    for end in (sender, receiver):
        end.settle(packet, back, context)
    return packet, back


def taught(gradient: torch.Tensor, loss: float = 0.5, tolerance: float = 0.02) -> tuple[Shaped, Shaped]:
    """A sender that has seen a gradient, and a receiver that has not."""
    sender, receiver = Shaped(tolerance), Shaped(tolerance)
    sender.observe(gradient, loss)
    return sender, receiver


def error(back: torch.Tensor, h: torch.Tensor) -> float:
    return float((back.double() - h.double()).square().sum())


def packet_of(steps, cells=None, basis=None, dtype=torch.float32, shares=None) -> Packet:
    """A packet as it would arrive; rounding left nothing unless there are shares."""
    q, P = torch.tensor([*steps, shares or [0] * len(steps[0])], dtype=torch.int32), len(basis[0]) if basis else 3
    planes = [Plane(zigzag(q).reshape(-1), 16)]
    if cells is not None:
        planes.append(Plane(torch.tensor(cells, dtype=torch.int32), 12))
    if basis is not None:
        planes.append(Plane(torch.tensor(basis, dtype=torch.int32).reshape(-1) + 128, 8))
    return Packet((len(steps), P), tuple(planes), dtype=dtype)


def test_by_hand():
    """ĥ = (q + r) S: steps of each row times rows of bytes in cells. The basis is kept, and may be scaled."""
    receiver = Shaped()
    first = packet_of([[1, 0], [-2, 3]], cells=[ONE, ONE - 4], basis=[[1, 2, -3], [10, 0, -127]])
    expected = [[1, 2, -3], [-2 + 15, -4, 6 - 3 * 63.5]]  # the second cell is 1/2
    back = receiver.decompress(first, CONTEXT)
    assert back.tolist() == expected
    receiver.settle(first, back, CONTEXT)
    assert receiver.decompress(packet_of([[1, 0], [-2, 3]]), CONTEXT).tolist() == expected
    scaled = packet_of([[0, 2]], cells=[ONE + 4, ONE])
    assert receiver.decompress(scaled, CONTEXT).tolist() == [[20, 0, -254]]
    assert receiver.decompress(packet_of([[0, 2]]), CONTEXT).tolist() == [[10, 0, -127]]  # it was not settled
    receiver.settle(scaled, back, CONTEXT)
    assert receiver.decompress(packet_of([[0, 2]]), CONTEXT).tolist() == [[20, 0, -254]]
    left = packet_of([[0, 2], [0, 0]], shares=[8, -4])  # half a step of the first, of 2, less a quarter of the second
    assert receiver.decompress(left, CONTEXT).tolist() == [[18.5, 2, -225.25], [-1.5, 2, 28.75]]


def test_rows_are_added_up_in_one_order():
    """Shares of steps in float64, from the first to the last, of all sizes: every receiver has the same bits."""
    K, P = 20, 7
    random = torch.Generator().manual_seed(5)
    basis = torch.randint(-127, 128, (K, P), generator=random).tolist()
    cells = torch.randint(ONE - 150, ONE + 150, (K,), generator=random).tolist()
    steps = torch.randint(-PEAK, PEAK + 1, (11, K), generator=random).tolist()
    shares = torch.randint(-PEAK, PEAK + 1, (K,), generator=random).tolist()
    back = Shaped().decompress(packet_of(steps, cells, basis, torch.float64, shares), CONTEXT)
    for i, row in enumerate(steps):
        for j in range(P):
            total = 0.0
            for k in range(K):
                total += (row[k] * SHARES + shares[k]) * (basis[k][j] * cell(cells[k]))
            assert float(back[i, j]) == total / SHARES


def test_before_there_is_a_gradient_nothing_is_worth_sending():
    h = numbers(20, 6)
    sender, receiver = Shaped(), Shaped()
    packet, back = exchange(sender, receiver, h)
    assert [plane.symbols.numel() for plane in packet.planes] == [0]
    assert not back.any()
    assert sender.bound(h, CONTEXT).worst == pytest.approx(error(back, h), rel=1e-5)


def test_a_drift_common_to_all_rows_is_sent_though_it_is_less_than_half_a_step():
    """Each row alone would be rounded to nothing: what that leaves is sent once, in sixteenths of a step."""
    sender, receiver, h = Shaped(fading=0), Shaped(fading=0), numbers(40, 5, seed=1)
    sender.observe(numbers(40, 5) * 0.01, 0.5, h)
    exchange(sender, receiver, h)
    sender.told = 1000  # no other basis
    drift = (0.4 * sender.basis.rows[:1]).repeat(40, 1)
    packet, back = exchange(sender, receiver, drift)
    q = packet.planes[0].symbols.reshape(41, -1)
    assert not q[:-1].any()
    assert q[-1].tolist() == [2 * 6, *[0] * (q.shape[1] - 1)]  # 0.4 of 16 is 6.4
    assert back.double() == pytest.approx(drift * 6 / 6.4, rel=1e-6)


def test_what_is_told_is_the_mean_of_what_rounding_left():
    """It lowers the error of every component, and no other row would do better by more than a sixteenth."""
    sender, receiver = taught(numbers(200, 5) * 0.01)
    h = numbers(200, 5, seed=1) + 0.3
    packet, back = exchange(sender, receiver, h)
    K = len(sender.basis.cells)
    q = ((s := packet.planes[0].symbols.int()) >> 1 ^ -(s & 1)).reshape(201, K)
    assert error(q[:-1].double() @ sender.basis.rows, h) > error(back, h)
    assert q[-1].any()


def test_what_the_loss_cannot_see_costs_less():
    """The loss has a gradient in the first of eight directions only: that one is sent more finely."""
    gradient = torch.zeros(200, 8)
    gradient[:, 0] = numbers(200, seed=2) * 0.1
    h = numbers(200, 8, seed=1)
    sender, receiver = taught(gradient, loss=0.1, tolerance=0.001)
    _, back = exchange(sender, receiver, h)
    errors = (back - h).square().mean(0)
    assert errors[0] < 0.5 * errors[1:].min()


def test_the_basis_is_that_of_the_whole_when_a_difference_is_sent():
    gradient, whole = numbers(60, 4), numbers(60, 4, seed=1)
    difference = torch.zeros(60, 4)
    difference[0, 0] = 1.0
    alone, behind = taught(gradient)[0], taught(gradient)[0]
    plain = alone.compress(whole, CONTEXT)
    packet = behind.compress(difference, Context(whole=whole))
    assert [plane.symbols.tolist() for plane in packet.planes[1:]] == [
        plane.symbols.tolist() for plane in plain.planes[1:]
    ]
    assert packet.planes[0].symbols.ne(0).sum() <= packet.planes[0].columns  # only one row differs
    back = behind.decompress(packet, CONTEXT)
    assert error(back, difference) <= behind.bound(difference, Context(whole=whole)).worst


@pytest.mark.parametrize("scale", [1e3, 1e9, 1e15, 1e30])
def test_a_jump_beyond_what_symbols_can_say_keeps_its_sign_and_its_bound(scale):
    """No symbol is further than 32,766 steps from zero; the rest comes in later rounds."""
    h, gradient = numbers(50, 4, seed=1), numbers(50, 4) * 0.1
    sender, receiver = taught(gradient, tolerance=1e-6)
    exchange(sender, receiver, h)
    sender.told = 1000  # no other basis
    jump = (h.sign() * (h.abs() + 1) * scale).clone()
    packet, back = exchange(sender, receiver, jump)
    assert packet.planes[0].symbols.int().max() <= 2 * PEAK
    assert error(back, jump) <= sender.bound(jump, CONTEXT).worst
    assert float((back.double() * jump.double()).sum()) > 0
    assert error(back, jump) <= float(jump.double().square().sum())


SHAPES = [(), (0,), (1,), (7,), (3, 0), (0, 3), (1, 1), (1, 9), (9, 1), (2, 3, 5), (70, 70)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_shape(shape, dtype):
    sender, receiver = Shaped(1e-6), Shaped(1e-6)
    for t0 in range(3):
        h = numbers(*shape, seed=t0, dtype=dtype)
        bound = sender.bound(h, CONTEXT)
        packet, back = exchange(sender, receiver, h)
        assert (back.shape, back.dtype) == (h.shape, h.dtype)
        assert error(back, h) <= bound.worst
        assert packet.planes[0].columns >= 1
        assert len(receiver.basis.cells) <= min(MOST, shape[-1] if shape else 1)
        sender.observe(numbers(*shape, seed=t0 + 9, dtype=dtype), 0.5, h if t0 else None)
    if math.prod(shape):
        assert back.any()


@pytest.mark.parametrize("scale", [1e-150, 1e-60, 1e-20, 1e20, 1e60, 1e140])
@pytest.mark.parametrize("slope", [1e-90, 1e-30, 1.0, 1e30, 1e90])
def test_every_magnitude(scale, slope):
    sender, receiver = Shaped(), Shaped()
    for t0 in range(4):
        h = numbers(30, 5, seed=t0, dtype=torch.float64) * scale
        bound = sender.bound(h, CONTEXT)
        _, back = exchange(sender, receiver, h)
        assert error(back, h) <= bound.worst
        sender.observe(numbers(30, 5, seed=t0 + 9, dtype=torch.float64) * slope, 0.5)
    if 1e-30 <= slope <= 1:  # less says nothing; with more, steps may be so small that their cells are below 2^-100
        assert back.any() == (scale > 1e-30)


@pytest.mark.parametrize(
    ("gradient", "loss"),
    [
        (torch.full((3, 4), math.nan), 1.0),
        (torch.full((3, 4), math.inf), 1.0),
        (torch.full((3, 4), 1e200, dtype=torch.float64), 1.0),
        (torch.zeros(3, 4), 1.0),
        (torch.zeros(0, 4), 1.0),
        (torch.zeros(3, 0), 1.0),
        (torch.ones(3, 4), math.nan),
        (torch.ones(3, 4), math.inf),
        (torch.ones(3, 4), -1.0),
    ],
)
def test_gradients_that_say_nothing_are_passed_over(gradient, loss):
    sender = Shaped()
    sender.observe(gradient, loss)
    assert sender.curvature.kept is None
    assert sender.aim == 0.0


def test_a_loss_of_zero_is_no_error():
    sender, receiver = taught(numbers(9, 4), loss=0.0)
    _, back = exchange(sender, receiver, numbers(9, 4))
    assert back.isfinite().all()


def test_a_restart_changes_nothing():
    sender, receiver, again = Shaped(), Shaped(), Shaped()
    for t0 in range(6):
        h = numbers(40, 5, seed=t0)
        again.load_state_dict({key: value.clone() for key, value in sender.state_dict().items()})
        assert encode_packet(again.compress(h, CONTEXT)) == encode_packet(sender.compress(h, CONTEXT))
        assert again.bound(h, CONTEXT) == sender.bound(h, CONTEXT)
        exchange(sender, receiver, h)
        sender.observe(numbers(40, 5, seed=99 + t0), 0.5, h if t0 > 2 else None)
        sender.certify(1.0, 0.5, 1.0)
    assert sender.ease < 1
    again.load_state_dict({})
    assert again.basis.cells == ()
    assert again.curvature.kept is None
    assert (again.ease, again.epochs) == (1.0, 0.0)


def test_what_cannot_be_compressed_is_refused():
    for bad in (math.nan, math.inf, -math.inf):
        for act in (Shaped().compress, Shaped().bound):
            with pytest.raises(CompressError, match="NaN or an infinite"):
                act(torch.tensor([[0.0, bad]]), CONTEXT)
    for tolerance in (0, 1e-7, 2, math.nan):
        with pytest.raises(ConfigError, match="tolerance is a share of the loss"):
            Shaped(tolerance)
    for fading in (-1, 5, math.nan):
        with pytest.raises(ConfigError, match="fading is a power of the epochs"):
            Shaped(fading=fading)
    with pytest.raises(ConfigError, match="shaped cannot follow a schedule"):
        build("schedule(shaped)")


GOOD = packet_of([[1, 0], [-2, 3]], cells=[ONE, ONE], basis=[[1, 2, -3], [10, 0, -127]])


def changed(plane: int, symbols: torch.Tensor | None = None, width: int | None = None) -> Packet:
    planes = list(GOOD.planes)
    was = planes[plane]
    planes[plane] = Plane(was.symbols if symbols is None else symbols, was.width if width is None else width)
    return Packet(GOOD.shape, tuple(planes))


BAD = {
    "no planes": Packet((2, 3), ()),
    "four planes": Packet((2, 3), (*GOOD.planes, GOOD.planes[0])),
    "scalars": Packet((2, 3), GOOD.planes, scalars=(1.0,)),
    "symbols of another width": changed(0, width=15),
    "a symbol too few": changed(0, GOOD.planes[0].symbols[1:]),
    "nothing about what rounding left": changed(0, GOOD.planes[0].symbols[:-2]),
    "a row too many": changed(0, torch.cat([GOOD.planes[0].symbols, torch.zeros(2)])),
    "symbols without a basis": Packet((2, 3), GOOD.planes[:1]),
    "cells without a basis": Packet((2, 3), GOOD.planes[:2]),
    "cells of another width": changed(1, width=16),
    "no cells": Packet((2, 3), (Plane(torch.zeros(0), 16), Plane(torch.zeros(0), 12), Plane(torch.zeros(0), 8))),
    "a cell too many": changed(1, torch.tensor([ONE] * 3)),
    "bytes of another width": changed(2, width=7),
    "a byte too few": changed(2, GOOD.planes[2].symbols[1:]),
    "too many components": Packet(
        (1, 1), (Plane(torch.zeros(258), 16), Plane(torch.full((129,), ONE), 12), Plane(torch.zeros(129), 8))
    ),
    "nothing to be wide": Packet(
        (2, 0), (Plane(torch.zeros(6), 16), Plane(torch.full((2,), ONE), 12), Plane(torch.zeros(1), 8))
    ),
    "beyond floats": changed(1, torch.tensor([4095, ONE])),
}


@pytest.mark.parametrize("packet", BAD.values(), ids=BAD)
def test_bad_packets_are_refused(packet):
    with pytest.raises(DecodeError):
        Shaped().decompress(packet, CONTEXT)
    assert Shaped().decompress(GOOD, CONTEXT).shape == (2, 3)


def test_a_basis_for_rows_without_components_is_a_value():
    planes = Plane(torch.zeros(6), 16), Plane(torch.full((2,), ONE), 12), Plane(torch.zeros(0), 8)
    assert Shaped().decompress(Packet((2, 0), planes), CONTEXT).shape == (2, 0)


def test_another_number_of_components_than_the_known_basis_is_refused():
    receiver = Shaped()
    receiver.settle(GOOD, torch.zeros(2, 3), CONTEXT)
    for packet in (packet_of([[1, 2, 3]]), packet_of([[1]]), packet_of([[1, 2, 3]], cells=[ONE] * 3)):
        with pytest.raises(DecodeError, match="symbols for"):
            receiver.decompress(packet, CONTEXT)


def test_no_rows_need_no_row_of_what_rounding_left():
    receiver = Shaped()
    receiver.settle(GOOD, torch.zeros(2, 3), CONTEXT)
    assert receiver.decompress(Packet((0, 3), (Plane(torch.zeros(0), 16),)), CONTEXT).shape == (0, 3)
    with pytest.raises(DecodeError, match="2 symbols for 0 rows of 2 components"):
        receiver.decompress(Packet((0, 3), (Plane(torch.zeros(2), 16),)), CONTEXT)


FURTHEST = -(1 << 15) * (SHARES + 1)
"""Shares of a step that symbols of 16 bits can say: so many steps, and so many sixteenths."""


@pytest.mark.parametrize("K", [1, 2, 9, MOST])
def test_exact_sums_have_the_bits_of_sums_in_turn(K):
    """The matrix product is the fast path, adding up in turn the oracle, in any order; also for the largest symbols."""
    draw = torch.Generator().manual_seed(K)
    for top in (3, -FURTHEST):
        cells = torch.randint(400, 468, (K,), generator=draw).tolist()
        basis = Basis(torch.randint(-128, 128, (K, 33), generator=draw).to(torch.int8), tuple(cells))
        parts = torch.randint(-top, top + 1, (50, K), generator=draw, dtype=torch.int32)
        assert basis.exact
        found = parts.double() @ basis.rows
        assert torch.equal(found, in_turn(parts, basis, 33))
        backwards = Basis(basis.bytes.flip(0), tuple(reversed(cells)))
        assert torch.equal(found, in_turn(parts.flip(1), backwards, 33))


def test_the_largest_sums_are_exact():
    """As Python's integers have them: all as large as can be, but one of a power that is 2^16 times smaller."""
    extreme = Basis(torch.full((MOST, 2), -128, dtype=torch.int8), (403,) + (467,) * (MOST - 1))
    parts = torch.full((1, MOST), FURTHEST, dtype=torch.int32)
    parts[0, 0] += 1
    parts[0, 1] += 3
    assert extreme.exact
    steps = parts[0].tolist()
    exact = -128 * 7 * (steps[0] + 2**16 * sum(steps[1:]))  # in units of 2^(100 - 128)
    assert exact.bit_length() > 51
    for order in (slice(None), torch.arange(MOST - 1, -1, -1)):
        there = Basis(extreme.bytes, tuple(torch.tensor(extreme.cells)[order].tolist()))
        for sums in (parts[:, order].double() @ there.rows, in_turn(parts[:, order], there, 2)):
            assert int(sums[0, 0] * 2**28) == exact
    assert not Basis(extreme.bytes, (403,) + (468,) * (MOST - 1)).exact


def test_a_budget_bounds_the_bits_of_a_row():
    draw = torch.Generator().manual_seed(0)
    h, gradient = torch.randn(400, 8, generator=draw), torch.randn(400, 8, generator=draw) / 400
    symbols = {}
    for budget in (2.0, 6.0, math.inf):
        sender = Shaped(1e-4, budget)
        sender.observe(gradient, 1.0)
        plane = sender.compress(h, Context()).planes[0]
        rows = plane.symbols.reshape(-1, plane.columns)[:-1]
        shares = [torch.unique(column, return_counts=True)[1].double() / len(column) for column in rows.t()]
        symbols[budget] = -sum(float((share * share.log2()).sum()) for share in shares)
        assert symbols[budget] <= budget
    assert symbols[2.0] < symbols[6.0] < symbols[math.inf]
    with pytest.raises(ConfigError, match="budget"):
        Shaped(budget=0)
