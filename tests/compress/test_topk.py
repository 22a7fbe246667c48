"""Top-k: ranked by the gradient that was observed, by column or by entry, at the cost of its indices."""

import math

import pytest
import torch

from cvfl.compress import Context, Packet, Plane, TopK
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.theory import kept_for_factor, topk_error

CONTEXT = Context(seed=1, t0=2, m=3)


def sent(compressor, h):
    return compressor.decompress(compressor.compress(h, CONTEXT), CONTEXT)


def kept(compressor, h):
    """Places that are not zero after a round trip, as (row, column); h must have no zeros."""
    return [tuple(place) for place in sent(compressor, h).nonzero().tolist()]


def test_columns_by_hand():
    """P = 8 at b = 8: k = 2 columns for the whole batch. Before there is a gradient, the largest ones."""
    h = torch.tensor([[1.0, 5, -3, 0.5, 2, 0, -6, 1], [1.0, 4, -3, 0.5, 2, 0, -7, 1]])
    packet = TopK(8).compress(h, CONTEXT)
    *indices, values = packet.planes
    assert (len(indices), values.width) == (1, 32)
    assert indices[0].symbols.tolist() == [0, 1, 0, 0, 0, 0, 1, 0]
    assert values.symbols.view(torch.float32).tolist() == [5, -6, 4, -7]
    assert sent(TopK(8), h).tolist() == [[0, 5, 0, 0, 0, 0, -6, 0], [0, 4, 0, 0, 0, 0, -7, 0]]


def test_entries_by_hand():
    """Four of sixteen entries, wherever they are."""
    h = torch.tensor([[1.0, 5, -3, 0.5, 2, 0, -6, 1], [1.0, 4, -3, 0.5, 2, 0, -7, 1]])
    assert sent(TopK(8, by="entry"), h).tolist() == [[0, 5, 0, 0, 0, 0, -6, 0], [0, 4, 0, 0, 0, 0, -7, 0]]
    h = torch.tensor([[9.0, 8, 7, 6, 1, 1, 1, 1], [1.0] * 8])
    assert sent(TopK(8, by="entry"), h).tolist() == [[9, 8, 7, 6, 0, 0, 0, 0], [0] * 8]


def test_columns_are_ranked_by_gradient_not_by_magnitude():
    h = torch.tensor([[100.0, 1.0, 50.0, 2.0]] * 3)
    compressor = TopK(16)  # half of them
    assert kept(compressor, h) == [(row, column) for row in range(3) for column in (0, 2)]
    compressor.observe(torch.tensor([[0.0, -3.0, 0.1, 2.0], [0.0, 3.0, 0.1, -2.0]]))  # their mean magnitudes count
    assert kept(compressor, h) == [(row, column) for row in range(3) for column in (1, 3)]


