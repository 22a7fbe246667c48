"""Noise of a party: its distribution, its addresses, and the grid that it ends on; and clipping."""

from __future__ import annotations

import math

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from torch import Tensor, nn

from cvfl.compress import build
from cvfl.compress.limits import limits
from cvfl.errors import ConfigError
from cvfl.privacy.noise import SECRET, Noise, noise_for, normal
from cvfl.protocol.release import EMBEDDING, EVALUATION, Clipped, Secret, clipped
from cvfl.rng import stream

ONE, OTHER = bytes(range(SECRET)), bytes(SECRET)
SIGMA = 0.5


def drawn(noise: Noise, purpose: str = EMBEDDING, t0: int = 0, rows: int = 200, width: int = 50) -> Tensor:
    """What is added to zeros, in units of sigma."""
    return noise(torch.zeros(rows, width, dtype=torch.float64), purpose, t0) / noise.sigma


def test_normal_numbers() -> None:
    z = normal(ONE, 200_000)
    assert abs(float(z.mean())) < 4 / math.sqrt(z.numel())
    assert float(z.var()) == pytest.approx(1, abs=4 * math.sqrt(2 / z.numel()))
    assert stats.kstest(z.numpy(), "norm").pvalue > 0.01
    # The tails, which the test above hardly sees.
    for far in (2.0, 3.0, 4.0):
        expected = 2 * stats.norm.sf(far) * z.numel()
        assert abs(int((z.abs() > far).sum()) - expected) < 4 * math.sqrt(expected) + 1
    assert float(z.abs().max()) < 8.3


def test_a_normal_number_is_the_quantile_of_its_word() -> None:
    """By hand, from the key stream of the published cipher, for the first words of a key."""
    stream = Cipher(ChaCha20(ONE, bytes(16)), mode=None).encryptor().update(bytes(64))
    for n, z in enumerate(normal(ONE, 8).tolist()):
        word = int.from_bytes(stream[8 * n : 8 * n + 8], "little")
        beyond = ((word >> 12) + 0.5) / 2**53
        assert z == pytest.approx((1 if word & 1 else -1) * stats.norm.isf(beyond), rel=1e-12)
    assert normal(ONE, 8).tolist() == normal(ONE, 20)[:8].tolist()
    assert normal(ONE, 0).shape == (0,)


def test_noise_has_its_standard_deviation_and_no_mean() -> None:
    h = torch.linspace(-1, 1, 40_000, dtype=torch.float64).reshape(200, 200)
    z = (Noise(SIGMA, secret=Secret(ONE))(h, EMBEDDING, 3) - h) / SIGMA
    assert stats.kstest(z.reshape(-1).numpy(), "norm").pvalue > 0.01
    assert abs(float(torch.corrcoef(torch.stack([z.reshape(-1), h.reshape(-1)]))[0, 1])) < 0.02


def test_every_address_has_noise_of_its_own() -> None:
    noise = Noise(SIGMA, secret=Secret(ONE))
    everything = {
        "first": drawn(noise),
        "next round": drawn(noise, t0=1),
        "evaluation": drawn(noise, EVALUATION),
        "another party": drawn(Noise(SIGMA, secret=Secret(OTHER))),
        "drawn by itself": drawn(Noise(SIGMA)),
        "drawn by itself, too": drawn(Noise(SIGMA)),
        "another embedding": noise(torch.full((200, 50), 1e-3, dtype=torch.float64), EMBEDDING, 0) / SIGMA - 2e-3,
    }
    table = torch.stack([z.reshape(-1) for z in everything.values()])
    correlation = torch.corrcoef(table) - torch.eye(len(table))
    assert float(correlation.abs().max()) < 5 / math.sqrt(table.shape[1]), list(everything)


def test_the_same_embedding_of_a_round_has_the_same_noise() -> None:
    noise, other = Noise(SIGMA, secret=Secret(ONE)), Noise(SIGMA)
    h = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    once = noise(h, EMBEDDING, 5)
    noise(h, EMBEDDING, 6)
    assert torch.equal(noise(h.clone().requires_grad_(), EMBEDDING, 5), once)
    assert not torch.equal(other(h, EMBEDDING, 5), once)
    other.load_state_dict(noise.state_dict())
    assert torch.equal(other(h, EMBEDDING, 5), once)
    assert torch.equal(noise(h.t().contiguous().t(), EMBEDDING, 5), once)  # whatever its layout in memory
    assert not once.requires_grad


def test_a_difference_of_two_embeddings_is_never_shown_without_noise() -> None:
    """Else a round that is repeated with other data would tell their difference exactly."""
    noise, h = Noise(SIGMA, secret=Secret(ONE)), torch.zeros(100, 10, dtype=torch.float64)
    other = h.clone()
    other[0, 0] = 1e-12
    apart = noise(h, EMBEDDING, 0) - noise(other, EMBEDDING, 0)
    assert float(apart.std()) == pytest.approx(math.sqrt(2) * SIGMA, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [1e-6, 0.3, 0.5, 1e6])
def test_what_leaves_is_on_a_grid_that_depends_on_sigma_alone(sigma: float, dtype: torch.dtype) -> None:
    noise = Noise(sigma, secret=Secret(ONE))
    h = torch.rand(50, 8, generator=torch.Generator().manual_seed(1)).to(dtype) * sigma
    sent = noise(h, EMBEDDING, 0)
    assert sent.dtype == dtype
    step = 2.0 ** (math.floor(math.log2(sigma)) - 10)
    places = sent.double() / step
    assert torch.equal(places, places.round())
    assert len(places.unique()) > 300
    assert 2**-11 * sigma < step <= 2**-10 * sigma


