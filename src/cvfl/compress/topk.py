"""Top-k sparsification: send k = P b / 32 components of each embedding as they are, and zero the others.

Components are ranked by the embedding gradient of the previous iteration, since this round's is not known
before all parties have sent theirs. The rows of two rounds are different people, so what carries over is the
mean magnitude of each column:

- by column (as the paper's authors): the k columns with the largest mean gradient, for the whole batch;
- by entry: the entries with the largest |h_ij| times mean gradient of column j, the first-order share
  of an entry in the loss.

Before there is a gradient, magnitude alone decides. Indices below n cost what they cost, the cheapest of three codes:

- bitmap: n bits, one for each possible index;
- raw: ceil(log2 n) bits an index;
- delta: Elias-Fano: the low bits of each index as they are, and the gaps between the high parts in unary;
  within half a bit an index of the least that any code needs for random places.

The code is known from the planes themselves: two planes are delta, one plane of n bits is a bitmap.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cvfl import theory
from cvfl.compress.base import (
    LARGEST,
    Compressor,
    Context,
    checked_bits,
    extremes,
    flat,
    float_type,
    no_scalars,
    rows_of,
    width_of,
)
from cvfl.compress.identity import FLOAT_BITS
from cvfl.errors import CompressError, ConfigError, DecodeError, suggest
from cvfl.wire.packet import Packet, Plane, plain_head


class TopK(Compressor):
    """Keep k = P bits / 32 components of each row, by `column` for the whole batch or by `entry`."""

    def __init__(self, bits: int, by: str = "column") -> None:
        if by not in ("column", "entry"):
            raise ConfigError(f"topk ranks by 'column' or 'entry', not {by!r}{suggest(by, ['column', 'entry'])}")
        self.bits = checked_bits(bits)
        self.by = by
        self.factor = 1.0
        self.score: Tensor | None = None

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Send the indices of what is kept, and its values as plain floats."""
        x = flat(h)
        extremes(x, LARGEST[x.dtype])
        rows = rows_of(x, h.shape)
        kept = self._choose(rows)
        values = (rows[:, kept] if self.by == "column" else x[kept]).reshape(-1).contiguous()
        width, integers = FLOAT_BITS[x.dtype]
        indices = encode_indices(kept, rows.shape[1] if self.by == "column" else x.numel(), x.numel())
        return Packet(tuple(h.shape), (*indices, Plane(values.view(integers), width)), dtype=x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Put the values in their places and zeros elsewhere."""
        no_scalars(packet)
        n, width = math.prod(packet.shape), width_of(packet.shape)
        if not packet.planes or packet.planes[-1].width != FLOAT_BITS[packet.dtype][0]:
            raise DecodeError("a top-k packet ends with a plane of float values")
        values = packet.planes[-1].symbols.view(packet.dtype)
        columns = self.by == "column"
        places = width if columns else n
        kept = decode_indices(packet.planes[:-1], places)
        # Both ends know k. A shape that claims more places than k allows is refused before its zeros are allocated.
        if kept.numel() != self._count(places):
            raise DecodeError(f"{kept.numel()} indices instead of {self._count(places)} for shape {packet.shape}")
        rows = n // width if width else 0
        if values.numel() != kept.numel() * (rows if columns else 1):
            raise DecodeError(f"{kept.numel()} indices do not go with {values.numel()} values, shape {packet.shape}")
        h = torch.zeros(n, dtype=packet.dtype, device=values.device)
        if columns:
            h.reshape(rows, width)[:, kept] = values.reshape(rows, kept.numel())
        else:
            h[kept] = values
        return h.reshape(packet.shape)

    def bound(self, h: Tensor, context: Context) -> theory.ErrorBound:
        """Every component that is not sent costs at most the peak's square."""
        least, greatest = extremes(flat(h), LARGEST[float_type(h)])
        dropped = h.numel() - self._count(h.numel())
        if self.by == "column" and h.numel():
            width = width_of(h.shape)
            dropped = h.numel() // width * (width - self._count(width))
        return theory.topk_error(dropped, max(-least, greatest))

    def nominal_bits(self, t0: int) -> float:
        """b, and more as a schedule has more of the components kept."""
        return 32 - self.factor * (32 - self.bits)

    def refined(self, factor: float) -> TopK:
        """Keep more components; what was learned is shared."""
        finer = copy.copy(self)
        finer.factor = self.factor * factor
        return finer

    def observe(self, gradient: Tensor, loss: float = 1.0, sent: Tensor | None = None) -> None:
        """Remember the mean gradient magnitude of each column."""
        if gradient.numel():
            self.score = rows_of(gradient.detach(), gradient.shape).abs().mean(0)

    def state_dict(self) -> dict[str, Tensor]:
        """The column scores, once there are any."""
        return {} if self.score is None else {"score": self.score}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the column scores."""
        self.score = state.get("score")

    def _count(self, components: int) -> int:
        kept = theory.topk_count(components, self.bits)
        return theory.kept_for_factor(components, kept, self.factor) if components else 0

    def _choose(self, rows: Tensor) -> Tensor:
        """Ascending indices of the columns or entries to keep; ties go to the lower index on every device."""
        if self.score is not None and self.score.numel() != rows.shape[1]:
            raise ConfigError(f"topk learned from {self.score.numel()} columns and now gets {rows.shape[1]}")
        score = None if self.score is None else self.score.to(rows.device)
        if score is not None and not bool(score.isfinite().all()):
            raise CompressError("cannot be ranked: the last gradient in it held a NaN or an infinite value")
        if self.by == "column":
            rank = score if score is not None else rows.abs().sum(0)
        else:
            rank = (rows.abs() if score is None else rows.abs().mul_(score)).reshape(-1)
        return _largest(rank, self._count(rank.numel()))


def _largest(rank: Tensor, k: int) -> Tensor:
    """Ascending indices of the k largest; of equals the lower indices, on every device.

    Selected on the host: torch.topk needs five times the memory and leaves the order of ties to the device.
    """
    values = rank.cpu().numpy()
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=rank.device)
    least = np.partition(values, values.size - k)[values.size - k]
    kept = np.flatnonzero(values >= least)
    if kept.size > k:
        above, ties = kept[values[kept] > least], kept[values[kept] == least]
        kept = np.sort(np.concatenate([above, ties[: k - above.size]]))
    return torch.from_numpy(kept).to(rank.device)


def encode_indices(indices: Tensor, n: int, components: int) -> tuple[Plane, ...]:
    """Planes for ascending, distinct indices below n, in a packet of a tensor of so many components."""
    k = indices.numel()
    width, low = _raw_width(n), _low_width(n, k)
    gaps = k + (n >> low) + 1
    sizes = {
        "bitmap": _bytes(n) + len(plain_head(1, n, components)),
        "raw": _bytes(k * width) + len(plain_head(width, k, components)),
        "delta": _bytes(k * low) + _bytes(gaps) + len(plain_head(low, k, components) + plain_head(1, gaps, components)),
    }
    match min(sizes, key=lambda code: sizes[code]):
        case "delta" if low:
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
