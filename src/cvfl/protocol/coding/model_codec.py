"""C_0: the server model, or the pieces of it that a party needs, as packets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cvfl.compress import Compressor, Feedback, Identity
from cvfl.errors import DecodeError
from cvfl.protocol.coding.codec import Codec, Measured, State, restore, states_of
from cvfl.protocol.limits import Limit
from cvfl.types import SERVER
from cvfl.wire import Bytes

Pieces = Mapping[str, Tensor]
"""Parameters, or views of parts of them, by name; the same names and shapes at every role."""
_REST = "biases and norms"


class ModelCodec:
    """Each weight matrix by a compressor of its own; biases and norms together, as one packet.

    They are few and sensitive, so they travel exactly, unless what a compressor loses is sent later, by feedback.
    """

    def __init__(
        self,
        make: Callable[[], Compressor],
        pieces: Pieces,
        seed: int,
        name: str = "server",
        limit: Limit | None = None,
    ) -> None:
        self._name, self._limit = name, limit
        compressors = {key: make() for key, value in pieces.items() if value.ndim >= 2}
        self.codecs = {
            key: Codec(compressor, seed, SERVER, name, f"server model's {key}")
            for key, compressor in compressors.items()
            if not isinstance(compressor, Identity)
        }
        self.count = len(self.codecs) + (len(self.codecs) < len(pieces))
        """Packets of a model."""
        rest = make()
        self._rest = Codec(rest if isinstance(rest, Feedback) else Identity(), seed, SERVER, name, "server model")

    def encode(self, pieces: Pieces, t0: int) -> tuple[bytes, ...]:
        """One packet for each matrix, and one for everything else."""
        return tuple(codec.encode(value, t0) for codec, value in self._parts(pieces))

    def decode_into(self, pieces: Pieces, packets: Sequence[Bytes], t0: int) -> None:
        """Set the pieces to what the packets say."""
        parts = self._parts(pieces)
        if len(packets) != len(parts):
            raise DecodeError(f"a server model of {len(parts)} packets, not {len(packets)}")
        with torch.no_grad():
            for (codec, value), data in zip(parts, packets, strict=True):
                decoded = codec.decode(data, t0, tuple(value.shape), value.dtype)
                if codec is not self._rest:
                    value.copy_(decoded)
                    continue
                rest = self._uncompressed(pieces)
                for own, told in zip(rest, torch.split(decoded, [own.numel() for own in rest]), strict=True):
                    own.copy_(told.reshape(own.shape))
        if self._limit is not None:
            self._check(pieces, self._limit, t0)

    def _check(self, pieces: Pieces, limit: Limit, t0: int) -> None:
        for key, value in pieces.items():
            if value.ndim >= 2:
                limit.check_matrix(value, f"{self._name}, round {t0}: the server model's {key}")

    def observe(self, gradients: Pieces, loss: float) -> None:
        """Let the compressors learn from the gradients of the pieces."""
        for key, gradient in gradients.items():
            if key in self.codecs:
                self.codecs[key].observe(gradient, loss)

    def measure(self, pieces: Pieces, packets: Sequence[Bytes], t0: int) -> Measured:
        """Error of the packets beside its bound."""
        pairs = zip(self._parts(pieces), packets, strict=True)
        return sum((codec.measure(value, data, t0) for (codec, value), data in pairs), Measured())

    def _parts(self, pieces: Pieces) -> list[tuple[Codec, Tensor]]:
        """The tensors that travel, each with its codec: matrices, and everything else as one."""
        matrices = [(self.codecs[key], value) for key, value in pieces.items() if key in self.codecs]
        rest = [value.detach().reshape(-1) for value in self._uncompressed(pieces)]
        return [*matrices, (self._rest, torch.cat(rest))] if rest else matrices

    def _uncompressed(self, pieces: Pieces) -> list[Tensor]:
        return [value for key, value in pieces.items() if key not in self.codecs]

    def state_dict(self, t0: int) -> dict[str, Any]:
        """States of the compressors that have any, before round t0."""
        return states_of(self.codecs | {_REST: self._rest}, t0)

    def load_state_dict(self, states: Mapping[str, State]) -> None:
        """Restore the compressors."""
        restore(self.codecs | {_REST: self._rest}, states)
