"""Laws 5 and 6 for every compressor: honest bits and bounds that hold; and the wire changes nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cvfl.compress import Context, DeadZone, Entropy, Feedback, Identity, Lattice, Scalar, Schedule, Shaped, TopK
from cvfl.errors import CompressError
from cvfl.theory import topk_count
from cvfl.wire import decode_packet, encode_packet
from cvfl.wire.packet import plain_head
from oracle import head, values_of, written

bits = st.integers(1, 16)
dtypes = st.sampled_from([torch.float32, torch.float64])
EDGE_SHAPES = [(), (0,), (1,), (3, 0), (0, 3), (1, 1), (1, 7), (7, 1), (5, 33), (2, 3, 5), (1, 1, 1, 9)]
shapes = st.sampled_from(EDGE_SHAPES) | st.lists(st.integers(0, 12), max_size=3).map(tuple)
relaxed = settings(deadline=None)  # a busy machine is no failure
contexts = st.builds(Context, st.integers(0, 99), st.integers(0, 99), st.integers(0, 9), st.sampled_from(["a", "b"]))


def all_compressors(b: int, low: float | None = None, high: float | None = None):
    columns, entries = TopK(b), TopK(b, by="entry")
    quantizers = [Scalar(b), Lattice(b)]
    if low is not None and high is not None and low < high:
        quantizers += [Scalar(b, low=low, high=high), Lattice(b, low=low, high=high)]
    schedules = [Schedule(Scalar(b)), Schedule(Lattice(b)), Schedule(TopK(b)), Schedule(DeadZone(8 / 2**b))]
    wrapped = [Entropy(Scalar(b)), Entropy(Lattice(b)), Entropy(TopK(b, by="entry")), Entropy(DeadZone(8 / 2**b))]
    wrapped += [Entropy(Schedule(Scalar(b))), Feedback(Lattice(b)), Feedback(Entropy(DeadZone(8 / 2**b)))]
    learned = [Shaped(), Entropy(Shaped()), Feedback(Entropy(Shaped(tolerance=1e-5)))]
    plain = [Identity(), *quantizers, columns, entries, DeadZone(8 / 2**b)]
    return plain + schedules + wrapped + learned


@st.composite
def tensors(draw):
    """Numbers of every size, from denormal to 1e30, alone, mixed, constant or close together far from zero."""
    shape, dtype = draw(shapes), draw(dtypes)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    unit = random.uniform(-1, 1, shape)
    unit = np.where(random.random(shape) < draw(st.sampled_from([0.0, 0.5, 1.0])), np.sign(unit), unit)
    scale = draw(st.sampled_from([1e-320, 1e-160, 1e-45, 1e-42, 1e-38, 1e-20, 1e-3, 1.0, 7.0, 1e5, 1e20, 1e30]))
    offset = draw(st.sampled_from([0.0, 0.0, 1.0, -3.0, 1e6, 2.0**24]) | st.floats(-1e7, 1e7)) * scale
    spread = draw(st.sampled_from([0.0, 1e-6, 1e-4, 1.0, 1.0, 1.0]))
    if draw(st.booleans()):
        unit = unit * 10.0 ** random.uniform(-50, 0, shape)
    numbers = torch.from_numpy(np.asarray(offset + unit * scale * spread)).to(dtype)
    assume(bool(numbers.isfinite().all()))
    return numbers


def ends(h: torch.Tensor) -> tuple[float, float] | tuple[None, None]:
    return (float(h.min()), float(h.max())) if h.numel() else (None, None)


def squared_error(back: torch.Tensor, h: torch.Tensor) -> float:
    return float((back.double() - h.double()).square().sum())


@settings(relaxed, max_examples=300)
@given(h=tensors(), b=bits, context=contexts)
def test_law_6_the_error_is_at_most_the_worst_bound(h, b, context):
    for compressor in all_compressors(b, *ends(h)):
        compressor.observe(h.cos(), 1.0, h if context.m % 2 else None)
        back = compressor.decompress(compressor.compress(h, context), context)
        assert back.shape == h.shape
        assert back.dtype == h.dtype
        bound = compressor.bound(h, context)
        assert 0 <= bound.expected <= bound.worst
        assert squared_error(back, h) <= bound.worst, (compressor, vars(compressor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("b", range(1, 17))
@pytest.mark.parametrize("make", [Scalar, Lattice], ids=["scalar", "lattice"])
def test_law_6_near_1000_where_floats_are_coarse(make, b, dtype):
    for n in (2, 3, 50):
        h = 1000 + torch.linspace(-0.001, 0.001, n, dtype=dtype)
        for t0 in range(30):
            context, compressor = Context(t0=t0), make(b)
            back = compressor.decompress(compressor.compress(h, context), context)
            assert squared_error(back, h) <= compressor.bound(h, context).worst


SAMPLES = {
    "uniform": lambda random: torch.rand(40, 25, generator=random) * 2 - 1,
    "corners": lambda random: torch.randint(0, 2, (40, 25), generator=random) * 2.0 - 1,
    "gauss": lambda random: torch.randn(40, 25, generator=random),
    "tanh": lambda random: torch.tanh(3 * torch.randn(40, 25, generator=random)),
    "sparse": lambda random: torch.relu(torch.randn(41, 25, generator=random) - 1),
    "far": lambda random: 1000 + 0.001 * torch.rand(40, 25, generator=random),
    "pair": lambda random: torch.tensor([-1.0, 1.0]),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("b", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("make", [Scalar, Lattice], ids=["scalar", "lattice"])
def test_law_6_the_mean_over_the_dither_is_at_most_expected(make, b, sample):
    """The error of a message varies by less than its worst bound, so the mean of 200 does by worst / sqrt(200 n)."""
    h, compressor = sample(torch.Generator().manual_seed(b)), make(b)
    bound = compressor.bound(h, Context())
    errors = []
    for t0 in range(200):
        context = Context(seed=5, t0=t0)
        errors.append(squared_error(compressor.decompress(compressor.compress(h, context), context), h))
    margin = 4 * bound.worst / math.sqrt(len(errors) * h.numel())
    assert np.mean(errors) <= bound.expected + margin
    assert margin <= bound.expected * (1 if h.numel() == 2 else 0.05)  # small enough to mean something


@relaxed
@given(h=tensors(), b=bits, context=contexts)
def test_law_5_quantizers_send_n_b_bits_and_a_fixed_header(h, b, context):
    n, size = h.numel(), 8 if h.dtype == torch.float64 else 4
    header = 2
    assert len(encode_packet(Identity().compress(h, context))) == header + n * size
    for make in (Scalar, Lattice):
        assert len(encode_packet(make(b).compress(h, context))) == header + 2 * size + -(-n * b // 8)
        if n and float(h.min()) < float(h.max()):
            fixed = make(b, *ends(h))
            assert len(encode_packet(fixed.compress(h, context))) == header + -(-n * b // 8)


@relaxed
@given(h=tensors(), b=bits, context=contexts)
def test_law_5_top_k_counts_values_and_indices(h, b, context):
    size = 8 if h.dtype == torch.float64 else 4
    width = h.shape[-1] if h.ndim else 1
    for by, places in (("column", width), ("entry", h.numel())):
        packet = TopK(b, by=by).compress(h, context)
        k = topk_count(places, b)
        values = k * (h.numel() // width if width else 0) if by == "column" else k
        heads = [len(plain_head(plane.width, plane.symbols.numel(), h.numel())) for plane in packet.planes]
        indices = sum(-(-plane.symbols.numel() * plane.width // 8) for plane in packet.planes[:-1])
        assert len(encode_packet(packet)) == 1 + sum(heads) + indices + values * size
        # One bit a place at most, and never more than ceil(log2) bits an index.
        width = max(1, (places - 1).bit_length())
        assert indices + sum(heads[:-1]) <= -(-places // 8) + len(plain_head(1, places, h.numel()))
        assert indices + sum(heads[:-1]) <= -(-k * width // 8) + len(plain_head(width, k, h.numel()))


@relaxed
@given(h=tensors(), b=bits, context=contexts)
def test_law_5_codes_are_as_long_as_their_models_say_and_never_much_longer_than_plain(h, b, context):
    """A byte, at most five a plane, the scalars and a few bytes; the rest is within 5% of the ideal length."""
    size = 8 if h.dtype == torch.float64 else 4
    for inner in (Identity(), Scalar(b), Lattice(b), TopK(b), TopK(b, by="entry"), DeadZone(8 / 2**b)):
        packet, data = inner.compress(h, context), encode_packet(Entropy(inner).compress(h, context))
        planes, tail = head(data, tuple(h.shape), size)
        _, _, ideal = written([values_of(plane) for plane in packet.planes], planes, {})
        assert ideal <= sum(plane.width * plane.symbols.numel() for plane in packet.planes) + 1e-6
        assert len(data) - len(tail) <= 1 + 5 * len(planes) + size * len(packet.scalars)
        assert len(tail) <= 1.05 * ideal / 8 + 5


@relaxed
@given(h=tensors(), b=bits, context=contexts)
def test_the_wire_changes_nothing(h, b, context):
    for compressor in all_compressors(b, *ends(h)):
        packet = compressor.compress(h, context)
        data = encode_packet(packet)
        read = decode_packet(data, packet.shape)
        assert (read.shape, read.dtype, len(read.planes)) == (packet.shape, packet.dtype, len(packet.planes))
        assert encode_packet(read) == data
        here, there = compressor.decompress(packet, context), compressor.decompress(read, context)
        integers = torch.int32 if h.dtype == torch.float32 else torch.int64
        assert torch.equal(here.view(integers), there.view(integers))


@relaxed
@given(h=tensors(), b=bits, context=contexts)
def test_a_context_decides_everything(h, b, context):
    for one, two in zip(all_compressors(b, *ends(h)), all_compressors(b, *ends(h)), strict=True):
        assert encode_packet(one.compress(h, context)) == encode_packet(two.compress(h, context))


OTHER_CONTEXTS = [Context(1, 2, 3, "a"), Context(2, 2, 3, "a"), Context(1, 3, 3, "a"), Context(1, 2, 4, "a")]
OTHER_CONTEXTS += [Context(1, 2, 3, "b"), Context(1, 3, 2, "a"), Context(2, 1, 3, "a")]


@pytest.mark.parametrize("make", [Scalar, Lattice], ids=["scalar", "lattice"])
def test_another_context_dithers_otherwise(make):
    h = torch.full((1000,), 0.3)
    compressor = make(3, low=-1.0, high=1.0)
    decoded = [compressor.decompress(compressor.compress(h, context), context) for context in OTHER_CONTEXTS]
    errors = torch.stack(decoded).double() - 0.3
    correlations = torch.corrcoef(errors)[*torch.triu_indices(len(errors), len(errors), 1)]
    assert correlations.abs().max() < 6 / math.sqrt(1000)
    # Another message's dither adds the variance of two dithers.
    wrong = compressor.decompress(compressor.compress(h, OTHER_CONTEXTS[0]), OTHER_CONTEXTS[1])
    assert squared_error(wrong, h) > 2 * squared_error(decoded[0], h)


@relaxed
@given(h=tensors(), b=bits, bad=st.sampled_from([math.nan, math.inf, -math.inf]), data=st.data())
def test_what_is_not_finite_is_refused_by_all(h, b, bad, data):
    assume(h.numel() > 0)
    low, high = ends(h)
    compressors = all_compressors(b, low, high)
    h.reshape(-1)[data.draw(st.integers(0, h.numel() - 1))] = bad
    for compressor in compressors:
        with pytest.raises(CompressError, match="NaN or an infinite"):
            compressor.compress(h, Context())
        if not isinstance(compressor, Identity):
            with pytest.raises(CompressError, match="NaN or an infinite"):
                compressor.bound(h, Context())


@settings(relaxed, max_examples=30)
@given(b=bits, dtype=dtypes, n=st.integers(65_530, 65_545) | st.integers(131_065, 131_080))
def test_law_6_across_the_chunks(b, dtype, n):
    h = torch.linspace(-1, 1, n, dtype=dtype)[torch.randperm(n, generator=torch.Generator().manual_seed(n))]
    for compressor in (Scalar(b), Lattice(b)):
        back = compressor.decompress(compressor.compress(h, Context(t0=n)), Context(t0=n))
        assert squared_error(back, h) <= compressor.bound(h, Context()).expected * 1.05
