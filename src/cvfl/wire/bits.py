"""Bit packing: n symbols of `width` bits in ceil(n * width / 8) bytes.

Symbol i takes the bits i*width .. (i+1)*width - 1 of one long little-endian number: the first symbol is in the
lowest bits of the first byte. Bits left over in the last byte are zero, and must be zero to be decoded.

    pack([1, 2, 3, 4], width=3)    1 + 2*8 + 3*64 + 4*512 = 0x08d1    -> d1 08
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cvfl.errors import DecodeError

WIDTHS = (*range(1, 33), 64)
_BLOCK = 1 << 16  # symbols widened at a time, so that packing needs little memory beyond its result

Symbols = NDArray[Any]


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` symbols take."""
    return (count * width + 7) // 8


def symbol_dtype(width: int) -> np.dtype[Any]:
    """Type of unpacked symbols: wide enough, and one that torch computes with (32 and 64 are bit patterns)."""
    return np.dtype("<u1" if width <= 8 else "<u2" if width <= 16 else "<i4" if width <= 32 else "<i8")


def pack(symbols: ArrayLike, width: int) -> bytes:
    """Pack integers from 0 to 2^width - 1 (bit patterns for 32 and 64)."""
    return bytes(payload(symbols, width))


def payload(symbols: ArrayLike, width: int) -> bytes | memoryview:
    """What `pack` gives, without a copy where the symbols are their own packed form."""
    flat = np.ascontiguousarray(symbols).reshape(-1)
    if width not in WIDTHS:
        raise ValueError(f"no symbol is {width} bits wide")
    fits = flat.dtype.kind == "u" and 8 * flat.itemsize <= width
    if width < 32 and flat.size and not fits and not (flat.min() >= 0 and flat.max() < 1 << width):
        # Unchecked, it would spill into its neighbours.
        raise ValueError(f"symbols from {flat.min()} to {flat.max()} do not fit {width} bits")
    if width in (8, 16, 32, 64):
        whole = f"<u{width // 8}"
        return (flat.view(whole) if flat.itemsize == width // 8 else flat.astype(whole)).data
    if width > 8:
        step = 8 * _BLOCK // width // 8 * 8
        return b"".join(_pack_wide(flat[at : at + step], width) for at in range(0, flat.size, step))
    return b"".join(_pack_narrow(flat[at : at + _BLOCK], width) for at in range(0, flat.size, _BLOCK))


def unpack(data: bytes | memoryview, width: int, count: int) -> Symbols:
    """Unpack `count` symbols; the data must have exactly their bytes and no stray bits."""
    if len(data) != packed_size(count, width):
        raise DecodeError(f"{count} symbols of {width} bits take {packed_size(count, width)} bytes, not {len(data)}")
    spare = -count * width % 8
    if spare and data[-1] >> (8 - spare):
        raise DecodeError("unused bits of the last byte are not zero")
    if width in (8, 16, 32, 64):
        raw = np.frombuffer(data, dtype=f"<u{width // 8}")
        return raw.astype(symbol_dtype(width), copy=True)
    out = np.empty(count, dtype=symbol_dtype(width))
    step = _BLOCK // 8 * 8
    for at in range(0, count, step):
        part = data[at * width // 8 : packed_size(min(at + step, count), width)]
        out[at : at + step] = (_unpack_narrow if width < 8 else _unpack_wide)(part, width)[: count - at]
    return out


# Narrow widths: eight symbols, one a byte, are one 64-bit lane; three halvings close the gaps between them.
#   s7 .. s1 s0 as bytes  ->  pairs of 2w bits in 16  ->  fours of 4w bits in 32  ->  eight in 8w bits


def _masks(width: int) -> list[tuple[np.uint64, np.uint64, np.uint64]]:
    steps = []
    for lane in (8, 16, 32):
        used = width * lane // 8
        low = sum(((1 << used) - 1) << at for at in range(0, 64, 2 * lane))
        steps.append((np.uint64(low), np.uint64(low << lane), np.uint64(lane - used)))
    return steps


_MASKS = {width: _masks(width) for width in range(1, 8)}


def _pack_narrow(symbols: Symbols, width: int) -> bytes:
    lanes = np.zeros(-(-symbols.size // 8) * 8, dtype=np.uint8)
    lanes[: symbols.size] = symbols
    word = lanes.view("<u8")
    for low, high, shift in _MASKS[width]:
        upper = word & high
        upper >>= shift
        word &= low
        word |= upper
    return _narrowed(word, width).tobytes()[: packed_size(symbols.size, width)]


def _narrowed(word: Symbols, width: int) -> Symbols:
    """The lowest `width` bytes of each word; a plain cast where there is an integer of that size."""
    if width in (1, 2, 4):
        return word.astype(f"<u{width}")
    return word.view(np.uint8).reshape(-1, 8)[:, :width]


def _unpack_narrow(data: bytes | memoryview, width: int) -> Symbols:
    groups = -(-len(data) // width)
    padded = np.zeros(groups * width, dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    if width in (1, 2, 4):
        word = padded.view(f"<u{width}").astype("<u8")
    else:
        lanes = np.zeros((groups, 8), dtype=np.uint8)
        lanes[:, :width] = padded.reshape(groups, width)
        word = lanes.reshape(-1).view("<u8")
    for low, high, shift in reversed(_MASKS[width]):
        upper = word << shift
        upper &= high
        word &= low
        word |= upper
    return word.view(np.uint8)


# Wide widths: symbol i of a group of eight starts at bit i*w of w bytes and touches at most five of them.


def _pack_wide(symbols: Symbols, width: int) -> bytes:
    padded = np.zeros((-(-symbols.size // 8), 8), dtype=np.uint64)
    padded.reshape(-1)[: symbols.size] = symbols
    groups = np.zeros((padded.shape[0], width), dtype=np.uint8)
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        value = padded[:, i] << np.uint64(shift)
        for j in range((shift + width + 7) // 8):
            groups[:, byte + j] |= (value >> np.uint64(8 * j)).astype(np.uint8)
    return groups.tobytes()[: packed_size(symbols.size, width)]


def _unpack_wide(data: bytes | memoryview, width: int) -> Symbols:
    count = -(-len(data) // width)
    padded = np.zeros(count * width, dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    groups = padded.reshape(count, width)
    out = np.empty((count, 8), dtype=np.uint64)
    for i in range(8):
        byte, shift = divmod(i * width, 8)
        value = np.zeros(count, dtype=np.uint64)
        for j in range((shift + width + 7) // 8):
            value |= groups[:, byte + j].astype(np.uint64) << np.uint64(8 * j)
        out[:, i] = (value >> np.uint64(shift)) & np.uint64((1 << width) - 1)
    return out.reshape(-1)
