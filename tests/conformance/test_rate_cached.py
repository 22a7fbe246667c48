"""Local steps on rows that were sent before: the rate stays, and what is recalled is off by no more than the step size.

A convex federation: each party has a linear model, the server adds them up, the loss is squared, and labels have noise
that no column explains. An epoch is 16 rounds, so what is recalled is up to 32 rounds old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from conformance.test_rate import squared_gradient
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.models.server import Bias, Sum
from cvfl.protocol import Loss
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds
from federations import config, data

Q, ROWS, B, WIDTH = 4, 64, 4, 3
EPOCH = ROWS // B
SHORT, LONG = (16, 32, 64, 128, 256), (32, 128, 512, 2048)
"""Rounds of the runs that are compared."""


def convex(R: int, local_rows: str, compressor: str) -> tuple[Federation, VerticalData]:
    table = data(Loss.SQUARED, M=2, rows=ROWS, width=WIDTH)
    noise = 2 * torch.from_numpy(stream(6, "noise").uniform(ROWS)) - 1
    table = replace(table, train_labels=table.train_labels + noise)
    settings = config(
        rounds=R,
        batch_size=B,
        local_iterations=Q,
        local_rows=local_rows,
        compressor=compressor,
        step_size={"eta": 0.5, "schedule": "sqrt"},
        party_model={"name": "linear", "width": 1},
        first_layer="server",
        evaluate_every=10 * R,
    )
    models = [lambda: nn.Linear(WIDTH, 1).double()] * 2
    recipe = recipe_for(settings, table, models, lambda: Sum(Bias(torch.zeros(1, dtype=torch.float64))))
    return make_federation(recipe, table), table


def watched(R: int, local_rows: str, compressor: str) -> Iterator[tuple[int, Federation, VerticalData]]:
    """The federation after every round: the first ones are few and have most of the gradient."""
    fed, table = convex(R, local_rows, compressor)
    for report in rounds(fed.server, fed.parties, Meter(), 1):
        yield report.t0, fed, table


def mean_squared_gradient(R: int, local_rows: str, compressor: str) -> float:
    """Of the whole objective: nothing compressed, stale or left out."""
    return float(np.mean([squared_gradient(fed, table) for _, fed, table in watched(R, local_rows, compressor)]))


def mean_staleness(R: int) -> float:
    """Squared difference of what all roles recall from what it would be now, a row and party, from the second epoch."""
    every_row, found = torch.arange(ROWS), []
    for t0, fed, table in watched(R, "cached", "identity"):
        if EPOCH <= t0 < R - 1:
            for party, x in zip(fed.parties, table.train, strict=True):
                recalled = fed.server.exchange.recall(party.m, every_row, t0 + 1)
                found.append(float((recalled - party.model(x)).detach().square().mean()))
    return float(np.mean(found))


def slope(lengths: tuple[int, ...], values: list[float]) -> float:
    """Exponent of T in a power law fitted to the values."""
    return float(np.polyfit(np.log([R * Q for R in lengths]), np.log(values), 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compressor", "lengths"),
    [
        ("identity", SHORT),
        ("feedback(scalar:bits=2)", SHORT),
        ("feedback(entropy(shaped))", SHORT),
        ("identity", LONG),
    ],
)
def test_with_cached_rows_the_rate_is_that_of_the_batch(compressor: str, lengths: tuple[int, ...]) -> None:
    """At least 1/sqrt(T) for both, with eta = c/sqrt(T), and neither is behind by more than a third at the end."""
    batch, cached = ([mean_squared_gradient(R, rows, compressor) for R in lengths] for rows in ("batch", "cached"))
    assert slope(lengths, batch) < -0.5
    assert slope(lengths, cached) < -0.5
    assert cached[-1] < 4 / 3 * batch[-1]


def test_what_is_recalled_is_off_by_the_square_of_the_step_size() -> None:
    """With eta^2 = c^2 / T its squared error falls at least like 1/T."""
    lengths = (4 * EPOCH, 8 * EPOCH, 16 * EPOCH)
    assert slope(lengths, [mean_staleness(R) for R in lengths]) < -1
