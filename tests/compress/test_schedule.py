"""Schedules: the error bound shrinks as promised in every round, and both ends know how."""

import pytest
import torch

from cvfl.compress import Context, DeadZone, Identity, Lattice, Scalar, Schedule, TopK
from cvfl.compress.base import Compressor
from cvfl.errors import ConfigError
from cvfl.theory import diminished
from cvfl.wire import decode_packet, encode_packet

ROUNDS = [0, 1, 2, 3, 15, 16, 99, 255, 1000, 10_000, 2**32 - 1]
MAKERS = {
    "identity": Identity,
    "scalar": lambda: Scalar(2),
    "scalar fixed": lambda: Scalar(3, low=-1, high=1),
    "scalar near the end": lambda: Scalar(14),
    "lattice": lambda: Lattice(1),
    "lattice fixed": lambda: Lattice(3, low=-1, high=1),
    "topk": lambda: TopK(2),
    "deadzone": lambda: DeadZone(0.5),
    "deadzone so coarse that nothing is sent": lambda: DeadZone(64),
    "topk entries": lambda: TopK(1, by="entry"),
}


def tensor() -> torch.Tensor:
    return torch.rand(6, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("rate", [0.25, 0.5, 1.0, 7.5])
@pytest.mark.parametrize("t0", ROUNDS)
def test_the_bound_shrinks_as_promised(make, rate, t0):
    schedule, h = Schedule(make(), rate=rate), tensor()
    first, now = schedule.bound(h, Context(t0=0)), schedule.bound(h, Context(t0=t0))
    assert now.expected <= diminished(t0, rate) * first.expected * (1 + 1e-12)
    assert now.worst <= diminished(t0, rate) * first.worst * (1 + 1e-12)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("t0", ROUNDS)
def test_both_ends_agree_and_keep_the_bound(make, t0):
    sender, receiver, h = Schedule(make()), Schedule(make()), tensor()
    context = Context(seed=1, t0=t0, m=1)
    sender.observe(h.cos())  # only the sender learns
    data = encode_packet(sender.compress(h, context))
    back = receiver.decompress(decode_packet(data, tuple(h.shape)), context)
    assert float((back - h).square().sum()) <= sender.bound(h, context).worst


@pytest.mark.parametrize(
    "make", [MAKERS["scalar"], MAKERS["lattice"], MAKERS["topk"]], ids=["scalar", "lattice", "topk"]
)
def test_round_zero_is_the_compressor_itself(make):
    h, context = tensor(), Context(seed=1, t0=0, m=1)
    assert encode_packet(Schedule(make()).compress(h, context)) == encode_packet(make().compress(h, context))


def test_bits_by_round():
    """(t0 + 1)^-1/2: a bit more from round 1, two from 16, three from 256 on; b = 15 ends in the floats."""
    rounds = [0, 1, 15, 16, 255, 256]
    assert [Schedule(Scalar(2)).nominal_bits(t0) for t0 in rounds] == [2, 3, 3, 4, 4, 5]
    assert [Schedule(Lattice(2)).nominal_bits(t0) for t0 in rounds] == [2, 3, 3, 4, 4, 5]
    assert [Schedule(Scalar(15)).nominal_bits(t0) for t0 in rounds] == [15, 16, 16, 32, 32, 32]
    assert [Schedule(TopK(2)).nominal_bits(t0) for t0 in (0, 3, 15)] == [2, 17, 24.5]


def test_what_the_inside_learns_is_kept():
    schedule = Schedule(TopK(8))
    schedule.observe(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    other = Schedule(TopK(8))
    other.load_state_dict(schedule.state_dict())
    packet = other.compress(torch.ones(1, 4), Context())
    assert other.decompress(packet, Context()).tolist() == [[0, 0, 0, 1]]
    assert schedule.state_dict().keys() == {"score"}


def test_a_schedule_of_a_schedule_multiplies():
    h = tensor()
    nested = Schedule(Schedule(Scalar(2), rate=0.5), rate=0.5)
    assert nested.bound(h, Context(t0=63)).worst <= nested.bound(h, Context(t0=0)).worst / 64
    assert nested.nominal_bits(15) == 4  # 16^-1/2 twice, a bit each


@pytest.mark.parametrize("rate", [0, -1, 8, float("nan"), float("inf")])
def test_rates_are_checked(rate):
    with pytest.raises(ConfigError, match="rate must be above 0 and below 8"):
        Schedule(Scalar(2), rate=rate)


class Fixed(Compressor):
    compress = decompress = bound = None


def test_what_cannot_be_finer_is_refused_at_once():
    with pytest.raises(ConfigError, match="fixed cannot follow a schedule"):
        Schedule(Fixed())
