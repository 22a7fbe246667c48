"""What compressors learn from a round, against the exact curvature, loss and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cvfl.compress import Shaped, TopK
from cvfl.protocol import Codec, Loss
from cvfl.protocol.coding.follow import Lesson, agreement, certify, lesson, prime
from cvfl.protocol.learning.objective import Objective

B, P = 6, 4
OUTPUTS = {Loss.BINARY: 1, Loss.MULTICLASS: 5, Loss.SQUARED: 1}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Linear:
    """h W' + c, with labels."""

    def __init__(self, loss: Loss, outputs: int | None = None, rows: int = B) -> None:
        self.loss, self.h = Objective(loss), numbers(rows, P)
        self.W, self.c = numbers(outputs or OUTPUTS[loss], P, seed=1), numbers(outputs or OUTPUTS[loss], seed=2)
        self.y = loss.labels(torch.arange(rows) % 2, torch.float64)

    def __call__(self, h: Tensor) -> Tensor:
        return h @ self.W.t() + self.c

    def lesson(self, u: Tensor) -> Lesson:
        return lesson(self, self.h, self.y, self.loss, u)

    def curvature(self) -> Tensor:
        """The mean over the rows of the second derivative of their own loss: a linear model has no other part."""

        def own(i: int) -> Tensor:
            return torch.autograd.functional.hessian(lambda h: self.loss(self(h[None]), self.y[i : i + 1]), self.h[i])

        return torch.stack([own(i) for i in range(len(self.h))]).mean(0)


@pytest.mark.parametrize("loss", list(Loss))
def test_drawn_labels_have_the_curvature_of_the_loss(loss: Loss) -> None:
    """The mean outer product of the samples' own gradients, over all that may be drawn."""
    model, total, draws = Linear(loss), torch.zeros(P, P, dtype=torch.float64), 1000
    for i in range(draws):
        g = B * model.lesson(torch.full((B,), (i + 0.5) / draws, dtype=torch.float64)).drawn
        total += g.t() @ g / B / draws
    exact = model.curvature()
    torch.testing.assert_close(total, exact, rtol=0, atol=2e-3 * float(exact.trace()))


def test_every_row_draws_its_own_label() -> None:
    model = Linear(Loss.BINARY)
    p = model(model.h).sigmoid().reshape(-1)
    for u, labels in ((p - 1e-9, torch.ones(B)), (p + 1e-9, torch.zeros(B))):
        expected = (p - labels)[:, None] * model.W / B
        torch.testing.assert_close(model.lesson(u).drawn, expected)
    mixed = torch.where(torch.arange(B) % 2 == 0, p - 1e-9, p + 1e-9)
    expected = (p - (torch.arange(B) % 2 == 0).double())[:, None] * model.W / B
    torch.testing.assert_close(model.lesson(mixed).drawn, expected)


