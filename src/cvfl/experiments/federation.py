"""From a configuration and data to the roles of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cvfl import data as datasets
from cvfl.compress import build
from cvfl.data import VerticalData
from cvfl.errors import ConfigError
from cvfl.experiments.config import RunConfig
from cvfl.models import party_model, server_model
from cvfl.protocol import Codecs, Holding, Labels, Loss, Optimizer, Party, Plan, Recipe, Server, StepSize


@dataclass(frozen=True)
class Federation:
    """All roles of a run in one process."""

    recipe: Recipe
    codecs: Codecs
    server: Server
    parties: tuple[Party, ...]

    @property
    def plan(self) -> Plan:
        """The plan that all roles share."""
        return self.recipe.plan


def load_data(config: RunConfig) -> VerticalData:
    """The data that a configuration names."""
    dtype = getattr(torch, config.precision)
    return datasets.load(config.data.name, config.data.parties, config.seed, config.data.test_share, dtype)


def make_recipe(config: RunConfig, data: VerticalData) -> Recipe:
    """Plan, models and compressors for this data."""
    loss, dtype = config.loss or data.loss, getattr(torch, config.precision)
    if (loss is Loss.MULTICLASS) != (data.loss is Loss.MULTICLASS):
        raise ConfigError(f"loss: {loss} does not fit labels of a {data.loss} task")
    M, model = len(data.names), config.party_model
    widths = (model.width,) * M
    plan = _plan(config, data, widths, loss, dtype)
    return Recipe(
        plan=plan,
        names=data.names,
        models=tuple(
            party_model(model.name, tuple(table.shape[1:]), model.width, model.hidden, dtype) for table in data.train
        ),
        server_model=server_model(config.server_model.name, widths, data.outputs, config.server_model.hidden, dtype),
        compressors=(partial(build, config.compressor),) * M,
        server_compressor=partial(build, config.server_compressor),
        gradient_compressor=partial(build, config.gradient_compressor),
    )


def _plan(config: RunConfig, data: VerticalData, widths: Sequence[int], loss: Loss, dtype: torch.dtype) -> Plan:
    rows = len(data.train_labels)
    if config.batch_size > rows:
        raise ConfigError(f"batch_size: {config.batch_size} is more than the {rows} training rows")
    epoch = -(-rows // config.batch_size)
    return Plan(
        seed=config.seed,
        rounds=config.rounds or (config.epochs or 1) * epoch,
        Q=config.local_iterations,
        batch_size=config.batch_size,
        rows=rows,
        test_rows=len(data.test_labels),
        widths=tuple(widths),
        loss=loss,
        step_size=StepSize(**config.step_size.model_dump()),
        optimizer=Optimizer(**config.optimizer.model_dump()),
        algorithm=config.algorithm,
        evaluate_every=config.evaluate_every or epoch,
        dtype=dtype,
    )


def make_federation(recipe: Recipe, data: VerticalData) -> Federation:
    """All roles in this process, sharing codecs so that each packet is decoded once."""
    codecs = recipe.codecs()
    labels = data.train_labels if recipe.plan.algorithm == 1 else None
    parties = tuple(
        recipe.party(m, Holding(name, data.train[m - 1], data.test[m - 1], labels), codecs)
        for m, name in enumerate(data.names, start=1)
    )
    return Federation(recipe, codecs, recipe.server(Labels(data.train_labels, data.test_labels), codecs), parties)
