"""Error feedback: what was lost in one round is sent in the next; both ends know the same of every sample."""

import itertools
import math

import pytest
import torch

from cvfl.compress import Context, DeadZone, Entropy, Feedback, Identity, Scalar, TopK, build, feedback
from cvfl.errors import CompressError, ConfigError
from cvfl.wire import decode_packet, encode_packet


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def at(t0: int, samples=None, total: int = 0) -> Context:
    return Context(seed=1, t0=t0, m=1, samples=None if samples is None else torch.tensor(samples), total=total)


def exchange(sender, receiver, h, context) -> torch.Tensor:
    """One round: bytes between two ends, and both settle."""
    data = encode_packet(sender.compress(h, context))
    packet = decode_packet(data, tuple(h.shape))
    back = receiver.decompress(packet, context)
    for end in (sender, receiver):
        end.settle(packet, back, context)
    return back


def error(back: torch.Tensor, h: torch.Tensor) -> float:
    return float((back.double() - h.double()).square().sum())


def test_by_hand():
    """(1, 7) and (7, 1) have the root mean square 5, so that a step of 1/2 gives cells of 2.5."""
    ends = Feedback(DeadZone(0.5)), Feedback(DeadZone(0.5))
    packet = ends[0].compress(torch.tensor([1.0, 7.0]), at(0))
    assert packet.planes[1].symbols.tolist() == [0, 6]  # 0.4 and 2.8 cells; zigzag: none, and three up
    assert exchange(*ends, torch.tensor([1.0, 7.0]), at(0)).tolist() == [0.0, 7.5]
    packet = ends[0].compress(torch.tensor([7.0, 1.0]), at(1))
    assert packet.planes[1].symbols.tolist() == [6, 3]  # 7 - 0 is 2.8 cells, 1 - 7.5 is -2.6: three up and two down
    assert exchange(*ends, torch.tensor([7.0, 1.0]), at(1)).tolist() == [7.5, 2.5]
    assert [end.known.tolist() for end in ends] == [[7.5, 2.5]] * 2


def test_the_first_visit_is_coded_directly():
    h = numbers(6, 5)
    for spec in ("scalar:bits=3", "lattice:bits=2", "topk:bits=8", "deadzone", "identity"):
        plain, ends = build(spec), (Feedback(build(spec)), Feedback(build(spec)))
        context = at(3, list(range(6)), 10)
        assert encode_packet(ends[0].compress(h, context)) == encode_packet(plain.compress(h, context))
        assert torch.equal(exchange(*ends, h, context), plain.decompress(plain.compress(h, context), context))


def test_the_step_is_that_of_the_whole_tensor():
    """A small difference of a large tensor is not worth small cells."""
    ends = Feedback(DeadZone(0.5)), Feedback(DeadZone(0.5))
    h = numbers(50, 8) * 4
    exchange(*ends, h, at(0))
    packet = ends[0].compress(h + 1e-3, at(1))
    assert packet.planes[0].symbols.tolist() == DeadZone(0.5).compress(h, at(0)).planes[0].symbols.tolist()
    assert not packet.planes[1].symbols.any()


@pytest.mark.parametrize("spec", ["topk:bits=4,by=entry", "entropy(topk:bits=4,by=entry)"])
def test_the_error_vanishes_on_a_fixed_tensor(spec):
    """Top-k by entry sends one eighth in each round: after eight nothing is missing, while plain top-k stays."""
    h = numbers(20, 16)
    ends, plain = (Feedback(build(spec)), Feedback(build(spec))), build(spec)
    errors, alone = [], []
    for t0 in range(9):
        errors.append(error(exchange(*ends, h, at(t0)), h))
        alone.append(error(plain.decompress(plain.compress(h, at(t0)), at(t0)), h))
    assert all(later < earlier for earlier, later in itertools.pairwise(errors[:8]))
    assert errors[7] == errors[8] == 0
    assert len(set(alone)) == 1
    assert alone[0] == errors[0] > 0


@pytest.mark.parametrize("spec", ["scalar:bits=2", "lattice:bits=2", "entropy(scalar:bits=2)"])
def test_a_measured_range_shrinks_with_the_difference(spec):
    """A quantizer that measures its range sends ever finer differences; alone it is as coarse in every round."""
    h = numbers(40, 16)
    ends, plain = (Feedback(build(spec)), Feedback(build(spec))), build(spec)
    errors = [error(exchange(*ends, h, at(t0)), h) for t0 in range(10)]
    alone = [error(plain.decompress(plain.compress(h, at(t0)), at(t0)), h) for t0 in range(10)]
    assert errors[9] < 1e-4 * errors[0]
    assert min(alone) > 0.5 * max(alone)


def test_samples_are_known_one_by_one():
    ends = Feedback(Identity()), Feedback(Identity())
    h = numbers(10, 3)
    exchange(*ends, h[[7, 2]], at(0, [7, 2], 10))
    exchange(*ends, h[[0, 7]] * 2, at(1, [0, 7], 10))
    for end in ends:
        assert end.known.shape == (10, 3)
        assert torch.equal(end.known[[0, 7, 2]], torch.stack([h[0] * 2, h[7] * 2, h[2]]))
        assert not end.known[[1, 3, 4, 5, 6, 8, 9]].any()


