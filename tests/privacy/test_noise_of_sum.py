"""Noise that parties share: what is added, the sum of it, the grid, and what no key may show."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from cvfl.compress import Context, Masked, Packet, Plane, Scalar, Wrapped
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.privacy.keys import session_secrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.noise import SECRET, Noise
from cvfl.privacy.noise_of_sum import Shared, SharedNoise, shared_noise_for, skellam, tails, whole
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.release import EMBEDDING, EVALUATION, Secret, clipped
from cvfl.wire import encode_packet

ONE, OTHER = bytes(range(SECRET)), bytes(SECRET)
SEED = 7


def shared(noise: float = 1.0, M: int = 4, numbers: int = 2, bits: int = 6) -> Shared:
    return Shared.of(1.0, noise, 2 / (2**bits - 1), M, numbers)


def unlikely(drawn: NDArray[np.float64], variance: float) -> float:
    """How likely counts are as far from those of the distribution in SciPy, which has them from another formula."""
    of = stats.skellam(variance / 2, variance / 2)
    reach = max(1, int(1.5 * math.sqrt(variance)))
    inside = np.clip(drawn, -reach, reach)
    counts = np.array([(inside == k).sum() for k in range(-reach, reach + 1)])
    expected = of.pmf(np.arange(-reach, reach + 1))
    expected[0], expected[-1] = of.cdf(-reach), of.sf(reach - 1)
    return float(stats.chisquare(counts, expected * len(drawn)).pvalue)


@pytest.mark.parametrize("variance", [0.05, 1.0, 30.0, 5000.0])
def test_skellam_numbers(variance: float) -> None:
    z = skellam(ONE, 200_000, tails(variance)).numpy()
    assert np.array_equal(z, z.round())
    assert unlikely(z, variance) > 0.001
    assert abs(z.mean()) < 4 * math.sqrt(variance / len(z))
    fourth = 3 * variance**2 + variance
    assert z.var() == pytest.approx(variance, abs=4 * math.sqrt((fourth - variance**2) / len(z)))
    # The tails, which the test above hardly sees.
    for far in (2.0, 3.0, 4.0):
        magnitude = math.ceil(far * math.sqrt(variance)) + 1
        expected = 2 * stats.skellam.sf(magnitude - 1, variance / 2, variance / 2) * len(z)
        assert abs(int((np.abs(z) >= magnitude).sum()) - expected) < 4 * math.sqrt(expected) + 1


@pytest.mark.parametrize("variance", [1e-6, 0.3, 40.0, 1e5])
def test_tails_are_those_of_the_distribution(variance: float) -> None:
    """As far as they go, which is further than words do."""
    found = tails(variance)
    assert found[-1] < 2.0**-53
    assert found[0] == pytest.approx(1 - stats.skellam.pmf(0, variance / 2, variance / 2), rel=1e-9, abs=1e-15)
    for m in np.unique(np.linspace(0, 4 * math.sqrt(variance), 12).astype(int)):
        expected = 2 * stats.skellam.sf(m, variance / 2, variance / 2)
        assert found[m] == pytest.approx(expected, rel=1e-6, abs=1e-15)
    # Both signs, zero, and the variance: nothing is left out.
    each = -np.diff(found, append=0.0)
    assert (each * np.arange(1, len(found) + 1) ** 2).sum() == pytest.approx(variance, rel=1e-9)


def test_the_sum_over_parties_is_a_skellam_number_of_the_whole_variance() -> None:
    """What the account is of: as exact with one party's part taken off."""
    noise = shared(noise=0.25)
    blank = torch.zeros(30_000, 2, dtype=torch.float64)
    parts = [SharedNoise(noise, Secret(bytes([m]) * SECRET))(blank, EMBEDDING, 0) / noise.step for m in range(4)]
    total = torch.stack(parts).sum(0).round().reshape(-1).numpy()
    assert unlikely(total, noise.variance) > 0.001
    without = torch.stack(parts[1:]).sum(0).round().reshape(-1).numpy()
    assert unlikely(without, noise.variance * 3 / 4) > 0.001
    assert unlikely(without, noise.variance) < 1e-6  # the test can tell
    assert math.sqrt(noise.variance) * noise.step == pytest.approx(0.25)
    table = np.corrcoef([part.reshape(-1).numpy() for part in parts]) - np.eye(4)
    assert float(np.abs(table).max()) < 5 / math.sqrt(60_000)


