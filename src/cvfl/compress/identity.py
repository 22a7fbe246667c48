"""No compression: the float's own bits (b = 32, or 64 for float64). Law 1 is tested with it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cvfl.compress.base import Compressor, Context, extremes, flat, no_scalars, only_plane
from cvfl.theory import EXACT, ErrorBound
from cvfl.wire.packet import Packet, Plane

FLOAT_BITS = {torch.float32: (32, torch.int32), torch.float64: (64, torch.int64)}
"""Width of a float and the integers that share its bit pattern."""


class Identity(Compressor):
    """Send every bit."""

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Reinterpret the floats as integers."""
        x = flat(h)
        extremes(x)
        width, integers = FLOAT_BITS[x.dtype]
        return Packet(tuple(h.shape), (Plane(x.view(integers), width),), dtype=x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Reinterpret the integers as floats."""
        no_scalars(packet)
        width, _ = FLOAT_BITS[packet.dtype]
        return only_plane(packet, width, math.prod(packet.shape)).view(packet.dtype).reshape(packet.shape)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """Nothing is lost."""
        return EXACT

    def refined(self, factor: float) -> Identity:
        """Already exact."""
        return self
