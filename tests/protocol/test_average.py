"""Means of weights: the exponential mean that they say, and what a restart needs of it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cvfl.protocol.learning.average import Average


def moved(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for value in model.parameters():
            value.add_(by)
        for statistic in model.buffers():
            statistic.add_(1)


def test_newer_rounds_lead_and_the_first_weights_are_forgotten() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    average, expected = Average(model, 0.5), float(model.weight.detach())
    for t in range(6):
        moved(model, t + 1.0)
        average.update()
        keep = min(0.5, (1 + t) / (10 + t))
        expected = keep * expected + (1 - keep) * float(model.weight.detach())
    assert abs(float(average.model.weight) - expected) < 1e-12


def test_statistics_are_taken_as_they_are() -> None:
    model = nn.BatchNorm1d(3)
    average = Average(model, 0.9)
    moved(model, 1.0)
    average.update()
    assert torch.equal(average.model.running_mean, model.running_mean)
    assert not torch.equal(average.model.weight, model.weight)


def test_without_a_decay_it_is_the_model_itself() -> None:
    model = nn.Linear(2, 2)
    average = Average(model, None)
    average.update()
    assert average.model is model
    assert average.state_dict() == {}


def test_it_goes_on_where_it_was() -> None:
    model = nn.Linear(2, 2)
    average = Average(model, 0.9)
    moved(model, 1.0)
    average.update()
    later = Average(copy.deepcopy(model), 0.9)
    later.load_state_dict(copy.deepcopy(average.state_dict()))
    for one in (average, later):
        moved(one._trained, 2.0)
        one.update()
    assert torch.equal(average.model.weight, later.model.weight)