@given(
    rows=st.integers(0, 6),
    width=st.integers(1, 9),
    bits=st.integers(2, 10),
    scale=st.sampled_from([0.1, 1.0, 50.0]),
    seed=st.integers(0, 100),
)
@settings(deadline=None, max_examples=80)
def test_no_row_is_longer_on_the_grid_than_the_account_says(
    rows: int, width: int, bits: int, scale: float, seed: int
) -> None:
    noise = shared(numbers=width, bits=bits)
    h = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    n = whole(h, noise.step, noise.length)
    assert torch.equal(n, n.round())
    assert bool((n.square().sum(1) <= noise.length).all())
    assert noise.length <= (1 / noise.step) ** 2
    # Nearest, where that is short enough; and else not far from the row.
    near = (h / noise.step).round()
    short = (near.square().sum(1) <= noise.length) & (h.norm(dim=1) < math.sqrt(noise.length) * noise.step)
    assert torch.equal(n[short], near[short])
    apart = (n - clipped(h, 1.0) / noise.step).norm(dim=1)
    assert bool((apart <= 2 * math.sqrt(width) + 0.02 / noise.step).all())


def test_rounding_to_the_nearest_alone_would_be_longer() -> None:
    """The case that scaling down is for."""
    noise = shared(bits=3)
    h = clipped(torch.tensor([[1.0, 0.972]], dtype=torch.float64), 1.0)
    assert float((h / noise.step).round().square().sum()) == 9 + 4 > noise.length == 12
    assert float(whole(h, noise.step, noise.length).square().sum()) == 8


def test_what_is_not_a_number_stays_so_and_is_refused_by_the_grid() -> None:
    noise = shared()
    for bad in (math.nan, math.inf, -math.inf):
        h = torch.tensor([[bad, 0.0], [0.5, 0.5]])
        sent = SharedNoise(noise, Secret(ONE))(h, EMBEDDING, 0)
        assert bool(sent[0].isnan().any())
        assert bool(sent[1].isfinite().all())
        with pytest.raises(CompressError, match="NaN"):
            noise.grid.compress(sent, Context(SEED, 0, 1))


def drawn(noise: SharedNoise, purpose: str = EMBEDDING, t0: int = 0, at: float = 0.0) -> Tensor:
    """What is added, in steps."""
    h = torch.full((200, 2), at, dtype=torch.float64)
    return noise(h, purpose, t0) / noise._shared.step - whole(h, noise._shared.step, noise._shared.length)


def test_every_address_has_noise_of_its_own() -> None:
    """Also another size of the noise: two sizes of the same would show what is under both."""
    one = SharedNoise(shared(), Secret(ONE))
    everything = [
        drawn(one),
        drawn(one, t0=1),
        drawn(one, EVALUATION),
        drawn(SharedNoise(shared(), Secret(OTHER))),
        drawn(SharedNoise(shared())),
        drawn(one, at=1e-3),
        drawn(SharedNoise(shared(noise=1.01), Secret(ONE))),
        drawn(SharedNoise(shared(bits=7), Secret(ONE))),
        drawn(SharedNoise(shared(M=5), Secret(ONE))),
        drawn(SharedNoise(shared().model_copy(update={"length": 991}), Secret(ONE))),
        Noise(1.0, secret=Secret(ONE))(torch.zeros(200, 2, dtype=torch.float64), EMBEDDING, 0),
    ]
    table = torch.stack([z.reshape(-1) for z in everything])
    assert float((torch.corrcoef(table) - torch.eye(len(table))).abs().max()) < 5 / math.sqrt(table.shape[1])


def test_the_same_embedding_of_a_round_is_released_as_the_same() -> None:
    noted: list[tuple[str, int, bytes]] = []
    noise = SharedNoise(shared(), Secret(ONE, lambda *what: noted.append(what)))
    h = torch.randn(7, 2, generator=torch.Generator().manual_seed(1))
    once = noise(h, EMBEDDING, 5)
    noise(h, EMBEDDING, 6)
    again = SharedNoise(shared())
    again.load_state_dict(noise.state_dict())
    assert torch.equal(again(h.clone().requires_grad_(), EMBEDDING, 5), once)
    assert not once.requires_grad
    assert once.dtype == h.dtype
    noise(h + 1e-6, EMBEDDING, 5)
    assert [what[:2] for what in noted] == [(EMBEDDING, 5), (EMBEDDING, 6), (EMBEDDING, 5)]
    assert len({digest for *_, digest in noted}) == 3


class Group:
    """M parties with their parts of the noise and their masks, and the server's end."""

    def __init__(self, noise: Shared) -> None:
        self.noise, self.M = noise, noise.parties
        self.releases = {m: SharedNoise(noise, Secret(bytes([m]) * SECRET)) for m in range(1, self.M + 1)}
        self.parties = {m: Masked(noise.grid, self.M) for m in self.releases}
        self.sum = Aggregate(Masked(noise.grid, self.M), SEED, [f"org{m}" for m in self.releases])
        for m, secrets in session_secrets(self.M).items():
            self.parties[m].mask = Masks(secrets)

    def sent(self, h: list[Tensor], t0: int = 0) -> tuple[list[Tensor], dict[int, bytes]]:
        released = [self.releases[m](x, EMBEDDING, t0) for m, x in enumerate(h, start=1)]
        packets = {
            m: encode_packet(self.parties[m].compress(x, Context(SEED, t0, m))) for m, x in enumerate(released, start=1)
        }
        return released, packets


