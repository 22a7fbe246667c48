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

from cvfl.compress.base import Plane
from cvfl.errors import DecodeError

_PLANE_HEADER_BITS = 40


def encode_indices(indices: Tensor, n: int) -> tuple[Plane, ...]:
    """Planes for ascending, distinct indices below n."""
    k = indices.numel()
    width = max(1, (n - 1).bit_length())
    low = max(0, (n // max(k, 1)).bit_length() - 1)
    sizes = {"bitmap": n, "raw": k * width, "delta": k * low + k + (n >> low) + 1 + _PLANE_HEADER_BITS}
    match min(sizes, key=lambda code: sizes[code]):
        case "delta" if low:
            high = torch.zeros(k + (n >> low) + 1, dtype=torch.uint8, device=indices.device)
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
        case (low, high) if high.width == 1:
            places = high.symbols.nonzero().reshape(-1)
            if places.numel() != low.symbols.numel():
                raise DecodeError(f"{places.numel()} high parts for {low.symbols.numel()} low parts of indices")
            steps = torch.arange(places.numel(), device=places.device)
            indices = ((places - steps) << low.width) | low.symbols.to(torch.int64)
        case (bitmap,) if bitmap.width == 1 and bitmap.symbols.numel() == n:
            return bitmap.symbols.nonzero().reshape(-1)
        case (raw,) if raw.width == max(1, (n - 1).bit_length()):
            indices = raw.symbols.to(torch.int64)
        case _:
            raise DecodeError(f"planes of widths {[plane.width for plane in planes]} are not indices below {n}")
    if indices.numel() and (int(indices[-1]) >= n or not bool((indices[1:] > indices[:-1]).all())):
        raise DecodeError(f"indices are not ascending below {n}")
    return indices
