"""Uniform scalar quantizer with subtractive dither.

    y = (h - low) / Delta        Delta = (high - low) / (2^b - 1)
    q = floor(y + v + 1/2)       v uniform over [-1/2, 1/2), known to both ends
    ĥ = low + Delta (q - v)

q never leaves 0..2^b - 1, so nothing is clipped: the error is uniform over a cell, has mean zero and
does not depend on h.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl import theory
from cvfl.compress.base import Context, few, flat, only_plane
from cvfl.compress.quantizer import SMALLEST_CELL, Quantizer, chunks, in_cells, symbol_type, working_type
from cvfl.wire.packet import Packet, Plane


class Scalar(Quantizer):
    """Quantize each component to 2^bits levels between low and high (measured and sent when not given)."""

    error = staticmethod(theory.scalar_error)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Add the dither and round to a level."""
        x = flat(h)
        low, high = interval = self.range.of(x)
        delta = theory.scalar_step(self.bits, low, high)
        work = working_type(x.dtype, self.bits, low, high)
        per_delta, most = 1 / delta if delta > SMALLEST_CELL else 0.0, 2**self.bits - 1
        if few(x):
            q = x.numpy().astype(_FLOATS[work])
            q -= low
            q *= per_delta
            q += _in_cells(context, q)
            q += 0.5
            q = np.minimum(q, most, out=q).astype(np.uint8 if self.bits <= 8 else np.uint16)
            plane = Plane(torch.from_numpy(q), self.bits)
            return Packet(tuple(h.shape), (plane,), self.range.scalars(interval), x.dtype)
        symbols = torch.empty(x.numel(), dtype=symbol_type(self.bits), device=x.device)
        dither = context.dither(x.numel())
        for part in chunks(x.numel(), work):
            y = x[part].to(work) - low
            y *= per_delta
            y += in_cells(dither[part], y)
            # The cast is the floor, as y >= 0; rounding of y may reach 2^b, hence the clamp.
            symbols[part] = y.add_(0.5).clamp_(max=most)
        return Packet(tuple(h.shape), (Plane(symbols, self.bits),), self.range.scalars(interval), x.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Subtract the same dither from the symbols and scale them back."""
        low, high = self.range.read(packet)
        delta = theory.scalar_step(self.bits, low, high)
        work = working_type(packet.dtype, self.bits, low, high)
        symbols = only_plane(packet, self.bits, math.prod(packet.shape))
        if few(symbols):
            q = symbols.numpy().astype(_FLOATS[work])
            q -= _in_cells(context, q)
            q *= delta
            q += low
            return torch.from_numpy(q.astype(_FLOATS[packet.dtype], copy=False)).reshape(packet.shape)
        h = torch.empty(symbols.numel(), dtype=packet.dtype, device=symbols.device)
        dither = context.dither(h.numel())
        for part in chunks(h.numel(), work):
            y = symbols[part].to(work)
            y -= in_cells(dither[part], y)
            h[part] = y.mul_(delta).add_(low)
        return h.reshape(packet.shape)


_FLOATS: dict[torch.dtype, type[np.floating[Any]]] = {torch.float32: np.float32, torch.float64: np.float64}


def _in_cells(context: Context, like: NDArray[Any]) -> NDArray[Any]:
    """What `in_cells` gives, for few components."""
    share: NDArray[Any] = context.dither(like.size).numpy().astype(like.dtype)
    share *= 2.0**-16
    return share