def test_a_message_can_be_sent_again_until_it_is_settled():
    sender, h = Feedback(Scalar(2)), numbers(5, 4)
    data = encode_packet(sender.compress(h, at(0)))
    sender.decompress(decode_packet(data, (5, 4)), at(0))
    assert encode_packet(sender.compress(h, at(0))) == data
    assert sender.state_dict() == {}


def test_numbers_of_other_dimensions():
    for shape in [(), (0,), (3, 0), (0, 3), (7,), (2, 3, 4)]:
        ends = Feedback(Scalar(4)), Feedback(Scalar(4))
        h = numbers(*shape)
        for t0 in range(3):
            back = exchange(*ends, h, at(t0))
        assert back.shape == h.shape
        assert ends[0].known.shape == h.shape
        assert torch.allclose(back, h, atol=1e-2)


def test_the_bound_allows_for_the_rounding_of_a_large_difference():
    """h is tiny, what is known is not: their difference cannot hold h, whatever is inside."""
    ends = Feedback(Identity()), Feedback(Identity())
    exchange(*ends, torch.tensor([1.0, -3.0]), at(0))
    h = torch.tensor([1e-10, 1e-9])
    back = ends[1].decompress(ends[0].compress(h, at(1)), at(1))
    assert 0 < error(back, h) <= ends[0].bound(h, at(1)).worst < 1e-11


def test_the_bound_is_that_of_the_difference():
    sender, receiver = Feedback(Scalar(8)), Feedback(Scalar(8))
    h = numbers(30, 10)
    exchange(sender, receiver, h, at(0))
    first, later = Scalar(8).bound(h, at(1)), sender.bound(h, at(1))
    assert later.expected < 1e-3 * first.expected
    assert later.worst < 1e-3 * first.worst


def test_half_precision_when_there_is_much_to_know(monkeypatch):
    """From LARGE components on, in memory and in checkpoints; both ends round alike, so nothing drifts."""
    monkeypatch.setattr(feedback, "LARGE", 60)
    for total, dtype in ((19, torch.float32), (20, torch.bfloat16)):
        ends = Feedback(Entropy(Scalar(8))), Feedback(Entropy(Scalar(8)))
        h = numbers(total, 3)
        for t0 in range(6):
            samples = torch.randperm(total, generator=torch.Generator().manual_seed(t0))[:10].tolist()
            back = exchange(*ends, h[samples], at(t0, samples, total))
            assert error(back, h[samples]) <= 30 * 0.03**2
        assert [end.known.dtype for end in ends] == [dtype] * 2
        assert torch.equal(ends[0].known, ends[1].known)
        restored = Feedback(Entropy(Scalar(8)))
        restored.load_state_dict(ends[0].state_dict())
        assert restored.known.dtype == dtype
        assert torch.equal(restored.known, ends[0].known)


def test_half_precision_holds_large_numbers(monkeypatch):
    """A float64 beyond what bfloat16 can be is known as the largest that it can."""
    monkeypatch.setattr(feedback, "LARGE", 1)
    ends = Feedback(Identity()), Feedback(Identity())
    h = torch.tensor([1e100, -1e60, 3.0], dtype=torch.float64)
    for t0 in range(3):
        assert torch.allclose(exchange(*ends, h, at(t0)), h, rtol=1e-12)
        assert ends[0].known.isfinite().all()


def test_gradients_reach_the_compressor_inside():
    sender = Feedback(TopK(8))
    sender.observe(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    assert sender.state_dict().keys() == {"inner.score"}
    assert sender.decompress(sender.compress(torch.ones(1, 4), at(0)), at(0)).tolist() == [[0, 0, 0, 1]]
    assert sender.nominal_bits(0) == 8


def test_an_empty_state_is_a_fresh_start():
    ends = Feedback(Scalar(2)), Feedback(Scalar(2))
    exchange(*ends, numbers(3, 3), at(0))
    ends[0].load_state_dict({})
    assert ends[0].known is None


def test_what_is_not_possible_is_refused():
    with pytest.raises(ConfigError, match="feedback of feedback"):
        build("feedback(feedback(scalar:bits=2))")
    with pytest.raises(ConfigError, match="feedback cannot follow a schedule"):
        build("schedule(feedback(scalar:bits=2))")
    ends = Feedback(Scalar(2)), Feedback(Scalar(2))
    exchange(*ends, numbers(3, 3), at(0))
    with pytest.raises(ConfigError, match=r"knows \(3, 3\) of this message and now gets \(4, 3\)"):
        ends[0].compress(numbers(4, 3), at(1))
    with pytest.raises(CompressError, match="NaN or an infinite value"):
        ends[0].compress(torch.full((3, 3), math.nan), at(1))
    ends[0].known.fill_(-3e38)
    with pytest.raises(CompressError, match="differs too much"):
        ends[0].compress(torch.full((3, 3), 3e38), at(1))
