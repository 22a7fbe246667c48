"""Randomness inside layers, such as dropout, drawn from a named stream.

Layers draw from torch's global generator. A model that does so is found by trying it once, and each of its forward
passes then runs with that generator seeded for its address, one at a time in a process.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from cvfl.rng import INIT, LAYERS, stream

_generator = threading.Lock()


@contextmanager
def seeded(seed: int, *address: str | int) -> Iterator[None]:
    """Run with torch's generator at this address; it is put back afterwards."""
    with _generator, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(stream(seed, *address).seed())
        yield


def initialised(make: Callable[[], nn.Module], seed: int, m: int) -> nn.Module:
    """Build role m's model with the initial parameters that belong to the seed."""
    with seeded(seed, INIT, m):
        return make()


class Forward:
    """Calls role m's view of a model in training mode, with layer randomness addressed by round and local iteration."""

    def __init__(self, model: nn.Module, seed: int, m: int, sample: Sequence[Tensor] | Tensor) -> None:
        self.model = model
        self._address = (seed, LAYERS, m)
        self._random = _draws(model, sample)

    def __call__(self, x: Sequence[Tensor] | Tensor, t0: int, q: int) -> Tensor:
        """The model's output for local iteration q of round t0."""
        return self.through(self.model, x, t0, q)

    def through(self, call: Callable[..., Tensor], x: Sequence[Tensor] | Tensor, t0: int, q: int) -> Tensor:
        """The same by way of a function that computes the model's output from less."""
        with seeded(*self._address, t0, q) if self._random else nullcontext():
            return call(x)


def _draws(model: nn.Module, sample: Sequence[Tensor] | Tensor) -> bool:
    """Whether a forward pass in training mode uses torch's generator."""
    trial = copy.deepcopy(model).train()  # normalisation layers change their statistics
    with _generator, torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        before = torch.get_rng_state()
        trial(sample)
        return not torch.equal(before, torch.get_rng_state())
