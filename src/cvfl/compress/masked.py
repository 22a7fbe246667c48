"""The scalar quantizer on a grid that M parties have in common, its symbols behind masks that cancel in their sum.

    q_m  symbols on the grid, 0..2^b - 1, and after them a check of zeros
    sent = q_m + mask_m  mod 2^w       the masks of all M parties add up to zero mod 2^w
    sum of what was sent = q_1 + ... + q_M, which w bits hold: w is the length of M (2^b - 1) in bits

With noise that the parties share the grid has no ends, and w bits hold the sum all but surely: see `wrapped`.

Masked symbols are uniform: a single packet says nothing, and no entropy coder could shorten it. The check words add up
to zero only when all masks cancel, so a packet of another round, session or key is noticed.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.compress.base import Compressor, Context, no_scalars
from cvfl.compress.scalar import Scalar
from cvfl.compress.wrapped import Wrapped
from cvfl.errors import ConfigError, DecodeError, LocalProtocolError
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet, Plane

CHECK_BITS = 32
"""Bits of zeros that every packet ends with: a sum whose masks do not cancel passes once in 2^32 times."""
MAX_WIDTH = 16

Symbols = NDArray[np.uint16]


class Mask(Protocol):
    """Where masks come from; see `cvfl.privacy.masks`."""

    def __call__(self, part: str, t0: int, n: int) -> Symbols:
        """n uniform 16-bit numbers of this party for this message."""


def sum_width(bits: int, M: int) -> int:
    """The least width that holds the sum of M symbols of b bits: at most b + log2(M) + 1."""
    return int(M * (2**bits - 1)).bit_length()


def finest(M: int) -> int:
    """The most bits whose sums over M parties still fit."""
    return max(bits for bits in range(1, MAX_WIDTH + 1) if bits == 1 or sum_width(bits, M) <= MAX_WIDTH)


class Masked(Compressor):
    """The grid and one party's masks; without masks it can only be added up, by `total`."""

    def __init__(self, grid: Scalar | Wrapped, M: int) -> None:
        self.grid, self.M = grid, M
        self.width = grid.bits if isinstance(grid, Wrapped) else sum_width(grid.bits, M)
        if self.width > MAX_WIDTH:
            raise ConfigError(f"{M} parties and {grid.bits} bits need sums of {self.width} bits, over {MAX_WIDTH}")
        self.mask: Mask | None = None
        self._last: tuple[int, bytes] = (-1, b"")

    @property
    def checks(self) -> int:
        """How many symbols the check takes."""
        return -(-CHECK_BITS // self.width)

    @property
    def most(self) -> int:
        """The greatest symbol that a sum can have."""
        return (1 << self.width) - 1 if isinstance(self.grid, Wrapped) else self.M * ((1 << self.grid.bits) - 1)

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Quantize, and add the masks."""
        packet = self.grid.compress(h, context)
        symbols = packet.planes[0].symbols.cpu().numpy().astype(np.uint16)
        self._once(context.t0, symbols)
        hidden = np.pad(symbols, (0, self.checks)) + self._mask(context, symbols.size)
        return Packet(packet.shape, (self._plane(hidden),), dtype=packet.dtype)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """The own packet back; only the party that has the masks can."""
        n = math.prod(packet.shape)
        symbols = (self.symbols(packet) - self._mask(context, n)) & self._modulus
        own = symbols[:n].astype(np.uint8 if self.grid.bits <= 8 else np.uint16)
        return self.grid.decompress(
            Packet(packet.shape, (Plane(torch.from_numpy(own), self.grid.bits),), dtype=packet.dtype), context
        )

    def symbols(self, packet: Packet) -> Symbols:
        """The masked symbols and the check of a packet; refuses another length or width."""
        no_scalars(packet)
        count = math.prod(packet.shape) + self.checks
        match packet.planes:
            case (plane,) if plane.width == self.width and plane.symbols.numel() == count:
                return plane.symbols.numpy().astype(np.uint16)
        got = [(plane.width, plane.symbols.numel()) for plane in packet.planes]
        raise DecodeError(f"expected {count} masked symbols of {self.width} bits, got {got}")

    def added(self, masked: Symbols) -> Symbols:
        """The sum of all parties' symbols from that of what they sent; refuses what no grid can add up to."""
        total = masked & self._modulus
        if total[-self.checks :].any():
            raise DecodeError(
                "the masked embeddings do not add up: one is of another round or session, or was changed on its way"
            )
        if total.size and int(total.max()) > self.most:
            raise DecodeError("the masked embeddings add up to more than the grid has: a party left it")
        return total[: -self.checks]

    def _plane(self, hidden: Symbols) -> Plane:
        hidden &= self._modulus
        return Plane(torch.from_numpy(hidden if self.width > 8 else hidden.astype(np.uint8)), self.width)

    @property
    def _modulus(self) -> np.uint16:
        return np.uint16(2**self.width - 1)

    def _mask(self, context: Context, n: int) -> Symbols:
        if self.mask is None:
            raise LocalProtocolError("a masked embedding can only be read as part of the sum")
        return self.mask(context.part, context.t0, n + self.checks)

    def _once(self, t0: int, symbols: Symbols) -> None:
        """A mask hides one message: sent again it is the same message, or nothing is sent."""
        now = (t0, symbols.tobytes())
        if self.mask is not None and (t0 < self._last[0] or (t0 == self._last[0] and now != self._last)):
            raise LocalProtocolError(f"the mask of round {t0} was used for another message")
        self._last = now

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """That of the grid: masks take nothing away."""
        return self.grid.bound(h, context)

    def nominal_bits(self, t0: int) -> float:
        """w."""
        return self.width
