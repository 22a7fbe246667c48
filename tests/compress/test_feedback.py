"""Error feedback: what was lost in one round is sent in the next; both ends know the same of every sample."""

import itertools
import math

import pytest
import torch

from cvfl.compress import Context, DeadZone, Entropy, Feedback, Identity, Scalar, TopK, build
from cvfl.errors import CompressError, ConfigError
from cvfl.memory import Log, Memory
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
    assert [end.known.get().tolist() for end in ends] == [[7.5, 2.5]] * 2


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
        assert torch.equal(end.known.get(torch.tensor([0, 7, 2])), torch.stack([h[0] * 2, h[7] * 2, h[2]]))
        assert not end.known.get(torch.tensor([1, 3, 4, 5, 6, 8, 9])).any()


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


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_what_is_known_is_the_same_in_memory_and_on_disk(tmp_path, limit):
    """And after a restart, with the same limit or with another one."""
    plain = Feedback(Entropy(Scalar(3))), Feedback(Entropy(Scalar(3)))
    kept = remembering(limit, tmp_path), remembering(limit, tmp_path)
    for t0 in range(12):
        samples = torch.randperm(50, generator=torch.Generator().manual_seed(t0))[:10].tolist()
        h = numbers(10, 3, seed=t0)
        back = exchange(*plain, h, at(t0, samples, 50))
        assert torch.equal(exchange(*kept, h, at(t0, samples, 50)), back)
        for end in (*plain, *kept):
            assert torch.equal(end.known.get(), plain[0].known.get())
        if t0 % 4 == 3:
            states = [end.state_dict() for end in kept]
            assert isinstance(states[0]["known"], Log) == (limit == 0 if t0 < 4 else t0 == 7)
            new = (1 << 20) * (t0 % 8 == 7)
            kept = remembering(new, tmp_path), remembering(new, tmp_path)
            for end, state in zip(kept, states, strict=True):
                end.load_state_dict(state)


def remembering(limit: int, folder) -> Feedback:
    end = Feedback(Entropy(Scalar(3)))
    end.remember(Memory(limit, folder))
    return end


def test_a_wrapper_passes_the_memory_on(tmp_path):
    wrapped = build("entropy(feedback(scalar:bits=2))")
    wrapped.remember(Memory(0, tmp_path))
    exchange(wrapped, build("entropy(feedback(scalar:bits=2))"), numbers(4, 3), at(0, [0, 1, 2, 3], total=9))
    assert isinstance(wrapped.state_dict()["inner.known"], Log)
    assert [path.suffix for path in tmp_path.iterdir()] == [".rows"] * 2


def test_a_matrix_is_known_in_memory_whatever_the_limit(tmp_path):
    end = Feedback(Scalar(3))
    end.remember(Memory(0, tmp_path))
    exchange(end, Feedback(Scalar(3)), numbers(4, 3), at(0))
    assert isinstance(end.state_dict()["known"], torch.Tensor)


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
    ends[0].known.put(None, torch.full((3, 3), -3e38))
    with pytest.raises(CompressError, match="differs too much"):
        ends[0].compress(torch.full((3, 3), 3e38), at(1))
