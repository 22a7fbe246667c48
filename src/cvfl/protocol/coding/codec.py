"""A compressor at its place in the protocol: tensors in, packet bytes out, and the error measured on the way.

Every role has a codec for each sender. All of them decode the same values from the same bytes, so roles in one
process may share a codec: it then decodes each packet once.

What the ends of a compressor learn from a packet they learn when its round is over, that is, when a later round is
coded, decoded or saved. Until then the packet is open: it can be sent again, and is the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cvfl.compress import Compressor, Context, Feedback
from cvfl.compress.base import ends
from cvfl.compress.basis import within
from cvfl.errors import CompressError, DecodeError
from cvfl.memory import Memory, Values
from cvfl.protocol.limits import Limit
from cvfl.stopwatch import coding
from cvfl.theory import ErrorBound
from cvfl.wire import Bytes, decode_packet, encode_packet

State = Mapping[str, Any]
_OPEN, _WHICH, _MEMORY = "open packet", "open round and shape", "memory"
LIMIT = {torch.float32: 2.0**60, torch.float64: 2.0**476}
"""Largest value that is sent: whoever sends larger ones is named before anybody computes with them. Lossy ones may
arrive as up to 8 times as much, and still have squares that are numbers."""


@dataclass(frozen=True)
class Measured:
    """Squared error of messages beside what their compressors promise."""

    error: float = 0.0
    expected: float = 0.0
    worst: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.error + other.error, self.expected + other.expected, self.worst + other.worst)


@dataclass(frozen=True)
class Samples:
    """Which samples the rows of a round's message are, of how many, and where it is kept what is known of them."""

    of: Callable[[int], Tensor]
    total: int
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True)
class _Decoded:
    """A packet that was opened: what it says, what its receivers use of that, and in which directions."""

    whole: Tensor
    used: Tensor
    span: Tensor | None


