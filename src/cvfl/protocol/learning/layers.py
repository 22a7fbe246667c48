"""Randomness inside layers, such as dropout, drawn from a named stream.

Layers of torch draw from its global generator. A model that does so is found by trying it once, and each of its forward
passes then runs with that generator seeded for its address, one at a time in a process. `Dropout` here draws from the
stream itself: many times faster, side by side, and the same on every machine.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cvfl.rng import INIT, LAYERS, Stream, stream

_generator = threading.Lock()


@contextmanager
def seeded(seed: int, *address: str | int) -> Iterator[None]:
    """Run with torch's generator at this address; it is put back afterwards."""
    with _generator, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        _seed(stream(seed, *address).seed())
        yield


def _seed(value: int) -> None:
    """Seed torch's generators. Where there is no accelerator, `torch.manual_seed` keeps a stack trace at every call."""
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(value)


def initialised(make: Callable[[], nn.Module], seed: int, m: int) -> nn.Module:
    """Build role m's model with the initial parameters that belong to the seed."""
    with seeded(seed, INIT, m):
        return make()


class _Pass(threading.local):
    """The stream of the forward pass that this thread is in, and whether `Dropout` leaves all as it is."""

    stream: Stream | None = None
    quiet: bool = False


_pass = _Pass()


@contextmanager
def _drawing(draws: Stream) -> Iterator[None]:
    before, _pass.stream = _pass.stream, draws
    try:
        yield
    finally:
        _pass.stream = before


class Dropout(nn.Module):
    """In training, a number is zero with probability p, and the others are larger by as much as that takes away."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self._kept = round((1 - p) * 2**16)

    def forward(self, x: Tensor) -> Tensor:
        """Drawn from the stream of the pass; outside of one, as torch does it."""
        if not self.training or _pass.quiet or self._kept == 2**16:
            return x
        if _pass.stream is None:
            return F.dropout(x, self.p)
        drawn = torch.from_numpy(_pass.stream.int16(x.numel())).to(x.device).reshape(x.shape)
        return x * ((drawn < self._kept - 2**15).to(x.dtype) * (2**16 / self._kept))


class Forward:
    """Calls role m's view of a model in training mode, with layer randomness addressed by round and local iteration."""

    def __init__(self, model: nn.Module, seed: int, m: int, sample: Sequence[Tensor] | Tensor) -> None:
        self.model = model
        self._address = (seed, LAYERS, m)
        self._by_generator, self._by_stream = _draws(model, sample)

    def __call__(self, x: Sequence[Tensor] | Tensor, t0: int, q: int) -> Tensor:
        """The model's output for local iteration q of round t0."""
        return self.through(self.model, x, t0, q)

    @property
    def drops(self) -> bool:
        """Whether there is a `Dropout` in the model that does anything."""
        return self._by_stream

    def quietly(self, x: Tensor, t0: int) -> Tensor:
        """The output for iteration 0 without what `Dropout` does, and without a graph."""
        _pass.quiet = True
        try:
            with torch.no_grad():
                return self(x, t0, 0)
        finally:
            _pass.quiet = False

    def through(self, call: Callable[..., Tensor], x: Sequence[Tensor] | Tensor, t0: int, q: int) -> Tensor:
        """The same by way of a function that computes the model's output from less."""
        with ExitStack() as stack:
            if self._by_generator:
                stack.enter_context(seeded(*self._address, t0, q))
            if self._by_stream:
                stack.enter_context(_drawing(stream(*self._address, t0, q)))
            return call(x)


def _draws(model: nn.Module, sample: Sequence[Tensor] | Tensor) -> tuple[bool, bool]:
    """Whether a forward pass in training mode draws from torch's generator, and whether from the stream of the pass."""
    trial, draws = copy.deepcopy(model).train(), stream(0)  # normalisation layers change their statistics
    with _generator, torch.random.fork_rng(devices=range(torch.cuda.device_count())), _drawing(draws), torch.no_grad():
        before = torch.get_rng_state()
        trial(sample)
        return not torch.equal(before, torch.get_rng_state()), draws.used
