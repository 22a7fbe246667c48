"""Bit packing against one long integer, for every width, across the edges of the blocks that are packed at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import DecodeError
from cvfl.wire import pack, packed_size, unpack
from cvfl.wire.bits import WIDTHS

widths = st.sampled_from(WIDTHS)
relaxed = settings(deadline=None)  # a busy machine is no failure
EDGES = [0, 1, 7, 8, 9, 65_535, 65_536, 65_537, 131_073]
NARROW = [width for width in WIDTHS if width not in (8, 16, 32, 64)]


def slow_pack(symbols: list[int], width: int) -> bytes:
    number = 0
    for i, symbol in enumerate(symbols):
        number |= symbol << (i * width)
    return number.to_bytes(-(-len(symbols) * width // 8), "little")


def slow_unpack(data: bytes, width: int, count: int) -> list[int]:
    number = int.from_bytes(data, "little")
    return [number >> (i * width) & ((1 << width) - 1) for i in range(count)]


def block_pack(symbols: np.ndarray, width: int) -> bytes:
    """`slow_pack` in time that grows with the size: any 8 symbols start on a byte of their own."""
    plain = [int(symbol) for symbol in symbols]
    return b"".join(slow_pack(plain[at : at + 800], width) for at in range(0, len(plain), 800))


def unsigned(symbols: np.ndarray, width: int) -> list[int]:
    return [int(symbol) % (1 << width) for symbol in symbols]


@st.composite
def symbols_and_width(draw):
    width = draw(widths)
    return draw(st.lists(st.integers(0, (1 << width) - 1), max_size=70)), width


def as_array(symbols: list[int], width: int) -> np.ndarray:
    return np.array(symbols, dtype=np.uint64 if width > 32 else np.int64)


@relaxed
@given(symbols_and_width())
def test_pack_is_one_little_endian_number(case):
    symbols, width = case
    packed = pack(as_array(symbols, width), width)
    assert packed == slow_pack(symbols, width)
    assert len(packed) == packed_size(len(symbols), width)


@relaxed
@given(symbols_and_width())
def test_unpack_reads_the_same_number(case):
    symbols, width = case
    unpacked = unpack(slow_pack(symbols, width), width, len(symbols))
    assert unsigned(unpacked, width) == symbols == slow_unpack(slow_pack(symbols, width), width, len(symbols))
    if width not in (32, 64):
        assert unpacked.tolist() == symbols  # never negative


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("fill", [0, -1], ids=["zeros", "ones"])
def test_extreme_symbols(width, fill):
    symbols = [fill % (1 << width)] * 21
    packed = pack(as_array(symbols, width), width)
    assert packed == slow_pack(symbols, width)
    assert unsigned(unpack(packed, width, 21), width) == symbols


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", EDGES)
def test_block_edges(width, count):
    random = np.random.default_rng(count * 100 + width)
    symbols = random.integers(0, (1 << width) - 1, count, dtype=np.uint64, endpoint=True)
    packed = pack(symbols, width)
    assert len(packed) == packed_size(count, width)
    assert np.array_equal(unpack(packed, width, count).astype(np.uint64) & np.uint64((1 << width) - 1), symbols)
    # The oracle for the bytes round the edges; the whole is checked by the round trip above.
    for at in (0, max(0, count - 1600) // 8 * 8):
        part = block_pack(symbols[at : at + 1600], width)
        assert packed[at * width // 8 :][: len(part)] == part


@pytest.mark.parametrize("width", [1, 3, 5, 7, 9, 11, 13, 31])
def test_every_byte_of_several_blocks(width):
    symbols = np.random.default_rng(width).integers(0, 1 << width, 140_001)
    assert pack(symbols, width) == block_pack(symbols, width)


def test_golden():
    assert pack([1, 2, 3, 4], 3).hex() == "d108"  # 1 + 2*8 + 3*64 + 4*512 = 0x08d1
    assert unpack(bytes.fromhex("d108"), 3, 4).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("symbols", "width", "golden"),
    [
        ([1, 0, 1, 1, 0, 0, 0, 0, 1], 1, "0d01"),
        ([3, 0, 1, 2], 2, "93"),
        ([31, 0, 1], 5, "1f04"),
        ([0x123, 0x456], 12, "236145"),
        ([0xBEEF, 1], 16, "efbe0100"),
        ([0x1ABCDE, 0], 21, "debc1a000000"),
        ([0xDEADBEEF], 32, "efbeadde"),
        ([0x0123456789ABCDEF], 64, "efcdab8967452301"),
    ],
)
def test_goldens(symbols, width, golden):
    assert pack(as_array(symbols, width), width).hex() == golden


@relaxed
@given(width=st.sampled_from(NARROW), count=st.integers(1, 40), data=st.data())
def test_stray_bits_are_refused(width, count, data):
    spare = -count * width % 8
    packed = bytearray(pack(np.zeros(count, dtype=np.uint8), width))
    if spare:
        packed[-1] |= 1 << (7 - data.draw(st.integers(0, spare - 1)))
        with pytest.raises(DecodeError, match="unused bits"):
            unpack(bytes(packed), width, count)
    else:
        assert unpack(bytes(packed), width, count).tolist() == [0] * count


@relaxed
@given(width=widths, count=st.integers(0, 40), change=st.sampled_from([-1, 1, 8]))
def test_a_wrong_length_is_refused(width, count, change):
    size = max(0, packed_size(count, width) + change)
    if size != packed_size(count, width):
        with pytest.raises(DecodeError, match="bytes, not"):
            unpack(bytes(size), width, count)


@pytest.mark.parametrize("width", [width for width in WIDTHS if width < 32])
@pytest.mark.parametrize("make", [lambda width: 1 << width, lambda width: -1], ids=["too large", "negative"])
def test_a_symbol_that_does_not_fit_is_a_bug_of_the_caller(width, make):
    with pytest.raises(ValueError, match=f"do not fit {width} bits"):
        pack([0, make(width), 0], width)


@pytest.mark.parametrize("width", [0, 33, 63, 65, -1])
def test_only_known_widths_are_packed(width):
    with pytest.raises(ValueError, match="bits wide"):
        pack([0], width)


def test_a_view_is_packed_in_its_own_order():
    symbols = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert pack(symbols.T, 5) == slow_pack(symbols.T.reshape(-1).tolist(), 5)
    assert pack(symbols[:, ::2], 5) == slow_pack([0, 2, 4, 6, 8, 10], 5)


def test_unpacked_symbols_own_their_memory():
    data = bytearray(pack([1, 2, 3], 8))
    symbols = unpack(memoryview(data), 8, 3)
    data[0] = 9
    assert symbols.tolist() == [1, 2, 3]
