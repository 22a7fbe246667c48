"""What the scalar and the lattice quantizer share: bits, a range, working precision, and the bound's allowance."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cvfl import theory
from cvfl.compress.base import LARGEST, MAX_BITS, Compressor, Context, checked_bits, extremes, flat, no_scalars
from cvfl.compress.identity import Identity
from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.theory import ErrorBound
from cvfl.theory.bounds import ROUNDING
from cvfl.wire.packet import Packet

CHUNK = 1 << 16
"""Bytes of floats worked on at a time: few enough to stay in a core's cache and to bound memory."""
SMALLEST_CELL = 2.0**-900
"""Cells below this are taken as zero: their square is, and their reciprocal is not a float."""


class Quantizer(Compressor):
    """b bits a component between low and high, which are measured in each message and sent when not given."""

    error: staticmethod[[int, int, float, float], ErrorBound]
    """Theory's bound for this quantizer: (n, bits, low, high) -> ErrorBound."""

    def __init__(self, bits: int, low: float | None = None, high: float | None = None) -> None:
        self.bits = checked_bits(bits)
        self.range = Range(low, high)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """Theory's bound for the tensor's range, and the rounding of its floats where that is coarser."""
        x = flat(h)
        low, high = self.range.of(x)
        return rounded(self.error(x.numel(), self.bits, low, high), x, low, high)

    def nominal_bits(self, t0: int) -> float:
        """b."""
        return self.bits

    def refined(self, factor: float) -> Compressor:
        """Add the bits that shrink the cell enough; beyond 16 bits nothing but the floats themselves is fine enough."""
        bits = self.bits + theory.extra_bits(factor)
        low, high = self.range.fixed or (None, None)
        return type(self)(bits, low, high) if bits <= MAX_BITS else Identity()


class Range:
    """The interval that a quantizer covers: fixed in its parameters, or measured in each message and sent."""

    def __init__(self, low: float | None, high: float | None) -> None:
        if (low is None) != (high is None):
            raise ConfigError("give both low and high, or neither to measure the range of each message")
        if low is not None and high is not None and not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"low must be below high and both finite, not low={low}, high={high}")
        if low is not None and high is not None and max(-low, high) > LARGEST[torch.float32]:
            raise ConfigError(f"low and high must be within ±{LARGEST[torch.float32]:.3g}, not low={low}, high={high}")
        self.fixed = None if low is None or high is None else (float(low), float(high))

    def of(self, x: Tensor) -> tuple[float, float]:
        """The interval for this flat tensor; refuses NaN, infinities and values outside a fixed range."""
        least, greatest = extremes(x, LARGEST[x.dtype])
        if self.fixed is None:
            return least, greatest
        low, high = interval = _as_floats(self.fixed, x.dtype)
        if x.numel() and (least < low or greatest > high):
            raise CompressError(
                f"spans [{least:.6g}, {greatest:.6g}], outside the compressor's [{low:g}, {high:g}]; "
                "widen low and high, or leave them out to measure the range of each message"
            )
        return interval

    def scalars(self, interval: tuple[float, float]) -> tuple[float, ...]:
        """What travels: nothing for a fixed range, the two ends of a measured one."""
        return () if self.fixed else interval

    def read(self, packet: Packet) -> tuple[float, float]:
        """The interval that the sender used."""
        if self.fixed:
            no_scalars(packet)
            return _as_floats(self.fixed, packet.dtype)
        largest = LARGEST[packet.dtype]
        match packet.scalars:
            case (low, high) if -largest <= low <= high <= largest:
                return low, high
        raise DecodeError(f"a measured range is two ordered scalars within ±{largest:.3g}, got {packet.scalars}")


def _as_floats(interval: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """The ends as components have them: -0.1 as a float32 is below -0.1, and must still be inside."""
    low, high = torch.tensor(interval, dtype=torch.float64).to(dtype).tolist()
    return low, high


def working_type(dtype: torch.dtype, bits: int, low: float, high: float) -> torch.dtype:
    """float32 is exact enough for 2^8 levels of a range near zero whose cells it can hold; float64 for the rest."""
    width = high - low
    enough = bits <= 8 and 1e-30 < width < 1e37 and max(-low, high) <= 4 * width
    return torch.float32 if dtype == torch.float32 and enough else torch.float64


def rounded(bound: ErrorBound, x: Tensor, low: float, high: float) -> ErrorBound:
    """A quantizer's bound for real arithmetic, widened where the floats of x are too coarse for it.

    Rounding moves a component by at most u = 2 eps max|x|, so the error's norm grows by at most u sqrt(n). Bounds allow
    for 2^-10 of themselves already; more is needed for ranges far from zero, such as 1000 ± 0.001, and many bits.
    """
    if low == high:
        return bound  # a constant is exact
    # The floor keeps the allowance's own square from underflowing.
    floor = torch.finfo(x.dtype).smallest_normal if x.dtype == torch.float32 else 2.0**-460
    u = 2 * torch.finfo(x.dtype).eps * max(-low, high, floor)

    def widened(error: float) -> float:
        return max(error, (math.sqrt(error / (1 + ROUNDING)) + u * math.sqrt(x.numel())) ** 2)

    return ErrorBound(widened(bound.expected), widened(bound.worst))


def in_cells(dither: Tensor, like: Tensor) -> Tensor:
    """The dither as a share of a cell, or of a lattice's spacing: uniform over [-1/2, 1/2) in steps of 2^-16."""
    return dither.to(like).mul_(2.0**-16)


def symbol_type(bits: int) -> torch.dtype:
    """The smallest integer type that torch computes with and that holds b-bit symbols."""
    return torch.uint8 if bits <= 8 else torch.uint16


def chunks(n: int, work: torch.dtype) -> Iterator[slice]:
    """Slices that cover 0..n, each of CHUNK bytes of the working type."""
    size = CHUNK // work.itemsize
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
