"""A penalty on what a party's columns can be got back from its embedding: for each step, the best decoder of its batch.

    phi(h)   h beside random bends of it, new ones for every step, each of unit variance over the batch
    R^2      what a ridge regression of the party's columns on phi(h) explains of them, from 0 to 1

A decoder that is trained beside the model can be dodged: the model turns its embedding faster than the decoder follows,
and a fresh attacker reads it none the worse. That of a batch is a formula, always at its best, and has no state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cvfl.protocol.learning.layers import Forward
from cvfl.rng import GUARD, Stream, stream

_BENDS = 24
"""Random features of an embedding: the more, the more crooked ways to read it are seen, also by chance."""
_RIDGE = 0.03
"""Beside features of unit variance; it keeps a batch from explaining what it does by chance alone."""
_STEPS, _STEP = 40, 0.005
"""Of Adam, before the first message: many more, or longer ones, leave a model that is slow to learn."""
_FLAT = 1e-6
"""What varies by less is constant."""


def explained(h: Tensor, columns: Tensor, bends: Stream) -> Tensor:
    """The share of the columns' variance that a decoder of this batch explains; random bends come from the stream.

    Codes of categories count as numbers.
    """
    x = _unit(columns.detach().reshape(len(columns), -1).double())
    features = _features(_unit(h.double()), bends)
    gram = features.t() @ features / len(h) + _RIDGE * torch.eye(features.shape[1], dtype=torch.float64)
    both = features.t() @ x / len(h)
    share: Tensor = (both * torch.linalg.solve(gram, both)).sum() / max(x.shape[1], 1)
    return share


def penalty_slope(h: Tensor, columns: Tensor, strength: float, bends: Stream) -> Tensor:
    """The gradient in h of the penalty, at one party: `strength` times the explained share of its columns."""
    leaf = h.detach().cpu().requires_grad_()
    if len(leaf) < 2:
        return torch.zeros_like(h)
    share = explained(leaf, columns.cpu(), bends)
    (slope,) = torch.autograd.grad(share, leaf)
    most = len(leaf) ** -0.5  # about as long as it is for an embedding of unit variance; a smaller one has longer ones
    bounded: Tensor = slope * (strength * (most / slope.norm().clamp_min(most)))
    return bounded.to(h.device)


def hide(model: nn.Module, rows: Callable[[int], Tensor], sample: Tensor, seed: int, m: int) -> None:
    """Steps on the penalty alone before the first message, in which a fresh model would show most.

    `rows` gives the training rows of a batch by its number, `sample` two rows of any kind.
    """
    forward = Forward(model.train(), seed, m, sample)
    steps = torch.optim.Adam(model.parameters(), lr=_STEP)
    for step in range(_STEPS):
        x = rows(step)
        if len(x) < 2:  # the party holds next to none of the batch, and normalisation layers want two
            continue
        h = forward(x, -1 - step, 0)  # no round has this address
        steps.zero_grad()
        torch.autograd.backward(h, penalty_slope(h, x, 1.0, stream(seed, GUARD, m, -1 - step)))
        steps.step()


def _features(h: Tensor, bends: Stream) -> Tensor:
    """An embedding beside random bends of it."""
    drawn = torch.from_numpy(bends.uniform((h.shape[1] + 1) * _BENDS)).reshape(h.shape[1] + 1, _BENDS)
    W = 4 * drawn - 2
    return torch.cat([h, _unit(torch.tanh(h @ W[:-1] + W[-1]))], 1)


def _unit(x: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1 over the batch; what is constant there is 0."""
    centred = x - x.mean(0)
    deviation = centred.square().mean(0).clamp_min(_FLAT**2).sqrt()
    return centred / deviation
