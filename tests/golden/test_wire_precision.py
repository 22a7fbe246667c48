"""A decoder written from docs/wire-format.md alone gives the same bits as the code, for ranges of all sorts."""

import hashlib
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.compress import Context, Lattice, Scalar
from cvfl.wire import encode_packet


def dither(context: Context, n: int) -> np.ndarray:
    parts = [("int", context.seed), ("str", "dither"), ("str", context.part), ("int", context.t0), ("int", context.m)]
    address = "".join(f"{kind}:{len(str(value))}:{value};" for kind, value in parts).encode("utf-8")
    key = hashlib.blake2b(address, digest_size=16, person=b"cvfl.stream").digest()
    words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(n // 4 + 1)
    return words.astype("<u8").view("<i2")[:n]


def read(data: bytes, count: int, fixed: tuple[float, float] | None):
    """Header and symbols of a quantizer's packet of `count` components: (dtype, low, high, bits, symbols)."""
    dtype, letter = ((np.float32, "f"), (np.float64, "d"))[data[0] & 1]
    scalars, planes, width = data[0] >> 2 & 3, data[0] >> 4, data[1]
    assert (planes, width < 64) == (1, True)
    ends = struct.unpack_from(f"<{scalars}{letter}", data, 2)
    number = int.from_bytes(data[2 + struct.calcsize(f"<{scalars}{letter}") :], "little")
    symbols = np.array([number >> (i * width) & (2**width - 1) for i in range(count)], dtype=np.int64)
    low, high = ends if fixed is None else (float(dtype(end)) for end in fixed)
    return dtype, low, high, width, symbols


def working(dtype, b: int, low: float, high: float):
    near = 1e-30 < high - low < 1e37 and max(-low, high) <= 4 * (high - low)
    return np.float32 if dtype == np.float32 and b <= 8 and near else np.float64


def decoded_scalar(data: bytes, shape: tuple[int, ...], context: Context, fixed=None) -> np.ndarray:
    dtype, low, high, b, q = read(data, math.prod(shape), fixed)
    W = working(dtype, b, low, high)
    delta = (high - low) / (2.0**b - 1)
    v = dither(context, len(q)).astype(W) * W(2.0**-16)
    return ((q.astype(W) - v) * W(delta) + W(low)).astype(dtype).reshape(shape)


def decoded_lattice(data: bytes, shape: tuple[int, ...], context: Context, fixed=None) -> np.ndarray:
    dtype, low, high, b, symbols = read(data, math.prod(shape), fixed)
    W, n = working(dtype, b, low, high), len(symbols)
    s = 2 / (math.sqrt(3) * 2.0**b) * (high - low)
    middle = low + (high - low) / 2
    left, bottom = middle - (2**b - 0.5) / 2 * s, middle - (2**b - 1) / 4 * s * math.sqrt(3)
    columns, rows = symbols[: (n + 1) // 2], symbols[(n + 1) // 2 :]
    d = dither(context, n).astype(W)
    odd = np.zeros(len(columns), dtype=W)
    odd[: len(rows)] = rows % 2
    h = np.empty(n, dtype=dtype)
    h[0::2] = (columns.astype(W) + odd / W(2) - d[: len(columns)] * W(2.0**-16)) * W(s) + W(left)
    h[1::2] = (rows.astype(W) / W(2) - d[len(columns) :] * W(2.0**-17)) * W(s * math.sqrt(3)) + W(bottom)
    return h.reshape(shape)


@pytest.mark.parametrize(("make", "decoder"), [(Scalar, decoded_scalar), (Lattice, decoded_lattice)])
@settings(deadline=None)
@given(
    b=st.integers(1, 16),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    shape=st.sampled_from([(), (0,), (1,), (4, 5), (3, 3), (2, 3, 5)]),
    scale=st.sampled_from([1e-45, 1e-30, 1e-3, 1.0, 1e10, 1e33]),
    offset=st.sampled_from([0.0, 0.5, -3.5, 4.5, 1e4]),
    fixed=st.booleans(),
    t0=st.integers(0, 2**32 - 1),
)
def test_the_page_decodes_to_the_same_bits(make, decoder, b, dtype, shape, scale, offset, fixed, t0):
    context = Context(seed=t0 % 7, t0=t0, m=3, part="Größe")
    random = torch.Generator().manual_seed(t0 % 1000)
    h = ((torch.rand(shape, generator=random, dtype=torch.float64) - 0.5 + offset) * scale).to(dtype)
    ends = ((offset - 0.6) * scale, (offset + 0.6) * scale) if fixed and scale > 1e-40 else None
    compressor = make(b, *ends) if ends else make(b)
    packet = compressor.compress(h, context)
    ours = compressor.decompress(packet, context).numpy()
    theirs = decoder(encode_packet(packet), shape, context, ends)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()
