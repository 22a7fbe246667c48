"""What can be read of masked embeddings: their sum. The server adds packets up, and everyone decodes the same sum.

sum of ĥ_m = M low + Delta (sum of q_m - sum of v_m)        the dithers v_m are known to all, the q_m to nobody
sum of ĥ_m = step (sum of n_m mod 2^w, about zero)          where parties share their noise
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cvfl import theory
from cvfl.compress import Context, Masked, Packet, Plane, Wrapped
from cvfl.compress.base import no_scalars, only_plane
from cvfl.compress.masked import Symbols
from cvfl.errors import DecodeError
from cvfl.protocol.limits import Limit
from cvfl.stopwatch import coding
from cvfl.wire import Bytes, decode_packet, encode_packet


class Aggregate:
    """The sum of one kind of masked message over all parties. Roles of one process may share it."""

    def __init__(
        self, masked: Masked, seed: int, names: Sequence[str], part: str = "embedding", limit: Limit | None = None
    ) -> None:
        self._masked, self._seed, self._names, self._part, self._limit = masked, seed, tuple(names), part, limit
        self._lock = threading.Lock()
        self._decoded: tuple[int, bytes, Tensor] | None = None

    @coding
    def add(self, packets: Mapping[int, Bytes], t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
        """The packet of the sum, from those of all parties; a packet of another form names its party."""
        total: Symbols = np.zeros(math.prod(shape) + self._masked.checks, dtype=np.uint16)
        for m, data in sorted(packets.items()):
            try:
                total = total + self._masked.symbols(_opened(data, shape, dtype))
            except DecodeError as error:
                raise DecodeError(f"{self._names[m - 1]}, round {t0}: {error}") from None
        try:
            symbols = self._masked.added(total)
        except DecodeError as error:
            raise DecodeError(f"round {t0}: {error}") from None
        width = self._masked.width
        return encode_packet(
            Packet(
                shape, (Plane(torch.from_numpy(symbols if width > 8 else symbols.astype(np.uint8)), width),), (), dtype
            )
        )

    @coding
    def decode(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The sum of the embeddings from its packet; callers must not change it."""
        same = bytes(data)
        with self._lock:
            if self._decoded is None or self._decoded[:2] != (t0, same):
                packet = _opened(data, shape, dtype)
                no_scalars(packet)
                symbols = only_plane(packet, self._masked.width, math.prod(shape)).int()
                if symbols.numel() and int(symbols.max()) > self._masked.most:
                    raise DecodeError(f"round {t0}: the sum of the embeddings leaves the grid")
                total = self._values(symbols, t0, dtype).reshape(shape)
                if self._limit is not None:
                    self._limit.check_rows(total, f"round {t0}: the sum of the {self._part}s")
                self._decoded = t0, same, total
            return self._decoded[2]

    def _values(self, symbols: Tensor, t0: int, dtype: torch.dtype) -> Tensor:
        grid, M = self._masked.grid, len(self._names)
        if isinstance(grid, Wrapped):
            return grid.values(symbols, dtype)
        low, high = grid.range.read(Packet((), (), dtype=dtype))
        dithers = torch.zeros(symbols.numel(), dtype=torch.int32)
        for m in range(1, M + 1):
            dithers += Context(self._seed, t0, m, self._part).dither(symbols.numel())
        y = symbols.double().sub_(dithers.double().mul_(2.0**-16))
        return y.mul_(theory.scalar_step(grid.bits, low, high)).add_(M * low).to(dtype)


def _opened(data: Bytes, shape: tuple[int, ...], dtype: torch.dtype) -> Packet:
    try:
        packet = decode_packet(data, shape)
    except DecodeError as error:
        raise DecodeError(f"the packet is none of shape {shape}: {error}") from None
    if packet.dtype != dtype:
        raise DecodeError(f"the packet is of {packet.dtype}, not {dtype}")
    return packet
