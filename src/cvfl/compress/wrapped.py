"""All multiples of a step, read modulo 2^w: a grid without ends, for values whose noise has none.

    n = the whole number nearest to h / step
    sent: n mod 2^w        read as the number from -2^(w-1) to 2^(w-1) - 1 that it is

A sum of what was sent is read in the same way. It is right as long as the sum itself lies between these two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cvfl.compress.base import LARGEST, Compressor, Context, checked_bits, extremes, flat, no_scalars, only_plane
from cvfl.compress.quantizer import symbol_type
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet, Plane


class Wrapped(Compressor):
    """Multiples of `step`, as numbers of `bits` bits."""

    def __init__(self, step: float, bits: int) -> None:
        self.step, self.bits = step, checked_bits(bits)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Round to the nearest multiple; what was on the grid before stays where it is."""
        x = flat(h)
        extremes(x, LARGEST[x.dtype])
        n = (x.double() / self.step).round_().remainder_(2.0**self.bits)
        symbols = n.to(torch.int64).to(symbol_type(self.bits))
        return Packet(tuple(h.shape), (Plane(symbols, self.bits),), (), x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """The multiples back, about zero."""
        no_scalars(packet)
        symbols = only_plane(packet, self.bits, math.prod(packet.shape))
        return self.values(symbols, packet.dtype).reshape(packet.shape)

    def values(self, symbols: Tensor, dtype: torch.dtype) -> Tensor:
        """What symbols stand for, those of a sum among them."""
        n, half = symbols.to(torch.int64), 1 << (self.bits - 1)
        return (n - (n >= half) * 2 * half).double().mul_(self.step).to(dtype)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """Half a step a component, of values between the two ends; nothing is lost of what is on the grid."""
        worst = h.numel() * self.step**2 / 4
        return ErrorBound(worst, worst)

    def nominal_bits(self, t0: int) -> float:
        """w."""
        return self.bits
