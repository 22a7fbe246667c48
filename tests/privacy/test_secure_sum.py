"""Secure aggregation in its parts: keys, masks, the grid, the sum, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from cvfl.compress import Context, Masked, Packet, Plane, Scalar
from cvfl.compress.masked import MAX_WIDTH, finest, sum_width
from cvfl.errors import ConfigError, CvflError, DecodeError, LocalProtocolError, RemoteProtocolError
from cvfl.privacy.keys import SessionKey, session_secrets
from cvfl.privacy.masks import Masks
from cvfl.protocol.aggregate import Aggregate
from cvfl.wire import encode_packet

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
SEED = 7


class Group:
    """M parties on one grid, as their machines have it, and the server's end."""

    def __init__(self, M: int, bits: int, low: float = -1.0, high: float = 1.0) -> None:
        self.M, self.grid = M, Scalar(bits, low, high)
        self.names = [f"org{m}" for m in range(1, M + 1)]
        self.parties = {m: Masked(self.grid, M) for m in range(1, M + 1)}
        self.server = Masked(self.grid, M)
        self.sum = Aggregate(self.server, SEED, self.names)
        self.begin()

    def begin(self) -> None:
        """A new session."""
        for m, secrets in session_secrets(self.M).items():
            self.parties[m].mask = Masks(secrets)

    def packets(self, h: list[torch.Tensor], t0: int = 0) -> dict[int, bytes]:
        return {m: encode_packet(self.parties[m].compress(x, Context(SEED, t0, m))) for m, x in enumerate(h, start=1)}

    def symbols(self, h: list[torch.Tensor], t0: int = 0) -> list[torch.Tensor]:
        packets = [self.grid.compress(x, Context(SEED, t0, m)) for m, x in enumerate(h, start=1)]
        return [packet.planes[0].symbols.int() for packet in packets]


def embeddings(M: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator, dtype=dtype) * 2 - 1 for _ in range(M)]


