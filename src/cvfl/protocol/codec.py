"""A compressor at its place in the protocol: tensors in, packet bytes out, and the error measured on the way.

Every role has a codec for each sender. All of them decode the same values from the same bytes, so roles in one
process may share a codec: it then decodes each packet once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cvfl.compress import Compressor, Context, Identity
from cvfl.errors import CompressError, DecodeError
from cvfl.theory import ErrorBound
from cvfl.types import SERVER
from cvfl.wire import Bytes, decode_packet, encode_packet


@dataclass(frozen=True)
class Measured:
    """Squared error of messages beside what theory allows."""

    error: float = 0.0
    expected: float = 0.0
    worst: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.error + other.error, self.expected + other.expected, self.worst + other.worst)


class Codec:
    """C_m for one kind of message of one sender."""

    def __init__(self, compressor: Compressor, seed: int, m: int, name: str, part: str = "embedding") -> None:
        self.compressor = compressor
        self.name = name
        self._now = Context(seed, 0, m, part)
        self._lock = threading.Lock()
        self._last: tuple[int, bytes, Tensor] | None = None

    def _context(self, t0: int) -> Context:
        if self._now.t0 != t0:
            self._now = Context(self._now.seed, t0, self._now.m, self._now.part)
        return self._now

    def encode(self, h: Tensor, t0: int) -> bytes:
        """Packet bytes of a tensor; a tensor that cannot be sent names its party."""
        try:
            return encode_packet(self.compressor.compress(h, self._context(t0)))
        except CompressError as error:
            raise CompressError(f"{self.name}, round {t0}: the {self._now.part} {error}") from None

    def decode(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor that every receiver of this packet uses; callers must not change it."""
        same = bytes(data)  # compared at once; a memoryview would be compared byte by byte
        with self._lock:
            if self._last is None or self._last[:2] != (t0, same):
                self._last = (t0, same, self._decoded(data, t0, shape, dtype))
            return self._last[2]

    def _decoded(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        packet = decode_packet(data)
        # Checked before anything of this shape is allocated.
        if packet.shape != shape or packet.dtype != dtype:
            raise DecodeError(
                f"{self.name}, round {t0}: the {self._now.part} is {packet.dtype} {packet.shape}, not {dtype} {shape}"
            )
        h = self.compressor.decompress(packet, self._context(t0))
        if h.numel() and not all(math.isfinite(value) for value in torch.aminmax(h)):
            raise DecodeError(f"{self.name}, round {t0}: the {self._now.part} holds a NaN or an infinite value")
        return h

    def measure(self, h: Tensor, data: Bytes, t0: int) -> Measured:
        """The squared error that the receivers of this packet see, and its bound."""
        decoded = self.decode(data, t0, tuple(h.shape), h.dtype)
        bound = self.compressor.bound(h, self._context(t0))
        return _measured(float((decoded - h.detach().to(decoded.device)).double().square().sum()), bound)


class ModelCodec:
    """C_0: each weight matrix of the server model by a compressor of its own, the rest as it is.

    Biases and norms are few and sensitive, so they travel together as one exact packet.
    """

    def __init__(self, make: Callable[[], Compressor], model: nn.Module, seed: int, name: str = "server") -> None:
        compressors = {key: make() for key, value in model.named_parameters() if value.ndim >= 2}
        self.codecs = {
            key: Codec(compressor, seed, SERVER, name, f"server model's {key}")
            for key, compressor in compressors.items()
            if not isinstance(compressor, Identity)
        }
        self._exact = Codec(Identity(), seed, SERVER, name, "server model")

    def encode(self, model: nn.Module, t0: int) -> tuple[bytes, ...]:
        """One packet for each matrix, and one for everything else."""
        matrices, rest = self._split(model)
        packets = tuple(codec.encode(value, t0) for codec, value in matrices)
        if not rest:
            return packets
        return (*packets, self._exact.encode(torch.cat([value.detach().reshape(-1) for value in rest]), t0))

    def decode_into(self, model: nn.Module, packets: Sequence[Bytes], t0: int) -> None:
        """Set the model's parameters to what the packets say."""
        matrices, rest = self._split(model)
        if len(packets) != len(matrices) + bool(rest):
            raise DecodeError(f"a server model of {len(matrices) + bool(rest)} packets, not {len(packets)}")
        with torch.no_grad():
            for (codec, value), data in zip(matrices, packets, strict=False):
                value.copy_(codec.decode(data, t0, tuple(value.shape), value.dtype))
            if rest:
                sizes = [value.numel() for value in rest]
                exact = self._exact.decode(packets[-1], t0, (sum(sizes),), rest[0].dtype)
                for value, part in zip(rest, torch.split(exact, sizes), strict=True):
                    value.copy_(part.reshape(value.shape))

    def observe(self, model: nn.Module) -> None:
        """Let the compressors learn from the gradients of the parameters."""
        for codec, value in self._split(model)[0]:
            if value.grad is not None:
                codec.compressor.observe(value.grad)

    def measure(self, model: nn.Module, packets: Sequence[Bytes], t0: int) -> Measured:
        """Error of the compressed matrices beside its bound."""
        pairs = zip(self._split(model)[0], packets, strict=False)
        return sum((codec.measure(value, data, t0) for (codec, value), data in pairs), Measured())

    def _split(self, model: nn.Module) -> tuple[list[tuple[Codec, nn.Parameter]], list[nn.Parameter]]:
        """The parameters that have a compressor, with it, and the others."""
        matrices, rest = [], []
        for key, value in model.named_parameters():
            if codec := self.codecs.get(key):
                matrices.append((codec, value))
            else:
                rest.append(value)
        return matrices, rest

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """States of the compressors that have any."""
        states = {key: codec.compressor.state_dict() for key, codec in self.codecs.items()}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the compressors."""
        for key, codec in self.codecs.items():
            codec.compressor.load_state_dict(state.get(key, {}))


def _measured(error: float, bound: ErrorBound) -> Measured:
    return Measured(error, bound.expected, bound.worst)
