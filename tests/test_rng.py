"""Named streams: published Philox vectors, a slow oracle, frozen first words, and addresses that share nothing."""

import hashlib
import itertools

import numpy as np
import pytest

from cvfl.rng import BATCH, DITHER, INIT, Stream, stream

MASK = 2**64 - 1


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 with Python's integers: ten rounds of two multiplications, the key stepped between them."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (second >> 64) ^ b ^ k0, second & MASK, (first >> 64) ^ d ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return a, b, c, d


def slow_words(seed: int, address: tuple[str | int, ...], n: int) -> list[int]:
    """The words of a stream from its definition: key by BLAKE2b, counter from 1, four words a block."""
    text = ""
    for part in (seed, *address):
        text += f"{'int' if isinstance(part, int) else 'str'}:{len(str(part))}:{part};"
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16, person=b"cvfl.stream").digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    blocks = (philox((block, 0, 0, 0), key) for block in itertools.count(1))
    return list(itertools.islice(itertools.chain.from_iterable(blocks), n))


VECTORS = [
    ((0, 0, 0, 0), (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ((MASK,) * 4, (MASK,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (  # the digits of pi
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_known_answers(counter, key, words):
    expected = [int(word, 16) for word in words.split()]
    assert list(philox(counter, key)) == expected
    # NumPy counts up before its first block, so it is started one earlier.
    before = (sum(part << (64 * i) for i, part in enumerate(counter)) - 1) % 2**256
    numpy = np.random.Philox(counter=before, key=key[0] | key[1] << 64)
    assert numpy.random_raw(4).tolist() == expected


ADDRESSES = [
    (0, (DITHER, "embedding", 0, 1)),
    (7, (BATCH, 3)),
    (2**40, (INIT, 2)),
    (-1, ("x",)),
    (0, ()),
    (3, ("Größe ≠ 0", -5, 10**30)),
]


@pytest.mark.parametrize(("seed", "address"), ADDRESSES)
def test_words_match_the_oracle(seed, address):
    assert stream(seed, *address).words(37).tolist() == slow_words(seed, address, 37)


@pytest.mark.parametrize(
    ("seed", "address", "first"),
    [
        (0, (DITHER, "embedding", 0, 1), ["d589b7b5f5da62c9", "7baaae8fff644235"]),
        (7, (BATCH, 3), ["9dae09efeff8408e", "d0790f4eec104890"]),
        (2**40, (INIT, 2), ["4a62f108f0cd4c96", "b0e1fbe78a714551"]),
        (-1, ("x",), ["8c14b194adce2dee", "3e2aa289ea06a394"]),
    ],
)
def test_first_words_are_frozen(seed, address, first):
    assert [f"{word:016x}" for word in stream(seed, *address).words(2).tolist()] == first


def test_a_stream_goes_on_where_it_stopped():
    whole = stream(5, "a").words(100)
    parts = stream(5, "a")
    pieces = [parts.words(n) for n in (1, 0, 2, 30, 67)]
    assert np.array_equal(np.concatenate(pieces), whole)


NEIGHBOURS = [
    (1, ("a", 1, 2)),
    (1, ("a", 12)),
    (1, ("a", "1", 2)),
    (1, ("a", "1;int:1:2")),
    (1, ("a;int:1:1", 2)),
    (1, ("a", 1, 3)),
    (1, ("a", 2, 1)),
    (2, ("a", 1, 2)),
    (1, ("a",)),
    (1, ("a1", 2)),
    (1, ("", "a", 1, 2)),
    (1, ("b", 1, 2)),
]


def test_addresses_share_no_words():
    """hash(index ^ seed) would give neighbours the same words in another order; here not one word returns."""
    words = [stream(seed, *address).words(2000) for seed, address in NEIGHBOURS]
    assert len(np.unique(np.concatenate(words))) == 2000 * len(NEIGHBOURS)


def test_addresses_are_not_correlated():
    """Correlations of 2^16 pairs of 16-bit numbers have deviation 2^-8; six of them are 0.023."""
    streams = [stream(seed, *address).int16(2**16).astype(float) for seed, address in NEIGHBOURS]
    correlations = np.corrcoef(streams)[np.triu_indices(len(NEIGHBOURS), k=1)]
    assert np.abs(correlations).max() < 6 / 2**8


def test_int16_are_the_words_cut_in_four_from_the_low_end():
    word = slow_words(9, ("d",), 1)[0]
    quarters = [word >> (16 * i) & 0xFFFF for i in range(4)]
    signed = [quarter - 2**16 if quarter >= 2**15 else quarter for quarter in quarters]
    for n in range(5):
        assert stream(9, "d").int16(n).tolist() == signed[:n]


def test_int16_covers_its_range_evenly():
    values = stream(1, DITHER).int16(2**20)
    assert values.dtype == np.int16
    assert (values.min(), values.max()) == (-(2**15), 2**15 - 1)
    # The mean of 2^20 draws deviates by 2^16 / sqrt(12) / 2^10 = 18.5.
    assert abs(values.mean(dtype=float) + 0.5) < 6 * 18.5
    counts = np.bincount((values.astype(int) + 2**15) >> 12, minlength=16)
    assert np.abs(counts - 2**16).max() < 6 * 2**8


def test_uniform_is_the_upper_53_bits():
    numbers = stream(2, "u").uniform(50)
    assert [number * 2**53 for number in numbers.tolist()] == [word >> 11 for word in slow_words(2, ("u",), 50)]


def test_uniform_covers_its_range_evenly():
    numbers = stream(2, "u").uniform(100_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 6 / np.sqrt(12 * 100_000)
    assert abs(numbers.var() - 1 / 12) < 6 / np.sqrt(180 * 100_000)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_permutation_is_one(n):
    order = stream(3, BATCH, 0).permutation(n)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_permutation_follows_the_words():
    words = slow_words(3, (BATCH, 0), 20)
    assert stream(3, BATCH, 0).permutation(20).tolist() == sorted(range(20), key=words.__getitem__)


def test_permutations_reach_every_order_evenly():
    orders = [tuple(stream(4, BATCH, epoch).permutation(3).tolist()) for epoch in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert max(abs(count - 1000) for count in counts) < 6 * np.sqrt(6000 * 5 / 36)


def test_seed_fits_63_bits():
    assert Stream(1, "s").seed() == slow_words(1, ("s",), 1)[0] >> 1
    assert all(0 <= stream(i, "s").seed() < 2**63 for i in range(50))
