"""What a sender of shaped packets chooses by: the curvature, the loss at stake, its age and its certificate."""

import math
import time

import pytest
import torch
from torch import Tensor

from cvfl.compress import Context, Packet, Shaped, build
from cvfl.compress.basis import MOST
from cvfl.wire import decode_packet, encode_packet

CONTEXT = Context(seed=1, t0=2, m=3)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(rows: int, P: int, slope: float, seed: int = 9) -> Tensor:
    """Of a mean over rows, each of whose own gradients is about `slope` in every component."""
    return numbers(rows, P, seed=seed) * (slope / rows)


def exchange(sender, receiver, h, context=CONTEXT) -> tuple[Packet, Tensor]:
    """One round: bytes between two ends, and both settle."""
    packet = decode_packet(encode_packet(sender.compress(h, context)), tuple(h.shape))
    back = receiver.decompress(packet, context)
    for end in (sender, receiver):
        end.settle(packet, back, context)
    return packet, back


def components(sender: Shaped, h: Tensor) -> int:
    return sender.compress(h, CONTEXT).planes[1].symbols.numel()


def error(back: Tensor, h: Tensor) -> float:
    return float((back - h).square().sum())


def test_a_basis_travels_when_it_is_new():
    """First at once, then when twice as many rounds have gone; between them symbols alone."""
    sender, receiver = Shaped(fading=0), Shaped(fading=0)
    planes = []
    h = numbers(40, 5)
    for _ in range(14):
        packet, _ = exchange(sender, receiver, h)
        planes.append(len(packet.planes))
        sender.observe(gradients(40, 5, 0.2), 0.5)
        assert (sender.age, sender.told) == (receiver.age, receiver.told)
        assert torch.equal(sender.basis.bytes, receiver.basis.bytes)
        assert sender.basis.cells == receiver.basis.cells
    assert [t0 for t0, count in enumerate(planes) if count == 3] == [1, 4, 10]
    assert set(planes) == {1, 3}


def test_a_budget_takes_its_share_of_the_tolerance_whatever_the_certificate_asks():
    h, sizes = numbers(60, 6), []
    for least in (0.0, 0.25, 1.0, 16.0):
        sender = Shaped(fading=0)
        sender.observe(gradients(60, 6, 0.2), 0.5, h)
        sender.loosen(least)
        for _ in range(10):
            sender.certify(1.0, 0.4, 1.0)  # a cosine of 0.4
        assert sender.ease == max(2.0**-10, min(1.0, least))
        sizes.append(int(sender.compress(h, CONTEXT).planes[0].symbols.float().sum()))
        again = Shaped(fading=0)
        again.load_state_dict(sender.state_dict())
        assert (again.least, again.ease) == (least, sender.ease)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1.5 * sizes[1] > 2 * sizes[2] > 4 * sizes[3]


def told_anew(slope_of_second: float) -> list[int]:
    """Rounds from 20 on with a new basis when from then on a second direction is sent, of this slope to the loss."""
    sender, receiver = Shaped(1e-3, fading=0), Shaped(1e-3, fading=0)
    found = []
    for t0 in range(26):
        h = numbers(60, 2, seed=t0) * torch.tensor([1.0, float(t0 >= 20)])
        sender.observe(gradients(60, 2, 1.0, seed=t0) * torch.tensor([1.0, slope_of_second]), 0.5, h)
        packet, _ = exchange(sender, receiver, h)
        if t0 >= 20 and len(packet.planes) == 3:
            found.append(t0)
    assert len(sender.basis.cells) == (2 if found else 1)
    return found


def test_a_basis_is_told_anew_when_what_it_misses_passes_the_aim():
    """At once if the loss sees it; a direction to which it is blind is not worth the bytes."""
    assert told_anew(1.0)[:1] == [20]
    assert told_anew(1e-3) == []