@given(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=30, deadline=None)
def test_any_shape(shape: tuple[int, int], dtype: torch.dtype) -> None:
    sent = Noise(SIGMA, (-0.25, 0.25), Secret(ONE))(torch.zeros(shape, dtype=dtype), EMBEDDING, 0)
    assert (sent.shape, sent.dtype) == (shape, dtype)
    assert bool((sent.abs() <= 0.25).all())


@pytest.mark.parametrize(
    ("spec", "interval"),
    [
        ("scalar:bits=2,low=-1,high=0.5", (-1, 0.5)),
        ("entropy(lattice:bits=2,low=-0.1,high=0.1)", (-0.1, 0.1)),
        ("schedule(scalar:bits=2,low=0,high=2)", (0, 2)),
        ("scalar:bits=2", None),
        ("feedback(scalar:bits=2)", None),
        ("auto", None),
        ("topk:bits=2", None),
        ("identity", None),
    ],
)
def test_limits_of_compressors(spec: str, interval: tuple[float, float] | None) -> None:
    compressor = build(spec)
    assert limits(compressor) == interval
    noisy = noise_for(5.0, nn.Linear(2, 2), compressor, Secret(ONE))(torch.zeros(9, 4), EMBEDDING, 0)
    if interval:
        assert bool((noisy >= torch.tensor(interval[0])).all() & (noisy <= torch.tensor(interval[1])).all())
        assert {noisy.min().item(), noisy.max().item()} == set(torch.tensor(interval).tolist())
    else:
        assert float(noisy.abs().max()) > 5


@pytest.mark.parametrize(
    "spec", ["feedback(scalar:bits=1,low=0,high=1)", "entropy(feedback(lattice:bits=2,low=0,high=1))"]
)
def test_limits_that_cannot_be_kept_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="inside feedback limit differences"):
        limits(build(spec))


def test_a_model_that_mixes_rows_is_refused() -> None:
    mixing = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(ConfigError, match="batch normalisation mixes rows"):
        noise_for(1.0, mixing, build("identity"))
    noise_for(1.0, nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), build("identity"))


@pytest.mark.parametrize("secret", [b"", b"short", bytes(33)])
def test_a_secret_of_the_wrong_length_is_refused_and_not_shown(secret: bytes) -> None:
    with pytest.raises(ConfigError, match=rf"has 32 bytes, not {len(secret)}$"):
        Noise(1.0, secret=Secret(secret))


def test_nan_is_not_hidden_by_noise() -> None:
    h = torch.tensor([[0.0, math.nan]])
    assert bool(Noise(1.0, (-1, 1), Secret(ONE))(h, EMBEDDING, 0).isnan().any())


rows = arrays.arrays(
    "float64",
    arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
    elements=st.floats(-1e6, 1e6) | st.just(0.0),
)


@given(rows, st.floats(1e-3, 1e3), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=200, deadline=None)
def test_clipping_bounds_norms_and_leaves_short_rows(values: object, C: float, dtype: torch.dtype) -> None:
    h = torch.as_tensor(values, dtype=dtype)
    out = clipped(h, C)
    assert (out.shape, out.dtype) == (h.shape, dtype)
    before, after = (x.double().norm(dim=1) for x in (h, out))
    eps = 4 * torch.finfo(dtype).eps
    assert bool((after <= C * (1 + eps)).all())
    short = before <= C
    assert torch.equal(out[short], h[short])
    assert torch.allclose(after[~short], torch.full_like(after[~short], C), rtol=1e-5)
    direction = out[~short].double() * before[~short, None]
    assert torch.allclose(direction, h[~short].double() * C, rtol=1e-5, atol=1e-5 * C)


def test_clipping_has_the_gradient_of_its_formula() -> None:
    h = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0], [-1e3, 2.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: clipped(x, 1.0), (h[1:].detach().requires_grad_(),))
    clipped(h, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert h.grad is not None
    assert h.grad[:2].tolist() == [[1, 1], [1, 1]]  # a row of zeros, too
    # A long row moves only across its own direction.
    assert float((h.grad[2] * h.detach()[2]).sum()) == pytest.approx(0, abs=1e-12)


def test_what_is_not_finite_stays_so_for_the_compressor_to_refuse() -> None:
    h = clipped(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1e30, 1e30]]), 1.0)
    assert bool(h[0].isnan().all())
    assert not bool(h[1].isfinite().all())
    assert h[2].norm().item() == pytest.approx(1)  # whose square a float32 cannot hold


def test_a_clipped_model_is_the_model() -> None:
    model = nn.Linear(3, 4)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(Clipped(model, 1e6)(x), model(x))
    assert torch.equal(Clipped(model, 0.1)(x), clipped(model(x), 0.1))


def test_noise_of_two_sizes_does_not_show_what_is_under_both() -> None:
    """One secret, one round, one embedding: with sigma and twice sigma the same normal numbers would cancel."""
    h = torch.from_numpy(stream(5, "under").uniform(4000)).reshape(1000, 4)
    once, twice = (Noise(sigma, secret=Secret(b"s" * 32))(h, "embedding", 3) for sigma in (1.0, 2.0))
    assert float((2 * once - twice - h).square().mean()) > 4.0  # of independent noise 4 + 4
