"""Error feedback: send only how a tensor differs from what all ends already know of it.

    sender      h ─(-)─ h - known ──C──▶ packet ──▶ receivers
                     │                     │            │
                   known ◀──── known + C(h - known) ────┘      the same at every end, row by row of the samples

Each sample's last reconstruction is kept, so what compression lost in one epoch is sent in the next, and the error
vanishes as training settles. A sample that was never seen is known as zero: its first visit is coded directly.

Ends cannot drift apart: one elementwise addition of floats has one result everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cvfl.compress.base import Compressor, Context, Wrapper, flat, float_type
from cvfl.errors import CompressError, ConfigError
from cvfl.memory import InMemory, Memory, Values
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet


class Feedback(Wrapper):
    """Compress the difference from the reconstruction that all ends have of each sample, or of a weight matrix."""

    learns = True

    def __init__(self, inner: Compressor) -> None:
        if isinstance(inner, Feedback):
            raise ConfigError("feedback of feedback is feedback; write it once")
        self.inner = inner
        self.known: Values | None = None
        self._memory = Memory()
        self._read: tuple[Tensor | None, Tensor] | None = None

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Compress what is new."""
        return self.inner.compress(self._new(h, context), replace(context, whole=h.detach()))

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Add what is new to what is known."""
        new = self.inner.decompress(packet, context)
        return self._known(packet.shape, context).to(new) + new

    def settle(self, packet: Packet, decoded: Tensor, context: Context) -> None:
        """All ends have the reconstruction: it is known from now on."""
        known = self._known(packet.shape, context)
        self.inner.settle(packet, decoded - known.to(decoded), context)
        if self.known is None and context.samples is None:
            self.known = InMemory(torch.zeros(packet.shape, dtype=packet.dtype))
        elif self.known is None:
            self.known = self._memory.values((context.total, *packet.shape[1:]), packet.dtype)
        self._read = None
        self.known.put(context.samples, decoded)

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """The inner bound for the difference, and the rounding of a subtraction and an addition."""
        new = self._new(h, context)
        inner = self.inner.bound(new, replace(context, whole=h.detach()))
        size = sum(math.sqrt(float(x.detach().double().square().sum())) for x in (h, new)) + math.sqrt(inner.worst)
        rounding = 4 * torch.finfo(float_type(h)).eps * size
        return ErrorBound(*((math.sqrt(error) + rounding) ** 2 for error in (inner.expected, inner.worst)))

    def nominal_bits(self, t0: int) -> float:
        """Those of the compressor inside."""
        return self.inner.nominal_bits(t0)

    def remember(self, memory: Memory) -> None:
        """Keep what is known there."""
        self._memory = memory
        super().remember(memory)

    def state_dict(self) -> dict[str, Any]:
        """What is known, and the state of the compressor inside."""
        known = {} if self.known is None else {"known": self.known.state()}
        return known | {f"inner.{key}": value for key, value in self.inner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.known = self._read = None  # what was known makes room first
        self.known = self._memory.restored(state["known"]) if "known" in state else None
        self.inner.load_state_dict(
            {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
        )

    def _new(self, h: Tensor, context: Context) -> Tensor:
        x = flat(h).reshape(h.shape)
        new = x - self._known(tuple(h.shape), context).to(x)
        if new.numel() and not all(math.isfinite(value) for value in torch.aminmax(new)):
            raise CompressError("holds a NaN or an infinite value, or differs too much from the last one")
        return new

    def _known(self, shape: tuple[int, ...], context: Context) -> Tensor:
        """What all ends know of these rows."""
        if self.known is None:
            return torch.zeros(shape)
        if self._read is None or self._read[0] is not context.samples:  # once for all that is done with a message
            self._read = context.samples, self.known.get(context.samples)
        if tuple(self._read[1].shape) != shape:
            raise ConfigError(f"feedback knows {tuple(self._read[1].shape)} of this message and now gets {shape}")
        return self._read[1]
