"""What a sender's compressor learns from a round: what the loss sees of a tensor, and whether what was sent will do.

    curvature       gradients in h for labels that the model would draw itself: where the loss is sensitive to an error
    stake           the loss, or what was learned so far, if that is less: what an error may take a small share of
    certificate     the gradient that the decoded ĥ causes beside that of h: their cosine, the ratio of their lengths

The sender computes all of it from what it has anyway: the certificate costs no byte, and is there for every message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cvfl.protocol.coding.codec import Codec
from cvfl.protocol.learning.objective import Objective

_FEW = 10_000  # held-out rows from which on their number does not matter
_DIGITS = 6  # of a certificate, which travels as text: more would say nothing
Outputs = Callable[[Tensor], Tensor]
"""The model's outputs as a function of what is sent, all else given."""


@dataclass(frozen=True)
class Certificate:
    """How the gradient that a message causes agrees with the exact one: their cosine, and their lengths as a ratio.

    `ease` is what is left of the tolerance after it: 1 as long as messages agree well enough.
    """

    cosine: float
    ratio: float
    ease: float

    @classmethod
    def of(cls, exact: float, across: float, caused: float, ease: float) -> Certificate | None:
        """From the products of both gradients; where the exact one vanishes there is nothing to compare with."""
        squared = caused / exact if exact > 0 else math.inf
        if not (0 <= squared < math.inf and math.isfinite(across / exact)):
            return None
        cosine = across / exact / math.sqrt(squared) if squared > 0 else 0.0
        return cls(*(float(f"{x:.{_DIGITS}g}") for x in (min(1.0, max(-1.0, cosine)), math.sqrt(squared), ease)))


def worst(found: Iterable[Certificate | None]) -> Certificate | None:
    """One for several messages: of each figure the worst."""
    there = [one for one in found if one is not None]
    if not there:
        return None
    ratio = max((one.ratio for one in there), key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf)
    return Certificate(min(one.cosine for one in there), ratio, min(one.ease for one in there))


@dataclass(frozen=True)
class Lesson:
    """What is to be learned of a tensor that is sent: gradients in it, and the loss."""

    gradient: Tensor
    loss: float
    drawn: Tensor
    """The gradient for labels that the model would draw itself."""
    learned: float
    plain: Tensor
    """The gradient of the outputs themselves, with random signs: how they, not the loss, change with what is sent."""
    spread: float
    """Half the variance of the outputs."""

    @property
    def stake(self) -> float:
        """What an error may take a small share of."""
        return min(self.loss, self.learned)

    def teach(self, codec: Codec, sent: Tensor, senders: int = 1) -> None:
        """Let a compressor learn what it wants to know; errors of so many senders come together."""
        if codec.follows:
            codec.observe(self.drawn, self.stake / senders, sent)
        else:
            codec.observe(self.gradient, self.loss)

    def teach_held_out(self, codec: Codec, sent: Tensor, senders: int, rows: int) -> None:
        """The same for so many held-out rows: all outputs count alike, also of rows that training has by heart.

        A metric of few rows moves more by the same error, so it gets less of it.
        """
        if codec.follows:
            codec.observe(self.plain, self.spread / senders * min(1.0, rows / _FEW), sent)


def lesson(outputs: Outputs, h: Tensor, labels: Tensor, loss: Objective, u: Tensor) -> Lesson:
    """The lesson of a round, with one random number a row."""
    leaf = h.detach().requires_grad_()
    out = outputs(leaf)
    z, value = out.reshape(len(out), -1), loss(out, labels)
    gradient, plain = (
        torch.autograd.grad(sum_, leaf, retain_graph=True)[0] for sum_ in (value, (z * _signs(u, z)).sum(1).mean())
    )
    spread = 0.5 * float((z - z.mean(0)).detach().double().square().sum(1).mean())
    learned = loss.learned(out)
    # The loss by randomised labels says little of that by true ones, and with weights may be below zero by chance.
    stake = float(value.detach()) if loss.noise is None else learned
    return Lesson(gradient, stake, _drawn(out, leaf, loss, u), learned, plain, spread)


def prime(codec: Codec, outputs: Outputs, h: Tensor, loss: Objective, u: Tensor) -> None:
    """Let a compressor that follows the loss begin with the curvature before the first message."""
    leaf = h.detach().requires_grad_()
    codec.prime(_drawn(outputs(leaf), leaf, loss, u), h)


def certify(
    codec: Codec, outputs: Outputs, h: Tensor, exact: Tensor, decoded: Tensor, labels: Tensor, loss: Objective
) -> Certificate | None:
    """Compare the gradient that a message causes with the exact one, that in h, and let the compressor know."""
    leaf = decoded.detach().requires_grad_()
    (caused,) = torch.autograd.grad(loss(outputs(leaf), labels), leaf)
    products = agreement(exact, h, caused, decoded)
    codec.certify(*products)
    return Certificate.of(*products, codec.ease)


def agreement(g: Tensor, h: Tensor, g_sent: Tensor, h_sent: Tensor) -> tuple[float, float, float]:
    """Products of the gradients that a linear layer over h has, exact and caused: sums of g h' over the rows."""
    a, b, x, y = (t.detach().reshape(len(t), -1).double() for t in (g, g_sent, h, h_sent))
    if a.shape[1] <= len(a):
        G, G_sent = a.t() @ x, b.t() @ y
        return float((G * G).sum()), float((G * G_sent).sum()), float((G_sent * G_sent).sum())
    # The same from products of rows, which are fewer than the columns.
    pairs = ((a, a, x, x), (a, b, x, y), (b, b, y, y))
    exact, across, caused = (float(((s @ t.t()) * (u @ v.t())).sum()) for s, t, u, v in pairs)
    return exact, across, caused


def _signs(u: Tensor, z: Tensor) -> Tensor:
    """1 or -1 for every output of every row, any two of them independent, by the bits of one random number a row.

    Output j has the parity of the bits of u that are ones in j + 1.
    """
    bits = (u * 2**24).long()[:, None] & torch.arange(1, z.shape[1] + 1, device=u.device)
    for half in (16, 8, 4, 2, 1):
        bits = bits ^ (bits >> half)
    return (1 - 2 * (bits & 1)).to(z)


def _drawn(out: Tensor, leaf: Tensor, loss: Objective, u: Tensor) -> Tensor:
    return torch.autograd.grad(loss.by_class(out, loss.draw(out, u)), leaf)[0]
