"""The range code: the bytes are those of the page's slow description, and none is much longer than plain symbols.

`oracle` codes one symbol at a time; nothing of it is shared with what is tested.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from cvfl.compress import Packet, Plane
from cvfl.errors import DecodeError
from cvfl.wire.rangecode import decoded, encoded
from oracle import head, values_of, written

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure


def packet(symbols, width: int, columns: int = 1, shape: tuple[int, ...] | None = None) -> Packet:
    plane = Plane(torch.as_tensor(np.asarray(symbols, dtype=np.int64)), width, columns)
    return Packet(shape or (len(symbols),), (plane,))


@st.composite
def planes(draw):
    """Planes of every width, few symbols or many, skewed or even, in columns that differ."""
    width, columns = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 12, 16, 17, 31, 32, 64])), draw(st.integers(1, 5))
    rows = draw(st.integers(0, 40) | st.integers(256, 300) | st.sampled_from([500, 1100, 2500]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steep = draw(st.sampled_from([0.03, 0.3, 0.9, None]))
    if steep is None:
        values = random.integers(0, 2**width, (rows, columns), dtype=np.uint64)
    else:
        values = random.geometric(np.minimum(0.99, steep * np.arange(1, columns + 1)), (rows, columns)) - 1
        values = np.minimum(values.astype(np.uint64), np.uint64(2**width - 1))
    symbols = torch.from_numpy(values.reshape(-1).view(np.int64))
    return Plane(symbols.to(torch.int32) if width == 32 else symbols, width, columns)


@settings(relaxed, max_examples=150)
@given(messages=st.lists(st.lists(planes(), max_size=3), min_size=1, max_size=3))
def test_the_code_and_the_counts_are_those_of_the_oracle(messages):
    """Over several messages, since a model goes on with what it counted."""
    counts, slow = {}, {}
    for found in messages:
        n = max((plane.symbols.numel() for plane in found), default=0)
        code, after = encoded(Packet((n,), tuple(found)), counts)
        read, tail = head(code, (n,), before=slow)
        assert [(plane.width, plane.symbols.numel()) for plane in found] == [(w, count) for w, _, count, _ in read]
        coder, slow, _ = written([values_of(plane) for plane in found], read, slow)
        assert tail == coder.code()
        assert {index: value.tolist() for index, value in after.items()} == slow

        back, same = decoded(Packet((n,), (), code=code), counts)
        assert [values_of(plane) for plane in back.planes] == [values_of(plane) for plane in found]
        assert {index: value.tolist() for index, value in same.items()} == slow
        counts = after


@settings(relaxed, max_examples=60)
@given(plane=planes())
def test_the_oracle_reads_what_was_coded(plane):
    """Another implementation of the page decodes the codes of this one."""
    n = plane.symbols.numel()
    code, after = encoded(Packet((n,), (plane,)), {})
    [(width, adaptive, count, columns)], tail = head(code, (n,))
    model, coder = oracle.Model(width, columns), oracle.Reader(tail)
    read = oracle.read(coder, model, count) if adaptive else oracle.read_plain(coder, count, width)
    coder.end(count, model.bits if adaptive else count * width)
    assert read == values_of(plane)
    assert not adaptive or model.counts == after[0].tolist()


@settings(relaxed, max_examples=300)
@given(
    plane=st.tuples(st.sampled_from([1, 3, 8, 12, 16]), st.integers(0, 70), st.sampled_from([1, 2]), st.booleans()),
    tail=st.binary(max_size=96) | st.lists(st.sampled_from([0, 1, 128, 255]), max_size=96).map(bytes),
)
def test_any_bytes_are_read_or_refused_as_the_page_says(plane, tail):
    """The oracle stops where no symbol is, or bytes are left over; and nowhere else."""
    width, count, columns, adaptive = plane
    columns = columns if width < 8 and count == 64 else 1
    first = [0xC0 | 0x20 | width - 1, columns, count] if adaptive else [0x40 | width, count]
    code = bytes([0x10, *first]) + tail
    coder, model = oracle.Reader(tail), oracle.Model(width, columns)
    try:
        read = oracle.read(coder, model, count) if adaptive else oracle.read_plain(coder, count, width)
        coder.end(count, model.bits if adaptive else count * width)
    except oracle.Refused:
        with pytest.raises(DecodeError, match=r"no encoder|too many"):
            decoded(Packet((70,), (), code=code), {})
    else:
        back, counts = decoded(Packet((70,), (), code=code), {})
        assert back.planes[0].symbols.tolist() == read
        assert not adaptive or counts[0].tolist() == model.counts


def test_the_counts_by_hand():
    """Width 2 starts with 32 a symbol, and a symbol counts 32; a column of more than 16,384 is halved, rounded up."""
    _, counts = encoded(packet([0] * 40 + [3] * 2, 2), {})
    assert counts[0].tolist() == [[32 + 40 * 32, 32, 32, 32 + 2 * 32]]
    _, counts = encoded(packet([0] * 510 + [3], 2), {})
    assert counts[0].tolist() == [[(32 + 510 * 32) // 2, 16, 16, 32]]
    _, counts = encoded(packet([0] * 32 + [200], 8), {})  # so many symbols start with one each
    assert (counts[0][0, 0], counts[0][0, 200], counts[0][0, 7], counts[0].shape) == (1 + 32 * 32, 33, 1, (1, 256))
    _, counts = encoded(packet([0] * 40 + [2, 30, 31, 65_535], 16), {})  # wide symbols: falling, and one for escapes
    assert counts[0].shape == (1, 32)
    assert counts[0][0, [0, 1, 2, 3, 7, 8, 30, 31]].tolist() == [128 + 40 * 32, 64, 32 + 32, 16, 1, 1, 33, 1 + 2 * 32]


def test_columns_have_models_of_their_own_when_they_have_enough_rows():
    values = np.stack([np.zeros(64), np.full(64, 5)], axis=1).reshape(-1)
    code, counts = encoded(packet(values, 3, columns=2), {})
    assert head(code, (128,))[0] == [(3, True, 128, 2)]
    assert counts[0].tolist() == [[16 + 64 * 32, *[16] * 7], [*[16] * 5, 16 + 64 * 32, 16, 16]]
    together = packet(values, 3)
    apart, _ = encoded(packet(values, 3, columns=2), counts)
    assert len(apart) < len(encoded(together, encoded(together, {})[1])[0]) / 2  # one column has no alternatives


@pytest.mark.parametrize(
    ("count", "columns", "width", "models"),
    [
        *((64, 2, 3, 2), (62, 2, 3, 1), (510, 2, 8, 1), (512, 2, 8, 2), (130, 4, 3, 1)),
        *((16, 4, 16, 4), (12, 4, 16, 1), (512, 128, 16, 128), (516, 129, 16, 1), (129 * 32, 129, 16, 129)),
    ],
)
def test_a_column_of_narrow_symbols_needs_32_rows_and_as_many_as_it_has_symbols(count, columns, width, models):
    """Columns of wide ones need 4 rows, up to 128 of them. Else a plane has no more counts than symbols."""
    code, counts = encoded(packet([1] * count, width, columns), {})
    assert head(code, (count,))[0] == [(width, True, count, models)]
    assert counts[0].size <= max(count, 128 * 32)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9, 12, 16, 32, 64])
@pytest.mark.parametrize("n", [0, 1, 31, 32, 1000, 20_000])
def test_what_a_model_would_lengthen_is_coded_at_its_plain_width(width, n):
    """Law 5: the head is 2 bytes, the code ends within 8 bytes of ceil(n width / 8)."""
    values = np.random.default_rng(n).integers(0, 2**width, n, dtype=np.uint64).view(np.int64)
    code, counts = encoded(packet(values, width, shape=(n,)), {})
    [(_, adaptive, _, _)], _ = head(code, (n,))
    assert adaptive == bool(counts)
    assert len(code) <= 2 + -(-n * width // 8) + 8
    if not adaptive:
        assert len(code) >= 2 + n * width // 8 - 2  # but for zeros at its end
    assert (
        decoded(Packet((n,), (), code=code), {})[0].planes[0].symbols.tolist()
        == values.astype(np.int64 if width > 32 else np.int32).tolist()
    )


def test_noise_is_coded_plainly_and_leaves_no_counts():
    """Even 8-bit symbols: the model is behind its plain width from the start, and stays unused at both ends."""
    values = np.random.default_rng(0).integers(0, 256, 5000)
    code, counts = encoded(packet(values, 8), {})
    assert head(code, (5000,))[0] == [(8, False, 5000, 1)]
    assert counts == {} == decoded(Packet((5000,), (), code=code), {})[1]


@pytest.mark.parametrize("zeros", [1.0, 0.999, 0.97])
def test_law_5_for_symbols_that_are_nearly_all_zero(zeros):
    """At a hundredth of a bit a symbol the coder's own precision counts, and is still within the law."""
    random = np.random.default_rng(4)
    values = np.where(random.random(200_000) < zeros, 0, random.integers(1, 4, 200_000))
    code, _ = encoded(packet(values, 16), {})
    read, tail = head(code, (values.size,))
    _, _, bits = written([values.tolist()], read, {})
    assert len(tail) <= (1.03 if bits / 8 >= 2048 else 1.05) * bits / 8 + 8