def test_a_new_basis_serves_some_rounds():
    """However much it misses, another one comes after an eighth of its age."""
    sender, receiver = Shaped(fading=0), Shaped(fading=0)
    sender.age = receiver.age = 80
    sender.observe(gradients(60, 2, 1.0), 0.5, numbers(60, 2) * torch.tensor([1.0, 0.0]))
    exchange(sender, receiver, numbers(60, 2))
    for t0 in range(12):
        h = numbers(60, 2, seed=t0)
        sender.observe(gradients(60, 2, 1.0), 0.5, h)
        packet, _ = exchange(sender, receiver, h)
        assert (len(packet.planes) == 3) == (t0 == 81 // 8)


def test_steps_shrink_with_the_loss_without_a_new_basis():
    gradient, h = gradients(40, 5, 0.4), numbers(40, 5, seed=1)
    sender, receiver = Shaped(), Shaped()
    sender.observe(gradient, 2.0)
    exchange(sender, receiver, h)
    sender.told = 1000  # no other basis
    before = sender.basis
    for _ in range(25):
        sender.observe(gradient, 0.001)
    packet, back = exchange(sender, receiver, h)
    assert len(packet.planes) == 2
    assert sender.basis.bytes is before.bytes
    assert all(new < old for new, old in zip(receiver.basis.cells, before.cells, strict=True))
    assert error(back, h) <= sender.bound(h, CONTEXT).worst
    packet, _ = exchange(sender, receiver, h)
    assert len(packet.planes) == 1  # once is enough


@pytest.mark.parametrize("tolerance", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("slope", [0.25, 10.0])
def test_the_loss_rises_by_about_the_tolerance(tolerance, slope):
    """e G e / 2 for the mean row, G = E[g g'] of the samples' own gradients, against the loss itself.

    Where that is less than a quarter of what all that is sent is worth, it is of that quarter: nothing is learned yet.
    """
    gradient, h, loss = gradients(500, 6, slope), numbers(500, 6, seed=4), 0.7
    sender, receiver = Shaped(tolerance), Shaped(tolerance)
    sender.observe(gradient, loss, h)
    _, back = exchange(sender, receiver, h)
    G = 500 * gradient.t() @ gradient

    def rise(e: Tensor) -> float:
        return float(((e @ G) * e).sum(1).mean()) / 2

    stake = max(loss, rise(h) / 4)
    assert (stake == loss) == (slope < 1)
    assert 0.2 * tolerance * stake < rise(back - h) < 3 * tolerance * stake


def test_components_are_as_few_as_miss_no_more_than_the_aim():
    """By hand: a curvature of one in all directions, of which each has a fifth of the variance of the one before."""
    P, tolerance, loss = 8, 0.01, 1.0
    h = torch.linalg.qr(numbers(400, P))[0] * 20 * 0.2 ** (torch.arange(P) / 2)
    g = torch.eye(P, dtype=torch.float64).repeat(50, 1) * (math.sqrt(P) / 400)  # G = 1 of the samples' own
    sender = Shaped(tolerance)
    sender.observe(g, loss, h)
    missed = [0.5 * sum(0.2**k for k in range(K, P)) for K in range(P + 1)]
    assert components(sender, h) == next(K for K in range(P + 1) if missed[K] <= tolerance * loss) == 3
    finer = Shaped(1e-4)
    finer.observe(g, loss, h)
    assert components(finer, h) == next(K for K in range(P + 1) if missed[K] <= 1e-4 * loss) == 6


def test_a_hundred_classes_have_more_than_64_components():
    """The loss looks at 99 of 128 directions, all alike: these are sent, and no others."""
    W = torch.linalg.qr(numbers(128, 99, seed=5))[0].t()
    sender, receiver = Shaped(1e-4), Shaped(1e-4)
    h = torch.linalg.qr(numbers(600, 128))[0] * math.sqrt(600)
    sender.observe(W / 99, 1.0, h)
    packet, back = exchange(sender, receiver, h)
    assert packet.planes[1].symbols.numel() == 99 < MOST
    seen, blind = (back - h) @ W.t(), (back - h) - (back - h) @ W.t() @ W
    assert seen.square().mean() < 0.01
    assert blind.square().sum(1).mean() > 20


def test_a_thousand_columns_take_well_under_a_second():
    """And as many components as the data have directions: 5 here."""
    mix, sender, receiver = numbers(5, 1024, seed=5), Shaped(1e-5), Shaped(1e-5)
    started = time.process_time()
    for t0 in range(3):
        h = numbers(256, 5, seed=t0) @ mix
        _, back = exchange(sender, receiver, h)
        sender.observe(gradients(256, 5, 0.1, seed=t0) @ mix, 0.5, h)
    assert (time.process_time() - started) / 3 < 1
    assert len(sender.basis.cells) == 5
    assert error(back, h) < 1e-3 * float(h.square().sum())
    assert error(back, h) <= sender.bound(h, CONTEXT).worst


@pytest.mark.parametrize("P", [5, 300])
@pytest.mark.parametrize("unit", [2.0**-30, 2.0**30])
def test_units_do_not_matter(P, unit):
    """The same embedding in other units, with gradients to match, is the same symbols."""
    found = []
    for scale in (1.0, unit):
        sender, h = Shaped(1e-3), numbers(64, P, seed=1) * scale
        sender.observe(gradients(64, P, 0.5) / scale, 0.5, h)
        found.append(sender.compress(h, CONTEXT).planes)
    (symbols, _, basis), (others, _, other_basis) = found
    assert symbols.symbols.tolist() == others.symbols.tolist()
    assert basis.symbols.tolist() == other_basis.symbols.tolist()


def test_prime_begins_before_the_first_message_and_no_more():
    sender, other, h = Shaped(), Shaped(), numbers(40, 5, seed=1)
    sender.prime(gradients(40, 5, 0.2), h)
    other.observe(gradients(40, 5, 0.2), 0.0, h)
    assert encode_packet(sender.compress(h, CONTEXT)) == encode_packet(other.compress(h, CONTEXT))
    assert len(sender.compress(h, CONTEXT).planes) == 3
    sender.observe(gradients(40, 5, 0.3), 0.5, h)
    assert sender.aim == 0.5  # nothing was at stake before
    before = {key: value.clone() for key, value in sender.state_dict().items()}
    sender.prime(gradients(40, 5, 7.0), h)
    assert all(torch.equal(value, before[key]) for key, value in sender.state_dict().items())


def steps_of(sender: Shaped, h: Tensor, context: Context = CONTEXT) -> float:
    """The error that rounding leaves: it goes with the square of the steps."""
    return error(sender.decompress(sender.compress(h, context), context), h)


def certified(*rounds: tuple[float, float, float]) -> float:
    sender, h = Shaped(1e-3), numbers(200, 5, seed=1)
    sender.observe(gradients(200, 5, 0.5), 1.0, h)
    for told in rounds:
        sender.certify(*told)
    return steps_of(sender, h)


def test_a_certificate_makes_steps_finer_and_lets_them_grow_again():
    as_it_is, good, opposite, longer = certified(), (2.0, 2.0, 2.0), (2.0, -2.0, 2.0), (2.0, 4.0, 8.0)
    assert certified(*[good] * 20) == as_it_is
    assert certified(opposite) < 0.7 * as_it_is
    assert certified(*[longer] * 3) < 0.7 * as_it_is
    assert certified(*[opposite] * 3) < 0.7 * certified(opposite)
    assert certified(*[opposite] * 3, *[good] * 40) == as_it_is
    assert certified((0.0, 0.0, 0.0)) == certified((0.0, 0.0, 5.0)) == as_it_is  # of no gradient nothing is known


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-100, 1.0, 1e100, 1e200, 1e300])
def test_certificates_of_every_size(size):
    as_it_is = certified()
    assert certified(*[(size, size, size)] * 9) == as_it_is
    assert certified((size, -size, size)) < as_it_is
    assert certified((size, 0.0, 0.0)) < as_it_is