@given(
    M=st.integers(2, 9),
    noise=st.sampled_from([0.1, 1.0, 6.0]),
    rows=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(deadline=None, max_examples=40)
def test_the_sum_that_is_read_is_that_of_what_was_released(M: int, noise: float, rows: int, dtype: torch.dtype) -> None:
    group, generator = Group(shared(noise, M)), torch.Generator().manual_seed(M)
    h = [torch.randn(rows, 2, generator=generator, dtype=dtype) for _ in range(M)]
    released, packets = group.sent(h)
    data = group.sum.add(packets, 0, (rows, 2), dtype)
    found = group.sum.decode(data, 0, (rows, 2), dtype)
    steps = torch.stack(released).double().sum(0) / group.noise.step
    assert torch.equal((found.double() / group.noise.step).round(), steps.round())
    own = group.parties[1].decompress(group.parties[1].compress(released[0], Context(SEED, 0, 1)), Context(SEED, 0, 1))
    assert torch.equal(own, released[0])


def test_one_packet_says_nothing_and_a_share_of_another_round_is_refused() -> None:
    seen = []
    for _ in range(40):
        group = Group(shared(0.25, 3))
        _, packets = group.sent([torch.zeros(32, 2)] * 3)
        plane = group.parties[2].compress(group.releases[2](torch.zeros(32, 2), EMBEDDING, 0), Context(SEED, 0, 2))
        seen.append(plane.planes[0].symbols.numpy()[:64] % 32)
    assert stats.chisquare(np.bincount(np.concatenate(seen), minlength=32)).pvalue > 1e-4
    _, later = group.sent([torch.zeros(32, 2)] * 3, 1)
    with pytest.raises(DecodeError, match="round 1: the masked embeddings do not add up"):
        group.sum.add(later | {2: packets[2]}, 1, (32, 2), torch.float32)


@given(n=st.lists(st.integers(-40, 40), min_size=1, max_size=20), bits=st.integers(1, 16), step=st.floats(1e-3, 10))
@settings(deadline=None)
def test_the_grid_has_no_ends(n: list[int], bits: int, step: float) -> None:
    """By hand, as remainders about zero; and what is between the ends comes back with its bits."""
    h = torch.tensor(n, dtype=torch.float64) * step
    grid, context = Wrapped(step, bits), Context(SEED, 0, 1)
    half = 2 ** (bits - 1)
    expected = torch.tensor([(k + half) % (2 * half) - half for k in n], dtype=torch.float64) * step
    found = grid.decompress(grid.compress(h, context), context)
    assert torch.equal(found, expected)


@given(seed=st.integers(0, 50), step=st.sampled_from([0.1, 1.0, 7.0]))
@settings(deadline=None, max_examples=20)
def test_the_error_of_the_grid_is_within_its_bound(seed: int, step: float) -> None:
    h = (torch.rand(9, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5) * 60 * step
    grid, context = Wrapped(step, 6), Context(SEED, 0, 1)
    error = float((grid.decompress(grid.compress(h, context), context) - h).square().sum())
    assert 0 < error <= grid.bound(h, context).worst
    with pytest.raises(DecodeError):
        grid.decompress(Packet((2, 2), (Plane(torch.zeros(4, dtype=torch.uint8), 5),)), context)


def test_the_width_holds_the_sum_with_its_noise() -> None:
    """By the exact distribution: once in 10^12 times not, at most; a bit less would not hold what is likely."""
    for noise, M, bits in ((0.05, 2, 4), (1.0, 4, 6), (4.0, 4, 6), (30.0, 32, 6), (0.01, 3, 8)):
        found = shared(noise, M, bits=bits)
        largest = M * math.isqrt(found.length)
        room = 2 ** (found.width - 1) - 1 - largest
        assert 2 * stats.norm.sf(room / math.sqrt(found.variance)) < 1e-12 or found.variance < 10
        assert tails(found.variance)[min(room, len(tails(found.variance)) - 1)] < 1e-12
        assert 2 ** (found.width - 2) < largest + 30 + 9 * math.sqrt(found.variance)


@pytest.mark.parametrize(
    ("clip", "noise", "step", "said"),
    [
        (
            0.1,
            1.0,
            2 / 15,
            r"a step of the compressor's grid is 0.133, more than privacy.clip of 0.1; give it more",
        ),
        (1.0, 10.0, 2 / 4095, r"sums of 4 parties with noise need 19 bits, over 16; give the compressor fewer bits"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_in_one_line(clip: float, noise: float, step: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Shared.of(clip, noise, step, 4, 2)
    assert "\n" not in str(caught.value)


def test_models_that_mix_rows_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ConfigError, match="batch normalisation mixes rows"):
        shared_noise_for(shared(), model, Scalar(6, -1, 1), None)
    assert isinstance(shared_noise_for(shared(), model[0], Scalar(6, -1, 1), Secret(ONE)), SharedNoise)