@relaxed
@given(
    M=st.integers(2, 9),
    bits=st.integers(1, 12),
    shape=st.tuples(st.integers(0, 5), st.integers(0, 7)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    t0=st.integers(0, 3),
)
def test_the_sum_is_that_of_the_symbols(M: int, bits: int, shape: tuple[int, ...], dtype: torch.dtype, t0: int) -> None:
    """Bit for bit, whatever the masks; and it decodes to the sum of the embeddings within M half cells."""
    group, h = Group(M, bits), embeddings(M, shape, dtype, seed=bits)
    data = group.sum.add(group.packets(h, t0), t0, shape, dtype)
    plain = torch.stack(group.symbols(h, t0)).sum(0)
    width, count = group.server.width, math.prod(shape)
    expected = torch.from_numpy(plain.numpy().astype(np.uint16 if width > 8 else np.uint8))
    assert data == encode_packet(Packet(shape, (Plane(expected, width),), dtype=dtype))
    decoded = group.sum.decode(data, t0, shape, dtype)
    cell = 2 / (2**bits - 1)
    if count:
        assert float((decoded - torch.stack(h).sum(0)).abs().max()) <= M * cell / 2 * (1 + 1e-5) + 1e-6 * M
        own = [group.grid.decompress(group.grid.compress(x, c), c) for x, c in _with_contexts(h, t0)]
        torch.testing.assert_close(decoded, torch.stack(own).sum(0), rtol=0, atol=1e-5)


def _with_contexts(h: list[torch.Tensor], t0: int) -> list[tuple[torch.Tensor, Context]]:
    return [(x, Context(SEED, t0, m)) for m, x in enumerate(h, start=1)]


@given(bits=st.integers(1, 16), M=st.integers(1, 1000))
def test_the_width_is_the_least_that_cannot_overflow(bits: int, M: int) -> None:
    most, width = M * (2**bits - 1), sum_width(bits, M)
    assert 2 ** (width - 1) <= most < 2**width
    assert width <= bits + math.log2(M) + 1


@pytest.mark.parametrize("M", [2, 3, 4, 16, 32, 64])
def test_held_out_rows_take_the_finest_grid(M: int) -> None:
    assert sum_width(finest(M), M) <= MAX_WIDTH < sum_width(finest(M) + 1, M)


def test_a_masked_packet_takes_its_bits_and_a_check() -> None:
    group = Group(4, 4)
    (one, *_) = group.packets(embeddings(4, (64, 16))).values()
    assert group.server.width == 6
    assert len(one) == 2 + 2 + math.ceil((64 * 16 + 6) * 6 / 8)


def test_one_packet_says_nothing() -> None:
    """The same embedding under masks of many sessions is uniform over all symbols, and so is a constant one."""
    group, seen = Group(3, 4), []
    for _ in range(40):
        group.begin()
        packet = group.parties[2].compress(torch.zeros(32, 8), Context(SEED, 0, 2))
        seen.append(packet.planes[0].symbols.numpy()[: 32 * 8])
    counts = np.bincount(np.concatenate(seen), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert len({words.tobytes() for words in seen}) == 40


def test_masks_cancel_and_never_come_twice() -> None:
    seen = set()
    for secrets in (session_secrets(4), session_secrets(4)):
        masks = [Masks(secret) for secret in secrets.values()]
        for part, t0 in itertools.product(("embedding", "test embedding"), (0, 1, 2**31)):
            drawn = [mask(part, t0, 500) for mask in masks]
            assert not (sum(words.astype(np.int64) for words in drawn) % 2**16).any()
            seen |= {words.tobytes() for words in drawn}
    assert len(seen) == 2 * 4 * 2 * 3


def test_a_mask_hides_one_message() -> None:
    """The same message may be sent again, another one may not; and there is no way back."""
    masked, (h, other) = Group(2, 4).parties[1], embeddings(2, (4, 4))
    first = masked.compress(h, Context(SEED, 3, 1))
    assert encode_packet(masked.compress(h, Context(SEED, 3, 1))) == encode_packet(first)
    for t0, x in ((3, other), (2, h)):
        with pytest.raises(LocalProtocolError, match=f"mask of round {t0} was used"):
            masked.compress(x, Context(SEED, t0, 1))


def test_the_server_cannot_open_a_single_packet() -> None:
    group = Group(2, 4)
    packet = group.parties[1].compress(torch.zeros(2, 2), Context(SEED, 0, 1))
    with pytest.raises(LocalProtocolError, match="only be read as part of the sum"):
        group.server.decompress(packet, Context(SEED, 0, 1))
    own = group.parties[1].decompress(packet, Context(SEED, 0, 1))
    assert float(own.abs().max()) <= 1 / 15 + 1e-6


def wrong(group: Group, h: list[torch.Tensor], case: str) -> dict[int, bytes]:
    """Packets of round 1 with something wrong."""
    earlier, now = group.packets(h, 0), group.packets(h, 1)
    shape, width = tuple(h[0].shape), group.server.width
    masked = group.parties[2]
    match case:
        case "replayed":
            return now | {2: earlier[2]}
        case "another session":
            group.begin()
            return now | {2: encode_packet(Masked.compress(group.parties[2], h[1], Context(SEED, 1, 2)))}
        case "a changed symbol of the check":
            plane = masked.compress(h[1], Context(SEED, 1, 2)).planes[0]
            symbols = plane.symbols.clone()
            symbols[-1] ^= 1
            return now | {2: encode_packet(Packet(shape, (Plane(symbols, width),)))}
        case "outside the grid":
            symbols = masked.compress(h[1], Context(SEED, 1, 2)).planes[0].symbols.clone()
            plain = sum(int(x[0]) for x in group.symbols(h, 1))
            # One more than the greatest sum, in the first component.
            symbols[0] = (int(symbols[0]) - plain + group.M * (2**group.grid.bits - 1) + 1) % 2**width
            return now | {2: encode_packet(Packet(shape, (Plane(symbols, width),)))}
        case "too few masks":
            symbols = masked.compress(h[1], Context(SEED, 1, 2)).planes[0].symbols[:-1]
            return now | {2: encode_packet(Packet(shape, (Plane(symbols, width),)))}
        case "another width":
            symbols = masked.compress(h[1], Context(SEED, 1, 2)).planes[0].symbols
            return now | {2: encode_packet(Packet(shape, (Plane(symbols, width + 1),)))}
        case "scalars":
            plane = masked.compress(h[1], Context(SEED, 1, 2)).planes[0]
            return now | {2: encode_packet(Packet(shape, (plane,), (1.0,)))}
        case "another shape":
            return now | {2: encode_packet(Packet((1, 1), (Plane(torch.zeros(1, dtype=torch.int64), width),)))}
    return now


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("replayed", "round 1: the masked embeddings do not add up"),
        ("another session", "round 1: the masked embeddings do not add up"),
        ("a changed symbol of the check", "round 1: the masked embeddings do not add up"),
        ("outside the grid", "round 1: the masked embeddings add up to more than the grid has"),
        ("too few masks", "org2, round 1: expected 21 masked symbols of 7 bits, got [(7, 20)]"),
        ("another width", "org2, round 1: expected 21 masked symbols of 7 bits, got [(8, 21)]"),
        ("scalars", "org2, round 1: expected no scalars"),
        ("another shape", "org2, round 1: the packet is none of shape (4, 4): symbols: 14 bytes announced, 1 there"),
    ],
)
def test_shares_that_cannot_be_added_are_refused_in_one_line(case: str, said: str) -> None:
    group, h = Group(5, 4), embeddings(5, (4, 4))
    assert group.sum.decode(
        group.sum.add(wrong(group, h, "none"), 1, (4, 4), torch.float32), 1, (4, 4), torch.float32
    ).shape
    group = Group(5, 4)
    with pytest.raises(DecodeError) as caught:
        group.sum.add(wrong(group, h, case), 1, (4, 4), torch.float32)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_sum_outside_the_grid_is_refused_by_a_party() -> None:
    group = Group(5, 4)
    packet = Packet((1, 2), (Plane(torch.tensor([75, 76], dtype=torch.uint8), 7),))
    with pytest.raises(DecodeError, match="leaves the grid"):
        group.sum.decode(encode_packet(packet), 0, (1, 2), torch.float32)