class Codec:
    """C_m for one kind of message of one sender."""

    def __init__(
        self,
        compressor: Compressor,
        seed: int,
        m: int,
        name: str,
        part: str = "embedding",
        samples: Samples | None = None,
        remembers: bool = False,
        limit: Limit | None = None,
        called: str = "",
    ) -> None:
        self.compressor, self._limit = compressor, limit
        self.name, self._what = name, f"the {called or part}"
        self._remembers = remembers and not isinstance(compressor, Feedback)
        self._memory: Values | None = None
        self._samples = samples
        if samples is not None:
            compressor.remember(samples.memory)
        self._now = self._of(Context(seed, 0, m, part))
        self._order: tuple[int, Tensor, Tensor] | None = None
        self._lock = threading.RLock()
        # Two rounds: a sender may measure its next packet while other roles of its process still decode this one.
        self._decoded: dict[tuple[int, bytes], _Decoded] = {}
        self._span: Tensor | None = None
        self._open: tuple[int, bytes, tuple[int, ...], torch.dtype] | None = None
        self.reached = 0.0
        """The largest magnitude that was decoded so far."""

    def _of(self, context: Context) -> Context:
        if self._samples is None:
            return context
        rows, total = self._samples.of(context.t0), self._samples.total
        return Context(context.seed, context.t0, context.m, context.part, rows, total)

    def _context(self, t0: int) -> Context:
        if self._now.t0 != t0:
            self._now = self._of(Context(self._now.seed, t0, self._now.m, self._now.part))
        return self._now

    @coding
    def encode(self, h: Tensor, t0: int) -> bytes:
        """Packet bytes of a tensor; a tensor that cannot be sent names its party."""
        with self._lock:
            self._settle(t0)
            try:
                if LIMIT.get(h.dtype, math.inf) < (reached := reach(h.detach())) < math.inf:
                    raise CompressError(_too_far(reached, h.dtype))
                data = encode_packet(self.compressor.compress(h, self._context(t0)))
            except CompressError as error:
                remedy = "if training diverged, lower step_size.eta"
                raise CompressError(f"{self.name}, round {t0}: {self._what} {error}; {remedy}") from None
            self._open = (t0, data, tuple(h.shape), h.dtype)
        return data

    @coding
    def decode(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor that every receiver of this packet uses; callers must not change it."""
        with self._lock:
            return self._read(data, t0, shape, dtype).used

    def _read(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> _Decoded:
        same = bytes(data)  # compared at once; a memoryview would be compared byte by byte
        if (t0, same) not in self._decoded:
            self._settle(t0)
            try:
                h = self._opened(data, t0, shape, dtype)
            except DecodeError as error:
                raise DecodeError(f"{self.name}, round {t0}: {error}") from None
            read = _Decoded(h, _part(h, self.compressor.span), self.compressor.span)
            self._decoded = dict([*self._decoded.items()][-1:]) | {(t0, same): read}
            self._open = (t0, same, shape, dtype)
        return self._decoded[t0, same]

    def _opened(self, data: Bytes, t0: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        try:
            packet = decode_packet(data, shape)
        except DecodeError as error:
            raise DecodeError(f"{self._what} is none of shape {shape}: {error}") from None
        if packet.dtype != dtype:
            raise DecodeError(f"{self._what} is {packet.dtype}, not {dtype}")
        h = self.compressor.decompress(packet, self._context(t0))
        reached = reach(h)
        if not math.isfinite(reached):
            raise DecodeError(f"{self._what} holds a NaN or an infinite value")
        if reached > 8 * LIMIT[dtype]:
            raise DecodeError(f"{self._what} {_too_far(reached, dtype)}")
        if self._limit is not None:
            self._limit.check_rows(h, self._what)
        self.reached = max(self.reached, reached)
        return h

    def _settle(self, t0: int) -> None:
        """Learn from the packet of an earlier round, once."""
        if not self._learns or self._open is None or self._open[0] >= t0:
            return
        then, data, shape, dtype = self._open
        read, context = self._read(data, then, shape, dtype), self._context(then)
        decoded, self._span = read.whole, read.span
        self.compressor.settle(decode_packet(data, shape), decoded, context)
        if self._remembers:
            assert self._samples is not None  # or nothing would be remembered
            if self._memory is None:
                self._memory = self._samples.memory.values((context.total, *shape[1:]), dtype)
            self._memory.put(context.samples, decoded)
        self._open = None

    @property
    def _learns(self) -> bool:
        """Whether anything is kept of a packet when its round is over."""
        return self.compressor.learns or self._remembers

    @property
    def knows(self) -> bool:
        """Whether anything was sent that `recall` can tell again."""
        return self._open is not None or self._known is not None

    @property
    def _known(self) -> Values | None:
        return self.compressor.known if isinstance(self.compressor, Feedback) else self._memory

    def recall(self, rows: Tensor, t0: int, dtype: torch.dtype) -> Tensor:
        """These samples as everyone decoded them last, the packet of round t0 included; each was sent before."""
        with self._lock:
            known = self._known
            if self._open is None or self._open[0] != t0:
                assert known is not None
                return _part(known.get(rows).to(dtype), self._span)
            now = self._read(self._open[1], t0, *self._open[2:])
            samples, places = self._sorted(t0)
            at = torch.searchsorted(samples, rows).clamp_max(len(samples) - 1)
            fresh, newest = samples[at] == rows, now.used[places[at]]
            if known is None:
                return newest
            return torch.where(fresh[:, None], newest, _part(known.get(rows).to(newest), now.span))

    def _sorted(self, t0: int) -> tuple[Tensor, Tensor]:
        """The samples of round t0 in ascending order, and their places in its message: once for all local steps."""
        if self._order is None or self._order[0] != t0:
            self._order = t0, *_samples(self._context(t0)).sort()
        return self._order[1:]

    def measure(self, h: Tensor, data: Bytes, t0: int) -> Measured:
        """The squared error that the receivers of this packet see, and its bound."""
        with self._lock:
            decoded = self.decode(data, t0, tuple(h.shape), h.dtype)
            bound = self.compressor.bound(h, self._context(t0))
        return _measured(float((decoded - h.detach().to(decoded.device)).double().square().sum()), bound)

    def observe(self, gradient: Tensor, loss: float, sent: Tensor | None = None) -> None:
        """Let the sender's compressor learn from training."""
        with self._lock:
            self.compressor.observe(gradient, loss, sent)

    @property
    def follows(self) -> bool:
        """Whether the compressor follows the loss."""
        return self.compressor.follows

    @property
    def ease(self) -> float:
        """What is left of the compressor's tolerance after what it was told by `certify`."""
        return self.compressor.ease

    def prime(self, gradient: Tensor, sent: Tensor) -> None:
        """Let the sender's compressor learn before anything was sent."""
        with self._lock:
            self.compressor.prime(gradient, sent)

    def certify(self, exact: float, across: float, caused: float) -> None:
        """Tell the sender's compressor how well the gradient that its message caused agrees with the exact one."""
        with self._lock:
            self.compressor.certify(exact, across, caused)

    def loosen(self, least: float) -> None:
        """Let the sender's compressor keep at least this share of its tolerance."""
        with self._lock:
            self.compressor.loosen(least)

    def state_dict(self, t0: int) -> dict[str, Any]:
        """What the compressor knows before round t0, and the packet of round t0 if there is one already."""
        with self._lock:
            self._settle(t0)
            state = self.compressor.state_dict()
            if self._memory is not None:
                state |= {_MEMORY: self._memory.state()}
            if self._open is None or not self._learns:
                return state
            then, data, shape, _ = self._open
            packet = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
            return state | {_OPEN: packet, _WHICH: torch.tensor([then, *shape])}

    def load_state_dict(self, state: State) -> None:
        """Restore the compressor, and what was open."""
        with self._lock:
            self._decoded, self._open = {}, None
            self._memory = None  # what is remembered makes room first
            if self._samples is not None and _MEMORY in state:
                self._memory = self._samples.memory.restored(state[_MEMORY])
            own = (_OPEN, _WHICH, _MEMORY)
            self.compressor.load_state_dict({key: state[key] for key in state if key not in own})
            self._span = self.compressor.span
            if _OPEN in state:
                data, (then, *shape) = state[_OPEN].numpy().tobytes(), state[_WHICH].tolist()
                self._open = then, data, tuple(shape), decode_packet(data, tuple(shape)).dtype


class Stateful(Protocol):
    """Something with a state before a round: a codec, or the codecs of a model."""

    def state_dict(self, t0: int) -> Mapping[str, Any]:
        """What it knows before round t0."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Know that again."""


def states_of(codecs: Mapping[str, Stateful], t0: int) -> dict[str, Any]:
    """States of the codecs that have any, before round t0."""
    states = {key: codec.state_dict(t0) for key, codec in codecs.items()}
    return {key: state for key, state in states.items() if state}


def restore(codecs: Mapping[str, Stateful], states: Mapping[str, Any]) -> None:
    """Give the codecs the states that they had."""
    for key, codec in codecs.items():
        codec.load_state_dict(states.get(key, {}))


def _part(h: Tensor, span: Tensor | None) -> Tensor:
    """What receivers use of a reconstruction."""
    return h if span is None else within(h, span)


def _samples(context: Context) -> Tensor:
    """Which samples the rows of a message are."""
    assert context.samples is not None  # or nothing would be remembered
    return context.samples


def reach(h: Tensor) -> float:
    """The largest magnitude in a tensor; NaN if there is one in it."""
    if h.numel() == 0:
        return 0.0
    least, greatest = ends(h)
    return max(-least, greatest)


def _too_far(reached: float, dtype: torch.dtype) -> str:
    return f"reaches {reached:.3g}, beyond the ±{LIMIT[dtype]:.3g} that can be computed with"


def _measured(error: float, bound: ErrorBound) -> Measured:
    return Measured(error, bound.expected, bound.worst)
