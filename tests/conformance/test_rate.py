"""The remark on Theorem 1, measured: with eta = c/sqrt(T) the mean squared gradient falls like 1/sqrt(T)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cvfl.data import VerticalData
from cvfl.federation.builder.machines import Federation
from cvfl.protocol import Loss
from cvfl.runtime import Meter, rounds
from cvfl.theory.bounds import scalar_error
from cvfl.theory.choice import bits_for_error, rate_target
from federations import data, federation

Q = 2
SHORT, LONG = (16, 32, 64, 128, 256), (32, 128, 512, 2048)
both_lengths = pytest.mark.parametrize(
    "lengths", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"]
)


def squared_gradient(fed: Federation, table: VerticalData) -> float:
    """||grad F(Theta)||^2 of the whole objective: all rows, all roles, nothing compressed or stale."""
    models = [fed.server.model, *(party.model for party in fed.parties)]
    values = [value for model in models for value in model.parameters()]
    outputs = models[0]([model(x) for model, x in zip(models[1:], table.train, strict=True)])
    gradients = torch.autograd.grad(table.loss(outputs, table.train_labels), values)
    return float(sum(gradient.square().sum() for gradient in gradients))


def mean_squared_gradient(R: int, compressor: str) -> float:
    """The left-hand side of Theorem 1, on tanh networks and a random batch of four rows."""
    table = data(Loss.SQUARED, M=2, rows=64, width=3)
    fed = federation(
        table,
        rounds=R,
        batch_size=4,
        local_iterations=Q,
        compressor=compressor,
        server_compressor=compressor,
        step_size={"eta": 1.0, "schedule": "sqrt"},
        party_model={"width": 2, "hidden": [3]},
        evaluate_every=10 * R,
    )
    every = max(1, R // 128)
    found = [
        squared_gradient(fed, table) for report in rounds(fed.server, fed.parties, Meter(), 1) if report.t0 % every == 0
    ]
    return float(np.mean(found))


def slope(lengths: tuple[int, ...], values: list[float]) -> float:
    """Exponent of T in a power law fitted to the values."""
    return float(np.polyfit(np.log([R * Q for R in lengths]), np.log(values), 1)[0])


@both_lengths
@pytest.mark.parametrize("compressed", [False, True])
def test_the_rate_is_at_least_one_over_the_root_of_t(compressed: bool, lengths: tuple[int, ...]) -> None:
    """With scalar quantization the bits grow as Table 1 asks: error at most c/sqrt(T)."""
    values = []
    for R in lengths:
        bits = bits_for_error(scalar_error, 4 * 2, -1.0, 1.0, rate_target(R * Q, c=0.5))
        values.append(mean_squared_gradient(R, f"scalar:bits={bits}" if compressed else "identity"))
    assert slope(lengths, values) < -0.5 + 0.05
    assert values[-1] < values[0] / math.sqrt(lengths[-1] / lengths[0]) * 2


@both_lengths
def test_one_bit_for_ever_stalls(lengths: tuple[int, ...]) -> None:
    """The regression can fail: with a constant large error the gradient stops falling at that rate."""
    assert slope(lengths, [mean_squared_gradient(R, "topk:bits=1") for R in lengths]) > -0.4