def test_keys_that_do_not_fit_are_refused() -> None:
    keys = [SessionKey() for _ in range(3)]
    publics = [key.public for key in keys]
    for m, said, told in (
        (1, "not the one that it sent", [publics[1], publics[0], publics[2]]),
        (4, "not the one that it sent", publics),
        (1, "two are the same", [publics[0], publics[1], publics[1]]),
        (1, "malformed", [publics[0], publics[1][:-1], publics[2]]),
        (1, "the public key of party 2 is no point of the curve", [publics[0], bytes(32), publics[2]]),
    ):
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            keys[0].agree(m, told)
        assert not any(public.hex() in str(caught.value) for public in publics)


def test_both_ends_of_a_pair_have_one_secret_for_each_purpose() -> None:
    one, two = session_secrets(2).values()
    assert one.key(2, "masks") == two.key(1, "masks") != one.key(2, "another purpose")


def test_too_many_bits_for_the_parties() -> None:
    with pytest.raises(ConfigError, match="32 parties and 12 bits need sums of 17 bits"):
        Masked(Scalar(12, -1.0, 1.0), 32)


def test_a_value_outside_the_grid_names_its_party_and_shows_nothing_of_the_others() -> None:
    with pytest.raises(CvflError, match=r"outside the compressor's \[-1, 1\]"):
        Group(2, 4).parties[1].compress(torch.tensor([[1.5]]), Context(SEED, 0, 1))