@pytest.mark.parametrize("outputs", [1, 10, 49, 100])
def test_plain_gradients_have_the_curvature_of_the_outputs(outputs: int) -> None:
    """W' W: however many outputs there are, any two of them have independent signs."""
    rows = 20_000
    model = Linear(Loss.MULTICLASS if outputs > 1 else Loss.BINARY, outputs, rows)
    model.W = torch.eye(max(outputs, P), dtype=torch.float64)[:outputs]
    model.h = torch.zeros(rows, model.W.shape[1], dtype=torch.float64)
    u = torch.rand(rows, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    g = rows * model.lesson(u).plain[:, :outputs]
    assert set(g.unique().tolist()) == {-1.0, 1.0}
    assert float(g.mean(0).abs().max()) < 6 / math.sqrt(rows)
    torch.testing.assert_close(g.t() @ g / rows, torch.eye(outputs).double(), rtol=0, atol=6 / math.sqrt(rows))


@pytest.mark.parametrize("loss", list(Loss))
def test_the_lesson_is_of_the_loss_and_its_gradient(loss: Loss) -> None:
    model = Linear(loss)
    leaf = model.h.clone().requires_grad_()
    value = loss(model(leaf), model.y)
    value.backward()
    found = model.lesson(torch.full((B,), 0.5, dtype=torch.float64))
    assert found.loss == pytest.approx(float(value.detach()))
    torch.testing.assert_close(found.gradient, leaf.grad)
    z = model(model.h)
    assert found.spread == pytest.approx(0.5 * float((z - z.mean(0)).square().sum()) / B)
    assert found.learned == loss.learned(z)
    assert found.stake == min(found.loss, found.learned)


@pytest.mark.parametrize("loss", list(Loss))
def test_what_was_learned_is_the_loss_over_saying_the_mean(loss: Loss) -> None:
    """For labels that the model itself would draw, and outputs that differ little."""
    z = numbers(OUTPUTS[loss], seed=4) + 1e-3 * numbers(50, OUTPUTS[loss], seed=5)
    same = z.mean(0).expand_as(z)
    match loss:
        case Loss.BINARY:
            p = z.sigmoid()
            own = torch.nn.functional.binary_cross_entropy_with_logits
            rise = own(same, p) - own(z, p)
        case Loss.MULTICLASS:
            p = z.softmax(1)
            rise = (p * (z.log_softmax(1) - same.log_softmax(1))).sum(1).mean()
        case Loss.SQUARED:
            rise = loss(same, z.reshape(-1))
    assert loss.learned(z) == pytest.approx(float(rise), rel=5e-3)
    assert loss.learned(same) == pytest.approx(0.0, abs=1e-20)


def cosine(exact: float, across: float, caused: float) -> float:
    return across / math.sqrt(exact * caused)


@pytest.mark.parametrize("rows", [2, 7])
def test_agreement(rows: int) -> None:
    """Products of the gradients of a layer over h, which are sums of g h' over the rows, few or many."""
    g, h, g_sent, h_sent = (numbers(rows, width, seed=seed) for seed, width in enumerate((3, 4, 3, 4)))
    one, two = g.t() @ h, g_sent.t() @ h_sent
    expected = [float((a * b).sum()) for a, b in ((one, one), (one, two), (two, two))]
    assert list(agreement(g, h, g_sent, h_sent)) == pytest.approx(expected)
    assert cosine(*agreement(g, h, g, h)) == pytest.approx(1)
    assert cosine(*agreement(g, h, -g, h)) == pytest.approx(-1)
    assert cosine(*agreement(g, h, -g, -h)) == pytest.approx(1)
    assert agreement(g, h, 2 * g, h)[2] == pytest.approx(4 * expected[0])


def test_a_compressor_that_follows_learns_the_curvature_and_another_the_gradient() -> None:
    model = Linear(Loss.MULTICLASS)
    learnt = model.lesson(torch.full((B,), 0.5, dtype=torch.float64))
    follows, other = Codec(Shaped(), 0, 1, "one"), Codec(TopK(8), 0, 1, "one")
    for codec in (follows, other):
        learnt.teach(codec, model.h, senders=4)
    shaped, topk = follows.compressor, other.compressor
    assert isinstance(shaped, Shaped)
    assert shaped.aim == learnt.stake / 4
    torch.testing.assert_close(shaped.curvature.kept, B * learnt.drawn.t() @ learnt.drawn)
    torch.testing.assert_close(shaped.moments.kept, model.h.t() @ model.h / B)
    expected = TopK(8)
    expected.observe(learnt.gradient, learnt.loss)
    assert all(torch.equal(value, expected.state_dict()[key]) for key, value in topk.state_dict().items())
    held_out = Codec(Shaped(), 0, 1, "one")
    learnt.teach_held_out(held_out, model.h, senders=4, rows=1000)
    assert held_out.compressor.aim == learnt.spread / 4 * 0.1  # type: ignore[attr-defined]


def test_prime_and_certify_reach_the_compressor() -> None:
    model = Linear(Loss.BINARY)
    codec, u = Codec(Shaped(1e-3), 0, 1, "one"), torch.full((B,), 0.5, dtype=torch.float64)
    prime(codec, model, model.h, model.loss, u)
    shaped = codec.compressor
    assert isinstance(shaped, Shaped)
    g = model.lesson(u).drawn
    torch.testing.assert_close(shaped.curvature.kept, B * g.t() @ g)
    exact = model.lesson(u).gradient
    certify(codec, model, model.h, exact, model.h, model.y, model.loss)
    assert shaped.ease == 1.0
    certify(codec, model, model.h, exact, -3 * model.h, model.y, model.loss)
    assert shaped.ease == 0.5
