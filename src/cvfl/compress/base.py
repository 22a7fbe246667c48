"""What a compressor is: tensor -> packet of symbols -> tensor, and a bound for the difference.

    h ──compress──▶ Packet(shape, scalars, planes) ──wire──▶ bytes ──wire──▶ Packet ──decompress──▶ ĥ
                     │                  └ integers of a stated width in bits
                     └ a few floats, such as the measured range

A packet holds integers and their width, never bytes; `cvfl.wire` packs them. Both ends know the
`Context` of a message without sending it, so the dither never travels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.rng import DITHER, stream
from cvfl.theory import ErrorBound
from cvfl.theory.bounds import ROUNDING

MAX_BITS = 16
CHUNK = 1 << 16
"""Components worked on at a time: few enough to stay in a core's cache and to bound memory."""
LARGEST = {torch.float32: 2.0**126, torch.float64: 2.0**480}
"""Largest component of a lossy compressor: beyond it a dithered value or a squared error could overflow."""
SMALLEST_CELL = 2.0**-900
"""Cells below this are taken as zero: their square is, and their reciprocal is not a float."""


@dataclass(frozen=True)
class Context:
    """Which message this is: known to sender and receivers, so it addresses their common randomness."""

    seed: int = 0
    t0: int = 0
    m: int = 0
    part: str = "embedding"
    _drawn: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def dither(self, n: int) -> Tensor:
        """n random 16-bit integers that belong to this message; drawn once, not to be changed."""
        if n not in self._drawn:
            self._drawn[n] = torch.from_numpy(stream(self.seed, DITHER, self.part, self.t0, self.m).int16(n))
        return self._drawn[n]


@dataclass(frozen=True)
class Plane:
    """Integers below 2^width, to be packed at `width` bits each (32 and 64: the bit patterns of floats)."""

    symbols: Tensor
    width: int


@dataclass(frozen=True)
class Packet:
    """A compressed tensor: its shape, a few floats, and planes of symbols."""

    shape: tuple[int, ...]
    planes: tuple[Plane, ...]
    scalars: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32


class Compressor(ABC):
    """C_m: compress a tensor to a packet and back.

    Subclasses say in `bound` what error they promise for a tensor. Those that learn from training (top-k)
    override `observe` and keep what they learn in `state`.
    """

    @abstractmethod
    def compress(self, h: Tensor, context: Context) -> Packet:
        """Turn a tensor into symbols."""

    @abstractmethod
    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Turn symbols into the tensor that every receiver uses."""

    @abstractmethod
    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """Bound ||C(h) - h||^2 for this tensor."""

    def nominal_bits(self, t0: int) -> float:
        """Bits a component in round t0 as the paper's formulas count them; what really travels is measured."""
        return 32

    def refined(self, factor: float) -> Compressor:
        """Return a compressor whose error bound is at most `factor` times this one's, 0 < factor <= 1.

        The rounding of the floats themselves (see `rounded`) cannot be refined away, except by sending them exactly.
        """
        raise ConfigError(f"{type(self).__name__.lower()} cannot follow a schedule: it has no finer setting")

    def observe(self, gradient: Tensor) -> None:
        """Learn from the gradient of the loss in the tensor last compressed; most compressors need not."""
        return

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that must survive a restart."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        if state:
            raise ConfigError(f"{type(self).__name__} keeps no state but was given {sorted(state)}")


def checked_bits(bits: int) -> int:
    """Return bits if it is an integer from 1 to 16."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ConfigError(f"bits must be a whole number from 1 to {MAX_BITS}, not {bits!r}")
    return bits


def float_type(h: Tensor) -> torch.dtype:
    """The dtype that a packet of h records: float64 keeps its precision, everything else is float32."""
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def flat(h: Tensor) -> Tensor:
    """The tensor as one contiguous row of its packet's dtype, without its graph."""
    return h.detach().to(float_type(h)).reshape(-1)


def only_plane(packet: Packet, width: int, count: int) -> Tensor:
    """The symbols of a packet that must have exactly one plane of this width and count."""
    match packet.planes:
        case (plane,) if plane.width == width and plane.symbols.numel() == count:
            return plane.symbols
    got = [(plane.width, plane.symbols.numel()) for plane in packet.planes]
    raise DecodeError(f"expected {count} symbols of {width} bits for shape {packet.shape}, got {got}")


def no_scalars(packet: Packet) -> None:
    """Refuse scalars in a packet that has no use for them."""
    if packet.scalars:
        raise DecodeError(f"expected no scalars, got {len(packet.scalars)}")


def extremes(x: Tensor, largest: float = math.inf) -> tuple[float, float]:
    """Least and greatest component; refuses NaN and infinity, which both carry through, and what is too large."""
    if x.numel() == 0:
        return 0.0, 0.0
    least, greatest = (float(value) for value in torch.aminmax(x))
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise CompressError("holds a NaN or an infinite value")
    if max(-least, greatest) > largest:
        raise CompressError(f"spans [{least:.6g}, {greatest:.6g}], beyond the ±{largest:.3g} that can be compressed")
    return least, greatest


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


def symbol_type(bits: int) -> torch.dtype:
    """The smallest integer type that torch computes with and that holds b-bit symbols."""
    return torch.uint8 if bits <= 8 else torch.int32


def chunks(n: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover 0..n."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


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
