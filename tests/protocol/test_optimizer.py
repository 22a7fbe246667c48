"""Optimizers: those of torch to the bit, whatever their name, and gradients that are shortened."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from cvfl.protocol import Optimizer
from cvfl.protocol.learning.optimizer import _optimizers

KINDS = ("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD")


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


X = torch.linspace(-1, 1, 20).reshape(5, 4)


def steps(net: nn.Module, how: Optimizer, count: int = 5) -> list[torch.Tensor]:
    """The parameters after some steps, each with a step size of its own."""
    own = how.of(net)
    for n in range(count):
        own.take(lambda: net(X).square().sum().backward(), 0.1 / (n + 1))
    return [p.detach().clone() for p in net.parameters()]


def torch_steps(net: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> list[torch.Tensor]:
    """The same by torch alone."""
    for n in range(count):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (n + 1)
        optimizer.zero_grad()
        net(X).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("name", KINDS)
def test_steps_are_torch_s(name: str) -> None:
    ours, theirs, how = model(), model(), Optimizer(name=name, weight_decay=0.01)
    plain = getattr(torch.optim, name)(theirs.parameters(), lr=0.1, weight_decay=0.01)
    found = steps(ours, how)
    assert all(map(torch.equal, found, torch_steps(theirs, plain)))
    assert not any(map(torch.equal, found, (p.detach() for p in model().parameters())))


def test_all_of_torch_s_are_tested() -> None:
    assert sorted(_optimizers()) == sorted(name.lower() for name in KINDS)


def test_momentum_is_for_those_that_have_it() -> None:
    for name, differs in (("sgd", True), ("rmsprop", True), ("adam", False)):
        nets = [model(), model()]
        plain, with_it = (Optimizer(name=name, momentum=momentum) for momentum in (0.0, 0.9))
        one, other = (steps(net, how) for net, how in zip(nets, (plain, with_it), strict=True))
        assert differs != all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("adamv", "there is no optimizer 'adamv'; did you mean 'adam"),
        ("LBFGS", "there is no optimizer 'LBFGS'"),
        ("Muon", "there is no optimizer 'Muon'"),
        ("lr_scheduler", "there is no optimizer"),
    ],
)
def test_what_is_no_optimizer(name: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Optimizer(name=name)


def test_a_gradient_is_shortened_to_the_norm_that_is_given() -> None:
    for clip, moved in ((0.5, 0.05), (1e6, None)):
        net, how = model(), Optimizer(clip=clip)
        before = [p.detach().clone() for p in net.parameters()]
        after = steps(net, how, 1)
        length = sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True)) ** 0.5
        unclipped = steps(model(), Optimizer(), 1)
        if moved is None:
            assert all(map(torch.equal, after, unclipped))
        else:
            assert length == pytest.approx(moved, rel=1e-4)  # 0.1 times the norm