def test_a_certificate_that_is_not_a_number_is_a_bad_one():
    assert certified((math.nan, math.nan, math.nan)) < certified()
    assert certified((math.inf, math.inf, math.inf)) < certified()


def faded(fading: float, sizes: list[int], total: int = 100) -> Shaped:
    """A sender after messages of so many rows."""
    sender, receiver = Shaped(1e-3, fading=fading), Shaped(1e-3, fading=fading)
    sender.observe(gradients(200, 5, 0.5), 1.0, numbers(200, 5))
    for t0, rows in enumerate(sizes):
        exchange(sender, receiver, numbers(rows, 5, seed=t0), Context(t0=t0, total=total))
    return sender


def test_steps_fade_with_the_epochs():
    """Half a pass is half an epoch: after three epochs a fading of 1 allows a quarter of the error."""
    h = numbers(400, 5, seed=50)
    start, after, never = (faded(*of) for of in ((1.0, []), (1.0, [50] * 6), (0.0, [50] * 6)))
    assert after.epochs == 3
    assert steps_of(never, h) == pytest.approx(steps_of(start, h), rel=0.2)
    assert 0.15 * steps_of(start, h) < steps_of(after, h) < 0.4 * steps_of(start, h)
    assert faded(1.0, [50] * 6, total=0).epochs == 6  # rows that are no samples: each message is all there is


def test_a_small_last_batch_of_an_epoch_is_no_earlier():
    """The same error is allowed in it as in the batches around it: no steps are told for it alone."""
    sender = faded(1.0, [50] * 40)
    sender.told = sender.age  # a basis that is new
    sender.compress(numbers(50, 5), Context(t0=41, total=100))
    for rows in (50, 1):
        assert len(sender.compress(numbers(rows, 5), Context(t0=41, total=100)).planes) == 1


def test_a_basis_may_have_more_rows_than_a_small_batch():
    """What was sent before says what there is to see; also behind an entropy coder, which expects the shape."""
    sender, receiver = (build("feedback(entropy(shaped:tolerance=0.0001))") for _ in range(2))
    sender.observe(gradients(500, 60, 0.3), 0.5, numbers(500, 60))
    h, context = numbers(3, 60, seed=7), Context(samples=torch.tensor([4, 1, 3]), total=500)
    _, back = exchange(sender, receiver, h, context)
    assert error(back, h) < 0.2 * float(h.square().sum())


def test_when_all_vanishes_steps_are_told_once():
    """They shrink to the smallest there are; these are not told again and again."""
    sender, receiver, h = Shaped(fading=0), Shaped(fading=0), numbers(30, 2)
    sender.observe(gradients(30, 2, 1.0), 0.5, h)
    exchange(sender, receiver, h)
    sender.told = 1000  # no other basis
    for _ in range(1000):
        sender.observe(gradients(30, 2, 1.0), 0.5, 0 * h)
    assert [len(exchange(sender, receiver, 0 * h)[0].planes) for _ in range(3)] == [2, 1, 1]
