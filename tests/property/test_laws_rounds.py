"""Laws 3, 5, 6 over many rounds, for every compressor alone and in wrappers: two ends that share nothing but bytes.

sender ──compress──▶ encode_packet ──bytes──▶ decode_packet ──decompress──▶ receiver        then both settle
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cvfl.compress import Compressor, Context, build
from cvfl.compress.base import LARGEST
from cvfl.compress.basis import within
from cvfl.errors import CompressError
from cvfl.wire import decode_packet, encode_packet

INNERS = ["identity", "scalar:bits={b}", "lattice:bits={b}", "topk:bits={b}", "topk:bits={b},by=entry"]
INNERS += ["deadzone:step={step}", "shaped", "schedule(scalar:bits={b})", "schedule(topk:bits={b})"]
INNERS += ["schedule(deadzone:step={step})"]
WRAPPERS = ["{}", "entropy({})", "feedback({})", "feedback(entropy({}))", "entropy(feedback({}))"]
EVERY = [wrapper.format(inner) for wrapper in WRAPPERS for inner in INNERS]
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
bits = st.integers(1, 16)
dtypes = st.sampled_from([torch.float32, torch.float64])
SENDER_ALONE = ("score", "curvature", "moments", "numbers")


def spec_of(form: str, b: int) -> str:
    return form.format(b=b, step=8 / 2**b)


def sent(sender: Compressor, h: torch.Tensor, context: Context) -> bytes:
    return encode_packet(sender.compress(h, context))


def got(receiver: Compressor, data: bytes, h: torch.Tensor, context: Context) -> torch.Tensor:
    return receiver.decompress(decode_packet(data, tuple(h.shape)), context)


def settle(end: Compressor, data: bytes, h: torch.Tensor, context: Context) -> None:
    packet = decode_packet(data, tuple(h.shape))
    end.settle(packet, end.decompress(packet, context), context)


def shared(end: Compressor) -> dict[str, bytes]:
    """What both ends must know alike, as bytes."""
    state = {key: value for key, value in end.state_dict().items() if not key.endswith(SENDER_ALONE)}
    raw = {key: bytes(value.contiguous().reshape(-1).view(torch.uint8).tolist()) for key, value in state.items()}
    return {key: f"{value.dtype} {tuple(value.shape)} ".encode() + raw[key] for key, value in state.items()}


def restarted(end: Compressor, spec: str) -> Compressor:
    other = build(spec)
    other.load_state_dict({key: value.clone() for key, value in end.state_dict().items()})
    return other


def squared_error(back: torch.Tensor, h: torch.Tensor) -> float:
    return float((back.double() - h.double()).square().sum())


def used(receiver: Compressor, back: torch.Tensor) -> torch.Tensor:
    """What receivers use of a reconstruction: of what is known of a row no more than the basis can show."""
    return back if receiver.span is None else within(back, receiver.span)


def learn(sender: Compressor, h: torch.Tensor, gradient: torch.Tensor, loss: float) -> None:
    """As a party lets its compressor learn; of what was sent it hears in most rounds, and how well that agreed."""
    told = int(loss * 10)
    sender.observe(gradient, loss, h if told % 4 else None)
    sender.certify(loss, loss * (told % 7) / 6, loss + told % 3)


@st.composite
def journeys(draw):
    """Embeddings of random samples that move from round to round, of every size; and gradients of every size."""
    total, P, rounds = draw(st.integers(1, 40)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = st.sampled_from([1e-300, 1e-160, 1e-45, 1e-38, 1e-20, 1e-3, 1.0, 1.0, 1.0, 7.0, 1e20, 1e37, 1e140])
    steady, dtype = draw(st.booleans()), draw(dtypes)
    scale, slope = draw(sizes), draw(sizes)
    most = LARGEST[dtype] / 64
    found = []
    h = random.standard_normal((total, P)) * scale
    for t0 in range(rounds):
        samples = torch.from_numpy(random.permutation(total)[: draw(st.integers(0, total))])
        h = h + random.standard_normal(h.shape) * 0.1 * scale
        if not steady:
            h = h * 10.0 ** random.integers(-30, 12)
        h = np.clip(h, -most, most)
        gradient = np.clip(random.standard_normal((len(samples), P)) * slope, -most, most)
        gradient = torch.from_numpy(gradient).to(dtype)
        context = Context(seed=3, t0=t0 * 7, m=1, samples=samples, total=total)
        found.append((context, torch.from_numpy(h)[samples].to(dtype), gradient, float(random.random() * 3)))
    return found


@settings(relaxed, max_examples=300)
@given(form=st.sampled_from(EVERY), b=bits, journey=journeys())
def test_law_6_holds_in_every_round_and_the_ends_stay_alike(form, b, journey):
    spec = spec_of(form, b)
    sender, receiver = build(spec), build(spec)
    for context, h, gradient, loss in journey:
        data = sent(sender, h, context)
        assert sent(sender, h, context) == data  # until the round is over it can be sent again
        back = got(receiver, data, h, context)
        assert (back.shape, back.dtype) == (h.shape, h.dtype)
        assert torch.equal(got(sender, data, h, context), back)
        bound = sender.bound(h, context)
        assert 0 <= bound.expected <= bound.worst
        assert squared_error(used(receiver, back), h) <= bound.worst
        settle(sender, data, h, context)
        settle(receiver, data, h, context)
        assert shared(sender) == shared(receiver)
        learn(sender, h, gradient, loss)


@settings(relaxed, max_examples=150)
@given(form=st.sampled_from(EVERY), b=bits, journey=journeys(), when=st.integers(0, 63), during=st.integers(0, 63))
def test_law_3_a_restart_between_any_two_rounds_changes_no_byte(form, b, journey, when, during):
    """Bit i of `when` says whether both ends are restarted before round i, and of `during` after they sent and got."""
    spec = spec_of(form, b)
    ends, others = (build(spec), build(spec)), (build(spec), build(spec))
    for i, (context, h, gradient, loss) in enumerate(journey):
        if when >> i & 1:
            others = tuple(restarted(end, spec) for end in others)
        data = sent(ends[0], h, context)
        assert sent(others[0], h, context) == data
        assert torch.equal(got(others[1], data, h, context), got(ends[1], data, h, context))
        if during >> i & 1:
            others = tuple(restarted(end, spec) for end in others)
        for end in (*ends, *others):
            settle(end, data, h, context)
        for sender in (ends[0], others[0]):
            learn(sender, h, gradient, loss)
        assert shared(others[0]) == shared(ends[1])


@pytest.mark.parametrize("form", EVERY)
def test_the_ends_stay_alike_for_many_rounds(form):
    """60 rounds over random samples of moving embeddings: the same state, bit for bit; a loss that falls."""
    spec = spec_of(form, 3)
    sender, receiver = build(spec), build(spec)
    random = torch.Generator().manual_seed(1)
    h = torch.randn(120, 6, generator=random)
    for t0 in range(60):
        h += 0.05 * torch.randn(120, 6, generator=random)
        context = Context(seed=1, t0=t0, samples=torch.randperm(120, generator=random)[:50], total=120)
        batch = h[context.samples]
        data = sent(sender, batch, context)
        back = got(receiver, data, batch, context)
        assert squared_error(back, batch) <= sender.bound(batch, context).worst
        settle(sender, data, batch, context)
        settle(receiver, data, batch, context)
        sender.observe(0.1 * torch.randn(50, 6, generator=random), 0.95**t0)
    assert shared(sender) == shared(receiver)
    if "entropy" not in form:  # which counts nothing if all planes are few or floats
        assert bool(shared(sender)) == ("feedback" in form or "shaped" in form)
    if form in (
        "entropy(scalar:bits={b})",
        "entropy(topk:bits={b},by=entry)",
        "feedback(entropy(deadzone:step={step}))",
    ):
        assert any("counts" in key for key in shared(sender))


@pytest.mark.parametrize("inner", INNERS)
def test_the_order_of_the_wrappers_does_not_matter(inner):
    one, two = (build(spec_of(wrapper.format(inner), 3)) for wrapper in WRAPPERS[3:])
    for t0 in range(4):
        h, context = torch.randn(40, 6, generator=torch.Generator().manual_seed(t0)), Context(t0=t0)
        data = sent(one, h, context)
        assert sent(two, h, context) == data
        for end in (one, two):
            settle(end, data, h, context)
            end.observe(h.cos(), 0.5)


SHAPES = [(), (0,), (1,), (3, 0), (0, 3), (1, 1), (1, 7), (7, 1), (5, 33), (2, 3, 5), (65, 130)]


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_shape_three_times(form, dtype):
    """Weight matrices and gradients have no samples: their rows are not people."""
    spec = spec_of(form, 3)
    for shape in SHAPES:
        sender, receiver = build(spec), build(spec)
        for t0 in range(3):
            h = torch.randn(shape, generator=torch.Generator().manual_seed(t0), dtype=dtype)
            context = Context(t0=t0, part="server model's weight")
            data = sent(sender, h, context)
            back = got(receiver, data, h, context)
            assert (back.shape, back.dtype) == (h.shape, h.dtype)
            assert squared_error(back, h) <= sender.bound(h, context).worst
            settle(sender, data, h, context)
            settle(receiver, data, h, context)
            sender.observe(h.cos(), 0.5, h)
        assert shared(sender) == shared(receiver)


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_in_any_round(form, bad):
    """And the refusal leaves the sender as it was."""
    spec = spec_of(form, 3)
    sender = build(spec)
    for t0 in range(3):
        h, context = torch.randn(40, 4, generator=torch.Generator().manual_seed(t0)), Context(t0=t0)
        broken = h.clone()
        broken[t0, t0] = bad
        before = shared(sender)
        with pytest.raises(CompressError, match="NaN or an infinite"):
            sender.compress(broken, context)
        if spec not in ("identity", "entropy(identity)"):
            with pytest.raises(CompressError, match="NaN or an infinite"):
                sender.bound(broken, context)
        assert shared(sender) == before
        settle(sender, sent(sender, h, context), h, context)
        sender.observe(h.cos(), 0.5)