def test_the_last_gradient_decides():
    h = torch.ones(1, 4)
    compressor = TopK(8)
    compressor.observe(torch.tensor([[0.0, 0.0, 0.0, 9.0]]))
    compressor.observe(torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert kept(compressor, h) == [(0, 1)]


def test_entries_are_ranked_by_their_share_of_the_loss():
    h = torch.tensor([[1.0, 10.0], [3.0, 2.0]])
    compressor = TopK(16, by="entry")
    compressor.observe(torch.tensor([[4.0, 1.0], [4.0, 1.0]]))
    assert kept(compressor, h) == [(0, 1), (1, 0)]  # 10 * 1 and 3 * 4, before 1 * 4 and 2 * 1


@pytest.mark.parametrize("by", ["column", "entry"])
def test_ties_go_to_the_lower_index(by):
    assert kept(TopK(8, by=by), torch.ones(1, 12)) == [(0, 0), (0, 1), (0, 2)]
    h = torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    assert kept(TopK(8, by=by), h) == [(0, 0), (0, 1), (0, 4)]


@pytest.mark.parametrize(("P", "bits", "k"), [(16, 1, 1), (16, 4, 2), (64, 3, 6), (5, 16, 2), (1, 1, 1), (33, 16, 16)])
def test_k_comes_from_the_bits(P, bits, k):
    h = torch.rand(4, P, generator=torch.Generator().manual_seed(P)) + 1
    assert len(kept(TopK(bits), h)) == 4 * k
    assert len(kept(TopK(bits, by="entry"), h)) == max(1, 4 * P * bits // 32)


@pytest.mark.parametrize("by", ["column", "entry"])
def test_state_survives_a_restart(by):
    random = torch.Generator().manual_seed(7)
    h, gradient = torch.rand(3, 10, generator=random), torch.rand(3, 10, generator=random)
    first = TopK(8, by=by)
    assert first.state_dict() == {}
    first.observe(gradient)
    state = first.state_dict()
    assert state["score"].tolist() == pytest.approx(gradient.mean(0).tolist())

    second = TopK(8, by=by)
    second.load_state_dict(state)
    assert kept(second, h) == kept(first, h) != kept(TopK(8, by=by), h)
    first.observe(1 - gradient)  # the state that was saved does not change
    assert state["score"].tolist() == pytest.approx(gradient.mean(0).tolist())
    second.load_state_dict({})
    assert kept(second, h) == kept(TopK(8, by=by), h)


def test_receivers_need_no_state():
    h = torch.rand(3, 10, generator=torch.Generator().manual_seed(8))
    sender = TopK(8)
    sender.observe(1 / (1 + h))
    packet = sender.compress(h, CONTEXT)
    assert torch.equal(TopK(8).decompress(packet, CONTEXT), sender.decompress(packet, CONTEXT))


@pytest.mark.parametrize("by", ["column", "entry"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_shape(by, shape, dtype):
    h = torch.ones(shape, dtype=dtype)
    compressor = TopK(4, by=by)
    compressor.observe(h)
    back = sent(compressor, h)
    assert back.shape == shape
    assert back.dtype == dtype
    assert bool(((back == 0) | (back == h)).all())
    assert bool((back != 0).any()) == bool(h.numel())


def test_an_empty_batch_teaches_nothing():
    compressor = TopK(8)
    compressor.observe(torch.empty(0, 4))
    assert compressor.state_dict() == {}


def test_other_columns_than_those_learned_from():
    compressor = TopK(8)
    compressor.observe(torch.ones(2, 5))
    with pytest.raises(ConfigError, match="learned from 5 columns and now gets 4"):
        compressor.compress(torch.ones(2, 4), CONTEXT)


@pytest.mark.parametrize("by", ["column", "entry"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_ranks_nothing(by, bad):
    compressor = TopK(8, by=by)
    compressor.observe(torch.tensor([[1.0, bad, 2.0, 0.0]]))
    with pytest.raises(CompressError, match="the last gradient in it held a NaN"):
        compressor.compress(torch.ones(2, 4), CONTEXT)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(CompressError, match="NaN or an infinite"):
        TopK(2).compress(torch.tensor([[0.0, bad]]), CONTEXT)
    with pytest.raises(CompressError, match="beyond"):
        TopK(2).bound(torch.tensor([1e200], dtype=torch.float64), CONTEXT)


def test_the_bound_counts_what_is_dropped_at_the_peak():
    h = torch.tensor([[1.0, -3.0, 0.0, 2.0]] * 5)
    assert TopK(8).bound(h, CONTEXT) == topk_error(15, 3.0)
    assert TopK(8, by="entry").bound(h, CONTEXT) == topk_error(15, 3.0)
    assert TopK(4, by="entry").bound(h, CONTEXT) == topk_error(18, 3.0)
    assert TopK(16).bound(torch.zeros(0, 4), CONTEXT) == topk_error(0, 0.0)


def test_refined_keeps_more_and_shares_what_was_learned():
    compressor = TopK(4)
    compressor.observe(torch.arange(16.0).reshape(1, 16))
    finer = compressor.refined(0.5)
    h = torch.ones(1, 16)
    assert len(kept(finer, h)) == kept_for_factor(16, 2, 0.5) == 9
    assert kept(finer, h)[-1] == (0, 15)
    assert len(kept(finer.refined(0.5), h)) == 13
    assert len(kept(compressor, h)) == 2
    # As the paper's formulas count: 32 bits for each component kept.
    assert [c.nominal_bits(0) for c in (compressor, finer, finer.refined(0.5))] == [4, 18, 25]


def test_by_must_be_known():
    with pytest.raises(ConfigError, match="did you mean 'column'"):
        TopK(2, by="columns")


def floats(n):
    return Plane(torch.zeros(n, dtype=torch.int32), 32)


def bits(*values):
    return Plane(torch.tensor(values, dtype=torch.uint8), 1)


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (Packet((2, 4), ()), "ends with a plane of float"),
        (Packet((2, 4), (bits(0, 0, 0, 1),)), "ends with a plane of float"),
        (Packet((2, 4), (floats(2),)), "are not indices below 4"),
        (Packet((2, 4), (bits(0, 0, 0, 1), floats(1))), "do not go with 1 values"),
        (Packet((2, 4), (bits(0, 0, 1, 1), floats(4))), "2 indices instead of 1"),
        (Packet((2, 4), (bits(0, 0, 0, 1), floats(2)), dtype=torch.float64), "ends with a plane of float"),
        (Packet((2, 4), (bits(0, 0, 0, 1), floats(2)), scalars=(0.0,)), "no scalars"),
        (Packet((2, 2**30), (Plane(torch.tensor([5]), 30), floats(2))), "1 indices instead of 268435456"),
    ],
    ids=["empty", "no values", "no indices", "too few values", "other k", "dtype", "scalars", "huge"],
)
def test_a_packet_of_another_form_is_refused(packet, text):
    with pytest.raises(DecodeError, match=text):
        TopK(8).decompress(packet, CONTEXT)
