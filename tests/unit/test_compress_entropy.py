"""Entropy coding: the words are those of the page's slow description, near the ideal length, and never much longer.

`oracle` codes one symbol at a time with whole numbers; nothing of it is shared with what is tested.
"""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from cvfl.compress import Compressor, Context, DeadZone, Entropy, Packet, Plane, Scalar, TopK, build
from cvfl.compress.base import flat, only_plane
from cvfl.compress.rangecode import decoded, encoded
from cvfl.errors import ConfigError, DecodeError
from cvfl.theory import EXACT
from cvfl.wire import decode_packet, encode_packet

relaxed = settings(deadline=None)  # a busy machine is no failure
CONTEXT = Context(seed=1, t0=2, m=3)


def packet(symbols, width: int, columns: int = 1, shape: tuple[int, ...] | None = None) -> Packet:
    plane = Plane(torch.as_tensor(np.asarray(symbols, dtype=np.int64)), width, columns)
    return Packet(shape or (len(symbols),), (plane,))


def head(code: bytes, n: int, scalar_size: int = 4) -> tuple[list[tuple[int, bool, int, int]], list[int]]:
    """The head of a code, read as the page says: (width, adaptive, count, columns) of each plane; and the words."""

    def number() -> int:
        nonlocal at
        value = place = 0
        while True:
            value |= (code[at] & 127) << place
            at, place = at + 1, place + 7
            if code[at - 1] < 128:
                return value

    at, planes = 1, []
    for _ in range(code[0] % 16):
        width, adaptive, at = code[at] % 128, code[at] >= 128, at + 1
        count = number()
        planes.append((width, adaptive, count - 1 if count else n, number()))
    at += code[0] // 16 * scalar_size
    return planes, list(struct.unpack(f"<{(len(code) - at) // 4}I", code[at:]))


def oracle_of(symbols: list[list[int]], planes: list, counts: dict) -> tuple[oracle.Writer, dict, float]:
    """What the oracle writes for these planes, the counts after it, and the ideal length in bits."""
    coder, after, bits = oracle.Writer(), dict(counts), 0.0
    for index, (values, (width, adaptive, _, columns)) in enumerate(zip(symbols, planes, strict=True)):
        if adaptive:
            model = oracle.Model(width, columns, counts.get(index, []))
            oracle.write(coder, model, values)
            after[index], bits = model.counts, bits + model.bits
        else:
            oracle.write_plain(coder, values, width)
            bits += width * len(values)
    return coder, after, bits


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


def values_of(plane: Plane) -> list[int]:
    return [value % 2**plane.width for value in plane.symbols.tolist()]


@settings(relaxed, max_examples=150)
@given(messages=st.lists(st.lists(planes(), max_size=3), min_size=1, max_size=3))
def test_the_words_and_the_counts_are_those_of_the_oracle(messages):
    """Over several messages, since a model goes on with what it counted."""
    counts, slow = {}, {}
    for found in messages:
        n = max((plane.symbols.numel() for plane in found), default=0)
        code, after = encoded(Packet((n,), tuple(found)), counts)
        read, words = head(code, n)
        assert [(plane.width, plane.symbols.numel()) for plane in found] == [(w, count) for w, _, count, _ in read]
        coder, slow, _ = oracle_of([values_of(plane) for plane in found], read, slow)
        assert words == coder.words()
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
    [(width, adaptive, count, columns)], words = head(code, n)
    model, coder = oracle.Model(width, columns), oracle.Reader(words)
    read = oracle.read(coder, model, count) if adaptive else oracle.read_plain(coder, count, width)
    assert read == values_of(plane)
    assert not adaptive or model.counts == after[0].tolist()


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
    assert head(code, 128)[0] == [(3, True, 128, 2)]
    assert counts[0].tolist() == [[16 + 64 * 32, *[16] * 7], [*[16] * 5, 16 + 64 * 32, 16, 16]]
    together = packet(values, 3)
    apart, _ = encoded(packet(values, 3, columns=2), counts)
    assert len(apart) < len(encoded(together, encoded(together, {})[1])[0]) / 2  # one column has no alternatives


@pytest.mark.parametrize(
    ("count", "columns", "width", "models"),
    [(64, 2, 3, 2), (62, 2, 3, 1), (64, 4, 16, 1), (128, 4, 16, 4), (510, 2, 8, 1), (512, 2, 8, 2), (130, 4, 3, 1)],
)
def test_a_column_needs_32_rows_and_as_many_as_it_has_symbols(count, columns, width, models):
    """So the models of a plane never have more counts than it has symbols; columns must divide them."""
    code, counts = encoded(packet([1] * count, width, columns), {})
    assert head(code, count)[0] == [(width, True, count, models)]
    assert counts[0].size <= max(count, 256)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9, 12, 16, 32, 64])
