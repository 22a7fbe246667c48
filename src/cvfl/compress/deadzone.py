"""Quantizers for low rates: most symbols are zero, which an entropy coder makes nearly free.

    q = sign(h) floor(|h| / cell + 1/2 - DEAD)        ĥ = q cell

A cell is one of 4, 5, 6, 7 times a power of two, so that 12 bits tell it and sums of multiples of cells are exact in
float64: every receiver decodes the same bits. There is no dither: what is small must go to zero, not at times.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cvfl.compress.base import LARGEST, Compressor, Context, extremes, flat, no_scalars, width_of
from cvfl.compress.identity import Identity
from cvfl.errors import ConfigError, DecodeError
from cvfl.theory import ErrorBound, deadzone_error
from cvfl.wire.packet import Packet, Plane

DEAD = 0.15
"""How much further than half a cell a component must be from zero, or from the last level, to leave it."""
WIDTH = 16
"""Bits of a symbol as it would be packed plainly."""
CELL_WIDTH = 12
PEAK = (1 << (WIDTH - 1)) - 2
"""Most cells that a component may be from zero."""
_SMALLEST = 2.0**-100
"""Cells below this could not be told apart from the gaps between floats."""
_OFFSET = 128


class DeadZone(Compressor):
    """Round to multiples of `step` times the root mean square of the tensor, with a wider cell at zero.

    Behind error feedback it is the mean square of the whole tensor, not of the difference that is sent.
    """

    def __init__(self, step: float = 0.5) -> None:
        if not 2.0**-20 <= step <= 64:
            raise ConfigError(f"step must be from 2^-20 to 64 of the tensor's root mean square, not {step}")
        self.step = float(step)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """The cell, and one symbol a component."""
        x = flat(h).double()
        code = self._code(x, h, context)
        symbols = zigzag(quantized(x, cell(code)))
        planes = cell_plane([code]), Plane(symbols, WIDTH, max(1, width_of(h.shape)))
        return Packet(tuple(h.shape), planes, dtype=flat(h).dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Multiples of the cell."""
        no_scalars(packet)
        expected = [(CELL_WIDTH, 1), (WIDTH, math.prod(packet.shape))]
        if [(plane.width, plane.symbols.numel()) for plane in packet.planes] != expected:
            raise DecodeError(f"expected a cell and {math.prod(packet.shape)} symbols of {WIDTH} bits")
        code, plane = packet.planes
        value = unzigzag(plane.symbols).double() * cell(int(code.symbols))
        return finite(value.to(packet.dtype)).reshape(packet.shape)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """A component moves by at most (1/2 + DEAD) cells, and never by more than itself."""
        x = flat(h).double()
        return deadzone_error(x.numel(), cell(self._code(x, h, context)), DEAD, float(x.square().sum()))

    def nominal_bits(self, t0: int) -> float:
        """Of a plain packing; an entropy coder is what this quantizer is for."""
        return WIDTH

    def refined(self, factor: float) -> Compressor:
        """Smaller cells, and the floats themselves when a component of 8 times the rms might be beyond PEAK of them."""
        if factor == 1:
            return self
        all_zero = 1 / (0.5 + DEAD)  # from this step on the bound is that of sending nothing
        step = min(self.step, all_zero) * math.sqrt(factor) / 1.25  # cells are a quarter apart
        return DeadZone(step) if step * PEAK >= 8 else Identity()

    def _code(self, x: Tensor, h: Tensor, context: Context) -> int:
        least, greatest = extremes(x, LARGEST[flat(h).dtype])
        spread = rms(x if context.whole is None else context.whole)
        return cell_code(max(self.step * spread, max(-least, greatest) / PEAK))


def rms(x: Tensor) -> float:
    """Root mean square."""
    return math.sqrt(float(x.double().square().sum()) / max(1, x.numel()))


def quantized(x: Tensor, size: float | Tensor) -> Tensor:
    """Whole cells in each component, as integers."""
    y = x / size
    return (y.abs() + (0.5 - DEAD)).floor_().copysign_(y).to(torch.int32)


def cell(code: int) -> float:
    """The cell of a code: (4 to 7) 2^e."""
    return math.ldexp(4 + code % 4, code // 4 - _OFFSET)


def cell_code(size: float) -> int:
    """The code of the smallest cell that is not below this size."""
    mantissa, exponent = math.frexp(max(size, _SMALLEST))  # mantissa from 1/2 to 1
    return 4 * (exponent - 3 + _OFFSET) + math.ceil(mantissa * 8) - 4


def cell_plane(codes: list[int]) -> Plane:
    """Cells as they travel."""
    return Plane(torch.tensor(codes, dtype=torch.int32), CELL_WIDTH)


def finite(h: Tensor) -> Tensor:
    """The tensor, unless a symbol and a cell that cannot belong together made it infinite."""
    if h.numel() and not bool(h.isfinite().all()):
        raise DecodeError("symbols beyond what floats can hold")
    return h


def zigzag(q: Tensor) -> Tensor:
    """0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ..."""
    return (q << 1) ^ (q >> 31)


def unzigzag(symbols: Tensor) -> Tensor:
    """The integers that `zigzag` made symbols of."""
    s = symbols.to(torch.int32)
    return (s >> 1) ^ -(s & 1)
