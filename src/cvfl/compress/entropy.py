"""Entropy coding: symbols near their entropy, by a range coder whose models follow what was sent.

    inner packet ──▶ planes of symbols ──range coder──▶ code
                           │      ▲
                           ▼      │ probabilities
                     counts of each column, the same at every end

Nothing describes the models: both ends count the symbols of earlier blocks and messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cvfl.compress.base import Compressor, Context, Wrapper
from cvfl.errors import ConfigError
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet
from cvfl.wire.rangecode import Counts, decoded, encoded, received


class Entropy(Wrapper):
    """Code the symbols of a compressor near their entropy."""

    learns = True

    def __init__(self, inner: Compressor) -> None:
        within: object = inner
        while within is not None:
            if isinstance(within, Entropy):
                raise ConfigError("entropy of entropy is entropy; write it once")
            within = getattr(within, "inner", None)
        self.inner = inner
        self.counts: Counts = {}
        self._last: tuple[Packet, Packet, Counts] | None = None

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Compress, then code."""
        inner = received(self.inner.compress(h, context))
        code, counts = encoded(inner, self.counts)
        packet = Packet(inner.shape, (), dtype=inner.dtype, code=code)
        self._last = packet, inner, counts
        return packet

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Decode, then decompress."""
        return self.inner.decompress(self._opened(packet)[0], context)

    def settle(self, packet: Packet, decoded: Tensor, context: Context) -> None:
        """The symbols of this packet are counted for the next one."""
        inner, self.counts = self._opened(packet)
        self._last = None
        self.inner.settle(inner, decoded, context)

    def _opened(self, packet: Packet) -> tuple[Packet, Counts]:
        """The packet inside and the counts after it; once for the code that was coded or decoded last."""
        if self._last is None or self._last[0] != packet:
            self._last = packet, *decoded(packet, self.counts)
        return self._last[1:]

    def bound(self, h: Tensor, context: Context) -> ErrorBound:
        """Coding loses nothing."""
        return self.inner.bound(h, context)

    def nominal_bits(self, t0: int) -> float:
        """Those of the compressor inside."""
        return self.inner.nominal_bits(t0)

    def state_dict(self) -> dict[str, Any]:
        """The counts, and the state of the compressor inside."""
        counts = {f"counts.{index}": torch.from_numpy(value) for index, value in self.counts.items()}
        return counts | {f"inner.{key}": value for key, value in self.inner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        named = {tuple(key.split(".", 1)): value for key, value in state.items()}
        self._last = None
        self.counts = {int(key): value.numpy().copy() for (kind, key), value in named.items() if kind == "counts"}
        self.inner.load_state_dict({key: value for (kind, key), value in named.items() if kind == "inner"})