@pytest.mark.parametrize("n", [0, 1, 31, 32, 1000, 20_000])
def test_what_a_model_would_lengthen_is_coded_at_its_plain_width(width, n):
    """Law 5: the head is 3 bytes and two numbers, the words end within 8 bytes of ceil(n width / 8)."""
    values = np.random.default_rng(n).integers(0, 2**width, n, dtype=np.uint64).view(np.int64)
    code, counts = encoded(packet(values, width, shape=(n,)), {})
    [(_, adaptive, _, _)], _ = head(code, n)
    assert adaptive == bool(counts)
    assert len(code) <= 4 + -(-n * width // 8) + 8
    if not adaptive:
        assert len(code) >= 4 + -(-n * width // 8)
    assert (
        decoded(Packet((n,), (), code=code), {})[0].planes[0].symbols.tolist()
        == values.astype(np.int64 if width > 32 else np.int32).tolist()
    )


def test_noise_is_coded_plainly_and_leaves_no_counts():
    """Even 8-bit symbols: the model is behind its plain width from the start, and stays unused at both ends."""
    values = np.random.default_rng(0).integers(0, 256, 5000)
    code, counts = encoded(packet(values, 8), {})
    assert head(code, 5000)[0] == [(8, False, 5000, 1)]
    assert counts == {} == decoded(Packet((5000,), (), code=code), {})[1]


def embeddings(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.tanh(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.7)


SPECS = ["scalar:bits=2", "scalar:bits=8", "scalar:bits=12", "lattice:bits=3", "topk:bits=2,by=entry", "topk:bits=4"]
SPECS += ["deadzone:step=1", "deadzone:step=0.25", "deadzone:step=0.01", "schedule(scalar:bits=2)", "identity"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (40, 16), (333, 7), (400, 24)])
def test_law_5_bytes_are_near_the_ideal_adaptive_code(spec, shape):
    """Within 3% from 2 KB on; within 5% and two words below. Over four rounds, with the counts of those before."""
    sender, inner, counts = Entropy(build(spec)), build(spec), {}
    for t0 in range(4):
        h, context = embeddings(*shape, seed=t0), Context(seed=1, t0=t0)
        data = encode_packet(sender.compress(h, context))
        plain = inner.compress(h, context)
        read, words = head(data[1:], h.numel())
        coder, counts, bits = oracle_of([values_of(plane) for plane in plain.planes], read, counts)
        assert words == coder.words()
        stated = len(data) - 4 * len(words)  # dtype, numbers of planes, their heads and the scalars
        assert stated <= 2 + 5 * len(read) + 4 * len(plain.scalars)
        if bits / 8 >= 2048:
            assert len(data) <= 1.03 * bits / 8
        else:
            assert len(data) <= 1.05 * bits / 8 + stated + 8
        assert 4 * len(words) >= bits / 8 * (1 - 1e-6) - 4  # no code is shorter than its model allows
        sender.settle(decode_packet(data, shape), h, context)


@pytest.mark.parametrize("zeros", [1.0, 0.999, 0.97])
def test_law_5_for_symbols_that_are_nearly_all_zero(zeros):
    """At a hundredth of a bit a symbol the coder's own precision counts, and is still within the law."""
    random = np.random.default_rng(4)
    values = np.where(random.random(200_000) < zeros, 0, random.integers(1, 4, 200_000))
    code, _ = encoded(packet(values, 16), {})
    read, words = head(code, values.size)
    _, _, bits = oracle_of([values.tolist()], read, {})
    assert 4 * len(words) <= (1.03 if bits / 8 >= 2048 else 1.05) * bits / 8 + 8


def test_coding_pays():
    """Low rates, for which it is there: a fifth of the plain 2 bits when most symbols are alike."""
    h = torch.randn(4000, 16, generator=torch.Generator().manual_seed(1)) * 0.2
    plain = encode_packet(Scalar(2, low=-4, high=4).compress(h, CONTEXT))
    coded = encode_packet(Entropy(Scalar(2, low=-4, high=4)).compress(h, CONTEXT))
    assert len(coded) < 0.6 * len(plain)
    first = Entropy(DeadZone(2))
    assert len(encode_packet(first.compress(h, CONTEXT))) * 8 < 1.0 * h.numel()


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_is_lost(spec):
    h = embeddings(50, 12)
    plain, coded, receiver = build(spec), Entropy(build(spec)), Entropy(build(spec))
    data = encode_packet(coded.compress(h, CONTEXT))
    back = receiver.decompress(decode_packet(data, (50, 12)), CONTEXT)
    assert torch.equal(back, plain.decompress(plain.compress(h, CONTEXT), CONTEXT))
    assert coded.bound(h, CONTEXT) == plain.bound(h, CONTEXT)
    assert coded.nominal_bits(3) == plain.nominal_bits(3)


def test_a_message_can_be_sent_again_until_it_is_settled():
    h, sender, receiver = embeddings(100, 8), Entropy(DeadZone(0.5)), Entropy(DeadZone(0.5))
    data = encode_packet(sender.compress(h, CONTEXT))
    other = encode_packet(sender.compress(-h, CONTEXT))
    assert other != data
    assert encode_packet(sender.compress(h, CONTEXT)) == data
    read = decode_packet(data, (100, 8))
    back = receiver.decompress(read, CONTEXT)
    for end in (sender, receiver):
        assert end.state_dict() == {}
        end.settle(read, back, CONTEXT)
    assert torch.equal(sender.state_dict()["counts.1"], receiver.state_dict()["counts.1"])
    following = encode_packet(sender.compress(h, CONTEXT))
    assert len(following) < len(data)  # now the model knows what to expect
    assert torch.equal(receiver.decompress(decode_packet(following, (100, 8)), CONTEXT), back)


def test_what_was_sent_is_settled_not_what_was_compressed_last():
    h, sender, receiver = embeddings(100, 8), Entropy(DeadZone(0.5)), Entropy(DeadZone(0.5))
    read = decode_packet(encode_packet(sender.compress(h, CONTEXT)), (100, 8))
    sender.compress(3 * h.flip(0), CONTEXT)
    sender.settle(read, h, CONTEXT)
    receiver.settle(read, h, CONTEXT)
    assert torch.equal(sender.state_dict()["counts.1"], receiver.state_dict()["counts.1"])


def test_another_shape_starts_its_models_anew():
    sender, receiver = Entropy(DeadZone(0.5)), Entropy(DeadZone(0.5))
    for rows in (100, 10, 100):
        h = embeddings(rows, 8)
        read = decode_packet(encode_packet(sender.compress(h, CONTEXT)), (rows, 8))
        back = receiver.decompress(read, CONTEXT)
        assert torch.equal(back, DeadZone(0.5).decompress(DeadZone(0.5).compress(h, CONTEXT), CONTEXT))
        for end in (sender, receiver):
            end.settle(read, back, CONTEXT)
        assert sender.counts[1].shape == receiver.counts[1].shape == ((8, 32) if rows == 100 else (1, 32))


def test_gradients_reach_the_compressor_inside():
    coded = Entropy(TopK(8))
    coded.observe(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    assert coded.state_dict().keys() == {"inner.score"}
    packet = coded.compress(torch.ones(1, 4), CONTEXT)
    assert coded.decompress(packet, CONTEXT).tolist() == [[0, 0, 0, 1]]


class Tenths(Compressor):
    """Sends a scalar that no float32 is."""

    def compress(self, h, context):
        return Packet(tuple(h.shape), (Plane(torch.ones(h.numel(), dtype=torch.uint8), 1),), (0.1,), flat(h).dtype)

    def decompress(self, packet, context):
        ones = only_plane(packet, 1, math.prod(packet.shape))
        return (ones.double() * packet.scalars[0]).reshape(packet.shape)

    def bound(self, h, context):
        return EXACT


def test_a_sender_decodes_what_its_receivers_do():
    sender, receiver = Entropy(Tenths()), Entropy(Tenths())
    packet = sender.compress(torch.zeros(3), CONTEXT)
    back = receiver.decompress(decode_packet(encode_packet(packet), (3,)), CONTEXT)
    assert torch.equal(sender.decompress(packet, CONTEXT), back)
    assert back[0] != 0.1


def test_what_does_not_compose():
    for spec in ("entropy(entropy(scalar:bits=2))", "entropy(feedback(entropy(scalar:bits=2)))"):
        with pytest.raises(ConfigError, match="entropy of entropy"):
            build(spec)
    with pytest.raises(ConfigError, match="entropy cannot follow a schedule"):
        build("schedule(entropy(scalar:bits=2))")


def test_a_packet_that_is_not_coded_is_refused_and_the_other_way_round():
    h = embeddings(6, 6)
    plain = decode_packet(encode_packet(Scalar(2).compress(h, CONTEXT)))
    coded = decode_packet(encode_packet(Entropy(Scalar(2)).compress(h, CONTEXT)), (6, 6))
    with pytest.raises(DecodeError, match="an empty code"):
        Entropy(Scalar(2)).decompress(plain, CONTEXT)
    for spec in ("scalar:bits=2", "scalar:bits=2,low=-1,high=1", "topk:bits=2", "identity", "deadzone", "shaped"):
        with pytest.raises(DecodeError):
            build(spec).decompress(coded, CONTEXT)
