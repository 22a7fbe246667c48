"""C_0: the server model, or the pieces of it that a party needs, as packets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from cvfl.compress import Compressor, Identity
from cvfl.errors import DecodeError
from cvfl.protocol.codec import Codec, Measured, State, restore, states_of
from cvfl.types import SERVER
from cvfl.wire import Bytes

Pieces = Mapping[str, Tensor]
"""Parameters, or views of parts of them, by name; the same names and shapes at every role."""


class ModelCodec:
    """Each weight matrix by a compressor of its own, the rest as it is.

    Biases and norms are few and sensitive, so they travel together as one exact packet.
    """

    def __init__(self, make: Callable[[], Compressor], pieces: Pieces, seed: int, name: str = "server") -> None:
        compressors = {key: make() for key, value in pieces.items() if value.ndim >= 2}
        self.codecs = {
            key: Codec(compressor, seed, SERVER, name, f"server model's {key}")
            for key, compressor in compressors.items()
            if not isinstance(compressor, Identity)
        }
        self._exact = Codec(Identity(), seed, SERVER, name, "server model")

    def encode(self, pieces: Pieces, t0: int) -> tuple[bytes, ...]:
        """One packet for each matrix, and one for everything else."""
        matrices, rest = self._split(pieces)
        packets = tuple(codec.encode(value, t0) for codec, value in matrices)
        if not rest:
            return packets
        return (*packets, self._exact.encode(torch.cat([value.detach().reshape(-1) for value in rest]), t0))

    def decode_into(self, pieces: Pieces, packets: Sequence[Bytes], t0: int) -> None:
        """Set the pieces to what the packets say."""
        matrices, rest = self._split(pieces)
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

    def observe(self, gradients: Pieces, loss: float) -> None:
        """Let the compressors learn from the gradients of the pieces."""
        for key, gradient in gradients.items():
            if key in self.codecs:
                self.codecs[key].observe(gradient, loss)

    def measure(self, pieces: Pieces, packets: Sequence[Bytes], t0: int) -> Measured:
        """Error of the compressed matrices beside its bound."""
        pairs = zip(self._split(pieces)[0], packets, strict=False)
        return sum((codec.measure(value, data, t0) for (codec, value), data in pairs), Measured())

    def _split(self, pieces: Pieces) -> tuple[list[tuple[Codec, Tensor]], list[Tensor]]:
        """The pieces that have a compressor, with it, and the others."""
        matrices = [(self.codecs[key], value) for key, value in pieces.items() if key in self.codecs]
        return matrices, [value for key, value in pieces.items() if key not in self.codecs]

    def state_dict(self, t0: int) -> dict[str, dict[str, Tensor]]:
        """States of the compressors that have any, before round t0."""
        return states_of(self.codecs, t0)

    def load_state_dict(self, states: Mapping[str, State]) -> None:
        """Restore the compressors."""
        restore(self.codecs, states)
