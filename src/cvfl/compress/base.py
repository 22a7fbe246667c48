"""What a compressor is: tensor -> packet of symbols -> tensor, and a bound for the difference.

    h ──compress──▶ Packet(shape, scalars, planes) ──wire──▶ bytes ──wire──▶ Packet ──decompress──▶ ĥ
                     │                  └ integers of a stated width in bits
                     └ a few floats, such as the measured range

A packet holds integers and their width, which `cvfl.wire` packs, or the code that an entropy coder made of them.
Both ends know the `Context` of a message without sending it, so the dither never travels. What both ends learn from
the messages of earlier rounds is state: it changes in `settle` alone, when a round is over and nothing is sent again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cvfl.errors import CompressError, ConfigError, DecodeError
from cvfl.memory import Memory
from cvfl.rng import DITHER, stream
from cvfl.theory import ErrorBound
from cvfl.wire.packet import Packet

MAX_BITS = 16
FEW = 1 << 12
"""Components up to which NumPy is taken: a call of PyTorch costs more than so little arithmetic."""
LARGEST = {torch.float32: 2.0**126, torch.float64: 2.0**480}
"""Largest component of a lossy compressor: beyond it a dithered value or a squared error could overflow."""


@dataclass(frozen=True)
class Context:
    """Which message this is: known to sender and receivers, so it addresses their common randomness.

    The rows of an embedding are samples, `samples` of `total`; those of a weight matrix are not. When only a difference
    is sent, `whole` is what it is a difference of; the sender alone has it.
    """

    seed: int = 0
    t0: int = 0
    m: int = 0
    part: str = "embedding"
    samples: Tensor | None = field(default=None, repr=False, compare=False)
    total: int = 0
    whole: Tensor | None = field(default=None, repr=False, compare=False)
    _drawn: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def dither(self, n: int) -> Tensor:
        """n random 16-bit integers that belong to this message; drawn once, not to be changed."""
        if n not in self._drawn:
            self._drawn[n] = torch.from_numpy(stream(self.seed, DITHER, self.part, self.t0, self.m).int16(n))
        return self._drawn[n]


class Compressor(ABC):
    """C_m: compress a tensor to a packet and back.

    Subclasses say in `bound` what error they promise for a tensor. Those that learn from training (top-k)
    override `observe`; those whose ends learn from what was sent override `settle` and set `learns`. Both keep what
    they learn in `state_dict`.
    """

    learns = False
    """Whether `settle` does anything: senders then decode what they sent."""
    follows = False
    """Whether `observe` wants gradients for labels that the model would draw itself, and `certify` is of use."""
    ease: float = 1.0
    """What is left of the tolerance of one that follows the loss, after what `certify` told it so far."""

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

        The rounding of the floats themselves (see `quantizer.rounded`) cannot be refined away, only sent.
        """
        raise ConfigError(f"{type(self).__name__.lower()} cannot follow a schedule: it has no finer setting")

    def observe(self, gradient: Tensor, loss: float = 1.0, sent: Tensor | None = None) -> None:
        """Learn from the loss and its gradient in the tensor last sent, at the sender; most compressors need not.

        One that follows the loss gets the loss that is at stake, and what was sent.
        """
        return

    def prime(self, gradient: Tensor, sent: Tensor) -> None:
        """The same before anything was sent, for one that follows the loss."""
        return

    def certify(self, exact: float, across: float, caused: float) -> None:
        """Learn how well the gradient that a message caused agrees with the exact one, if one follows the loss.

        By their products: that of the exact one with itself, of both, and of the one that was caused with itself.
        """
        return

    def loosen(self, least: float) -> None:
        """Keep at least this share of the tolerance whatever `certify` says, for one that follows the loss.

        A budget asks for it; more than 1 is more than the tolerance, and 0 is what there is without one.
        """
        return

    @property
    def span(self) -> Tensor | None:
        """The directions in which receivers take what they decoded, after the packet that was decompressed last.

        P x K, orthonormal; None is all of them.
        """
        return None

    def settle(self, packet: Packet, decoded: Tensor, context: Context) -> None:
        """Learn from a packet that all receivers have, the same at every end; most compressors need not."""
        return

    def remember(self, memory: Memory) -> None:
        """Keep what is known of samples in this memory; most compressors know nothing of them."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart: tensors, and what a memory keeps on disk."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if state:
            raise ConfigError(f"{type(self).__name__} keeps no state but was given {sorted(state)}")


class Wrapper(Compressor):
    """A compressor around another one, which learns from training in its place."""

    inner: Compressor

    @property
    def follows(self) -> bool:  # type: ignore[override]
        """Whether the compressor inside does."""
        return self.inner.follows

    @property
    def ease(self) -> float:  # type: ignore[override]
        """That of the compressor inside."""
        return self.inner.ease

    def observe(self, gradient: Tensor, loss: float = 1.0, sent: Tensor | None = None) -> None:
        """Pass on to the compressor inside."""
        self.inner.observe(gradient, loss, sent)

    def prime(self, gradient: Tensor, sent: Tensor) -> None:
        """Pass on to the compressor inside."""
        self.inner.prime(gradient, sent)

    def certify(self, exact: float, across: float, caused: float) -> None:
        """Pass on to the compressor inside."""
        self.inner.certify(exact, across, caused)

    def loosen(self, least: float) -> None:
        """Pass on to the compressor inside."""
        self.inner.loosen(least)

    @property
    def span(self) -> Tensor | None:
        """That of the compressor inside."""
        return self.inner.span

    def remember(self, memory: Memory) -> None:
        """Pass on to the compressor inside."""
        self.inner.remember(memory)


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


def width_of(shape: tuple[int, ...]) -> int:
    """P, the last dimension; that of a single number is 1."""
    return shape[-1] if len(shape) else 1


def rows_of(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor as rows of its last dimension; torch cannot infer their number when that dimension is 0."""
    width = width_of(shape)
    return x.reshape(x.numel() // width if width else 0, width)


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


def few(x: Tensor) -> bool:
    """Whether a tensor is better computed with in NumPy, which gives the same bits."""
    return x.numel() <= FEW and x.device.type == "cpu"


def ends(x: Tensor) -> tuple[float, float]:
    """Least and greatest component, or a NaN if there is one; there must be any."""
    if few(x):
        array = x.detach().numpy()
        return float(array.min()), float(array.max())
    least, greatest = torch.aminmax(x)
    return float(least), float(greatest)


def extremes(x: Tensor, largest: float = math.inf) -> tuple[float, float]:
    """Least and greatest component; refuses NaN and infinity, which both carry through, and what is too large."""
    if x.numel() == 0:
        return 0.0, 0.0
    least, greatest = ends(x)
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise CompressError("holds a NaN or an infinite value")
    if max(-least, greatest) > largest:
        raise CompressError(f"spans [{least:.6g}, {greatest:.6g}], beyond the ±{largest:.3g} that can be compressed")
    return least, greatest
