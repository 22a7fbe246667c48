"""`step_size.eta = "auto"`: short trials in one process, before the first round, find a step size.

Each trial has a share of the training rows and steps on most of them; the loss of the others judges it. No row that is
held out is touched. The trials are runs like any other: what they would send between machines is counted, and told
beside the bytes of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from cvfl.config.schema import RunConfig
from cvfl.config.sections import StoppingConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, CvflError
from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.protocol import Decision, Loss, Recipe
from cvfl.rng import stream
from cvfl.runs.record import RangeTest
from cvfl.runtime import Meter, rounds
from cvfl.types import OnStep

MakeRecipe = Callable[[RunConfig, VerticalData], Recipe]
GRID = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
RANGE_TEST = "range test"
MOST_ROWS = 5000
_JUDGES = 5
"""One row in so many judges a trial."""
_ROUNDS = 40
_STEPS = 100
"""Most rounds of a trial, and local steps that are enough."""
_LEAST_ROWS = 50


def find_eta(
    config: RunConfig,
    data: VerticalData,
    recipe_of: MakeRecipe = recipe_for,
    on_step: OnStep = lambda *_: None,
) -> RangeTest:
    """The step size whose trial ends in the lowest loss; the smaller one of two alike."""
    rows, meter, losses = _rows(config, data), Meter(), []
    for done, eta in enumerate(GRID):
        on_step("trying step sizes", done, len(GRID))
        losses.append(_loss(recipe_of(_trial(config, eta, len(rows.train_labels)), rows), rows, meter))
    if not any(math.isfinite(loss) for loss in losses):
        raise ConfigError(f"step_size.eta = 'auto': no step size of {GRID[0]} to {GRID[-1]} learns; give a number")
    told = [loss if math.isfinite(loss) else None for loss in losses]
    best = GRID[losses.index(min(losses))]
    return RangeTest(eta=best, tried=list(GRID), losses=told, bytes=meter.total().total)


def with_eta(config: RunConfig, eta: float) -> RunConfig:
    """The configuration with this step size."""
    return config.model_copy(update={"step_size": config.step_size.model_copy(update={"eta": eta})})


def _rows(config: RunConfig, data: VerticalData) -> VerticalData:
    """Some training rows as training and validation rows; classes that a part would lack have one row more in it."""
    n = len(data.train_labels)
    if n < _LEAST_ROWS:
        raise ConfigError(f"step_size.eta = 'auto' needs {_LEAST_ROWS} training rows, there are {n}; give a number")
    order = torch.from_numpy(stream(config.seed, RANGE_TEST).permutation(n))
    seen = order[:MOST_ROWS]
    judges, steps = seen[: len(seen) // _JUDGES], seen[len(seen) // _JUDGES :]
    if data.loss is not Loss.SQUARED:  # every class must be there to learn from
        missing = [order[data.train_labels[order] == one][:1] for one in torch.unique(data.train_labels)]
        steps = torch.unique(torch.cat([steps, *missing]))
    chosen = data.of_training_rows(steps).without_test_rows()
    held_back = data.of_training_rows(judges)
    return replace(chosen, validation=held_back.train, validation_labels=held_back.train_labels)


def _trial(config: RunConfig, eta: float, rows: int) -> RunConfig:
    """A short run: no stopping, no budget, judged once."""
    count = max(1, min(_ROUNDS, -(-_STEPS // config.local_iterations)))
    short = {
        "rounds": count,
        "epochs": None,
        "batch_size": min(config.batch_size, rows),
        "evaluate_every": count,
        "stopping": StoppingConfig(),
        "decision": Decision(),
        "budget": None,
    }
    return with_eta(config, eta).model_copy(update=short)


def _loss(recipe: Recipe, data: VerticalData, meter: Meter) -> float:
    """The loss of the judging rows at the end; infinite if the trial does not come to one."""
    federation = make_federation(recipe, data)
    try:
        for _ in rounds(*federation.roles, meter):
            pass
    except CvflError:  # it diverged, and a role refused to send what is no number
        return math.inf
    found = federation.server.evaluation
    loss = found.validation["loss"] if found else math.inf
    return loss if math.isfinite(loss) else math.inf
