"""Error that diminishes with the rounds, as Theorem 2 needs: more bits, smaller cells or more components."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cvfl import theory
from cvfl.compress.base import Compressor, Context, Wrapper
from cvfl.errors import ConfigError
from cvfl.wire.packet import Packet


class Schedule(Wrapper):
    """Refine a compressor so that at round t0 its error bound is at most (t0 + 1)^-rate of its first."""

    def __init__(self, inner: Compressor, rate: float = 0.5) -> None:
        if not 0 < rate < 8:
            raise ConfigError(f"schedule: rate must be above 0 and below 8, not {rate}")
        inner.refined(1.0)  # refuses a compressor that has no finer setting
        self.inner = inner
        self.rate = rate

    def at(self, t0: int) -> Compressor:
        """The compressor of round t0."""
        return self.inner.refined(theory.diminished(t0, self.rate))

    def compress(self, h: Tensor, context: Context) -> Packet:
        """Compress with this round's setting."""
        return self.at(context.t0).compress(h, context)

    def decompress(self, packet: Packet, context: Context) -> Tensor:
        """Decompress with this round's setting, which both ends compute."""
        return self.at(context.t0).decompress(packet, context)

    def bound(self, h: Tensor, context: Context) -> theory.ErrorBound:
        """This round's bound."""
        return self.at(context.t0).bound(h, context)

    def nominal_bits(self, t0: int) -> float:
        """This round's bits."""
        return self.at(t0).nominal_bits(t0)

    def refined(self, factor: float) -> Schedule:
        """Refine the start; the schedule goes on from there."""
        return Schedule(self.inner.refined(factor), self.rate)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the compressor inside."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the compressor inside."""
        self.inner.load_state_dict(state)
