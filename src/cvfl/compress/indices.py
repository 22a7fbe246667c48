"""Ascending indices below n as planes of symbols, in the cheapest of three codes.

- bitmap: n bits, one for each possible index;
- raw: ceil(log2 n) bits an index;
- delta: Elias-Fano: the low bits of each index as they are, and the gaps between the high parts in unary;
  within half a bit an index of the least that any code needs for random places.

The code is known from the planes themselves: two planes are delta, one plane of n bits is a bitmap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cvfl.errors import DecodeError
from cvfl.wire.packet import Plane

_PLANE_HEADER = 5  # bytes of a second plane's header, which only delta has


def encode_indices(indices: Tensor, n: int) -> tuple[Plane, ...]:
    """Planes for ascending, distinct indices below n."""
    k = indices.numel()
    width, low = _raw_width(n), _low_width(n, k)
    gaps = k + (n >> low) + 1
    sizes = {
        "bitmap": _bytes(n),
        "raw": _bytes(k * width),
        "delta": _bytes(k * low) + _bytes(gaps) + _PLANE_HEADER,
    }
    match min(sizes, key=lambda code: sizes[code]):
        case "delta":  # never cheapest with low = 0, where it is a longer bitmap
            high = torch.zeros(gaps, dtype=torch.uint8, device=indices.device)
            high[(indices >> low) + torch.arange(k, device=indices.device)] = 1
            return Plane(indices & ((1 << low) - 1), low), Plane(high, 1)
        case "raw":
            return (Plane(indices, width),)
        case _:
            bitmap = torch.zeros(n, dtype=torch.uint8, device=indices.device)
            bitmap[indices] = 1
            return (Plane(bitmap, 1),)


def decode_indices(planes: tuple[Plane, ...], n: int) -> Tensor:
    """The ascending, distinct indices below n that the planes hold."""
    match planes:
        case (low, high) if _is_delta(low, high, n):
            places = high.symbols.nonzero().reshape(-1)
            if places.numel() != low.symbols.numel():
                raise DecodeError(f"{places.numel()} high parts for {low.symbols.numel()} low parts of indices")
            steps = torch.arange(places.numel(), device=places.device)
            indices = ((places - steps) << low.width) | low.symbols.to(torch.int64)
        case (bitmap,) if bitmap.width == 1 and bitmap.symbols.numel() == n:
            return bitmap.symbols.nonzero().reshape(-1)
        case (raw,) if raw.width == _raw_width(n):
            indices = raw.symbols.to(torch.int64) & ((1 << raw.width) - 1)  # 32 bits come as a signed pattern
        case _:
            raise DecodeError(f"planes of widths {[plane.width for plane in planes]} are not indices below {n}")
    if indices.numel() and (int(indices[-1]) >= n or not bool((indices[1:] > indices[:-1]).all())):
        raise DecodeError(f"indices are not ascending below {n}")
    return indices


def _is_delta(low: Plane, high: Plane, n: int) -> bool:
    k = low.symbols.numel()
    return low.width == _low_width(n, k) and high.width == 1 and high.symbols.numel() == k + (n >> low.width) + 1


def _raw_width(n: int) -> int:
    return max(1, (n - 1).bit_length())


def _low_width(n: int, k: int) -> int:
    """Low bits of an index in the delta code: floor(log2(n / k))."""
    return max(0, (n // max(k, 1)).bit_length() - 1)


def _bytes(bits: int) -> int:
    return (bits + 7) // 8
