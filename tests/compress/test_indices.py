"""Index codes: three ways to write the same places, each chosen where it is the cheapest."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.compress import Plane
from cvfl.compress.topk import decode_indices, encode_indices
from cvfl.errors import DecodeError
from cvfl.wire.varint import varint


def head_cost(count: int, n: int) -> int:
    """A byte, and the number of symbols if it is not that of the components, which are the n places here."""
    return 1 if count == n else 1 + len(varint(count))


def cost(planes, n: int) -> int:
    """Bytes on the wire: the head of each plane, and its symbols."""
    sizes = [(plane.symbols.numel(), plane.width) for plane in planes]
    return sum(head_cost(count, n) + -(-count * width // 8) for count, width in sizes)


def bitmap_cost(n: int) -> int:
    return 1 + -(-n // 8)


def raw_cost(k: int, n: int) -> int:
    return head_cost(k, n) + -(-k * max(1, (n - 1).bit_length()) // 8)


def delta_cost(k: int, n: int, low: int) -> int:
    """Two planes: `low` bits of each index as they are, and the gaps of the rest."""
    gaps = k + (n >> low) + 1
    return head_cost(k, n) + head_cost(gaps, n) + -(-k * low // 8) + -(-gaps // 8)


def code_of(planes, n: int) -> str:
    if len(planes) == 2:
        return "delta"
    return "bitmap" if planes[0].width == 1 and planes[0].symbols.numel() == n else "raw"


def spread(k: int, n: int) -> torch.Tensor:
    return torch.arange(k) * n // max(k, 1)


@pytest.mark.parametrize(
    ("k", "n", "code"),
    [(500, 1000, "bitmap"), (1, 1000, "raw"), (3, 10**6, "raw"), (30, 1000, "delta"), (1000, 10**6, "delta")],
)
def test_each_code_is_chosen_somewhere(k, n, code):
    assert code_of(encode_indices(spread(k, n), n, n), n) == code


def test_by_hand():
    (bitmap,) = encode_indices(torch.tensor([0, 2, 3]), 4, 4)
    assert (bitmap.width, bitmap.symbols.tolist()) == (1, [1, 0, 1, 1])
    (raw,) = encode_indices(torch.tensor([3, 900]), 1000, 1000)
    assert (raw.width, raw.symbols.tolist()) == (10, [3, 900])
    places = torch.arange(0, 256, 8)
    low, high = encode_indices(places, 1000, 1000)  # 1000 / 32: 4 low bits; then (place >> 4) + i is set for place i
    assert (low.width, low.symbols.tolist()) == (4, [0, 8] * 16)
    assert high.symbols.numel() == 32 + (1000 >> 4) + 1
    assert high.symbols.nonzero().reshape(-1).tolist() == [(8 * i >> 4) + i for i in range(32)]


@settings(deadline=None)
@given(n=st.integers(0, 5000), data=st.data())
def test_round_trip_and_never_larger_than_another_code(n, data):
    k = data.draw(st.integers(0, min(n, 300)))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 100)))
    indices = torch.randperm(n, generator=random)[:k].sort().values
    planes = encode_indices(indices, n, n)
    assert decode_indices(planes, n).tolist() == indices.tolist()
    assert cost(planes, n) <= bitmap_cost(n)
    assert cost(planes, n) <= raw_cost(k, n)
    if k and n >= 2 * k:
        assert cost(planes, n) <= delta_cost(k, n, low=(n // k).bit_length() - 1)


@pytest.mark.parametrize("n", [64, 1000, 4096, 10**5])
def test_the_split_is_within_a_twentieth_of_the_best(n):
    """Within 5% and two bytes of rounding."""
    for k in {1, 2, n // 100, n // 30, n // 10, n // 3} - {0}:
        splits = (delta_cost(k, n, low) for low in range(1, n.bit_length()))
        best = min(bitmap_cost(n), raw_cost(k, n), *splits)
        assert best <= cost(encode_indices(spread(k, n), n, n), n) <= 1.05 * best + 2


@pytest.mark.parametrize("n", range(1, 9))
def test_every_subset_of_a_few_places(n):
    for k in range(n + 1):
        for places in itertools.combinations(range(n), k):
            planes = encode_indices(torch.tensor(places, dtype=torch.int64), n, n)
            assert tuple(decode_indices(planes, n).tolist()) == places


def test_first_and_last_place_by_delta():
    n = 100_000
    indices = torch.cat([torch.tensor([0]), torch.arange(50_000, 51_000), torch.tensor([n - 1])])
    planes = encode_indices(indices, n, n)
    assert code_of(planes, n) == "delta"
    assert torch.equal(decode_indices(planes, n), indices)


def test_places_above_2_to_the_31():
    """32-bit symbols come from the wire as signed patterns."""
    n = 2**32 - 1
    plane = Plane(torch.tensor([1, 2**31 + 5 - 2**32, -2], dtype=torch.int32), 32)
    assert decode_indices((plane,), n).tolist() == [1, 2**31 + 5, 2**32 - 2]


def plane(width, *symbols):
    return Plane(torch.tensor(symbols, dtype=torch.int64), width)


@pytest.mark.parametrize(
    "planes",
    [
        (),
        (plane(6, 1, 2),),
        (plane(7, 2, 1),),
        (plane(7, 1, 1),),
        (plane(7, 1, 100),),
        (plane(1, *[1] * 99),),
        (plane(1, *[1] * 101),),
        (plane(5, 0, 1), plane(1, *[1, 1, 0, 0, 0])),  # two high parts want 6 places
        (plane(5, 0, 1), plane(1, *[1, 0, 0, 0, 0, 0])),
        (plane(5, 1, 0), plane(1, *[1, 1, 0, 0, 0, 0])),
        (plane(5, 0, 31), plane(1, *[1, 0, 0, 0, 1, 0])),  # 3 * 32 + 31 = 127
        (plane(32, -900, 1), plane(1, *[1, 1, 0])),
        (plane(64, 0, 0), plane(1, *[1, 1, 0])),
        (plane(5, 0, 1), plane(2, *[1, 1, 0, 0, 0, 0])),
        (plane(7, 1), plane(7, 2), plane(7, 3)),
    ],
    ids=[
        "nothing",
        "narrow",
        "descending",
        "twice",
        "beyond",
        "short bitmap",
        "long bitmap",
        "short gaps",
        "missing gap",
        "descending delta",
        "delta beyond",
        "negative delta",
        "64-bit delta",
        "wide gaps",
        "three planes",
    ],
)
def test_what_is_no_index_set_is_refused(planes):
    with pytest.raises(DecodeError):
        decode_indices(planes, 100)
