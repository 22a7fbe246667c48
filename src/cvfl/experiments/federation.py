"""From a configuration and data to the roles of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cvfl import models as networks
from cvfl.compress import build
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, suggest
from cvfl.experiments.config import RunConfig
from cvfl.protocol import Codecs, Holding, Labels, Loss, Optimizer, Party, Plan, Recipe, Rows, Server, StepSize
from cvfl.protocol.layers import initialised
from cvfl.protocol.recipe import MakeModel


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


def make_recipe(
    config: RunConfig,
    data: VerticalData,
    models: Sequence[MakeModel] | None = None,
    server_model: MakeModel | None = None,
) -> Recipe:
    """Plan, models and compressors for this data; own models take the place of the configured ones.

    A party's model maps its rows to B x P_m, the server model maps the list of all embeddings to B x outputs.
    """
    loss, dtype = config.loss or data.loss, getattr(torch, config.precision)
    if strange := [name for name in config.party if name not in data.names]:
        raise ConfigError(f"party.{strange[0]}: no such party{suggest(strange[0], data.names)}")
    if (loss is Loss.MULTICLASS) != (data.loss is Loss.MULTICLASS):
        raise ConfigError(f"loss: {loss} does not fit labels of a {data.loss} task")
    makers, widths = _party_models(config, data, models, dtype)
    head = config.server_model
    return Recipe(
        plan=_plan(config, data, widths, loss, dtype),
        names=data.names,
        models=makers,
        server_model=server_model or networks.server_model(head.name, widths, data.outputs, head.hidden, dtype),
        compressors=tuple(partial(build, config.compressor_of(name)) for name in data.names),
        server_compressor=partial(build, config.server_compressor),
        gradient_compressor=partial(build, config.gradient_compressor),
    )


def _party_models(
    config: RunConfig, data: VerticalData, models: Sequence[MakeModel] | None, dtype: torch.dtype
) -> tuple[tuple[MakeModel, ...], tuple[int, ...]]:
    """How to make each party's model, and the width of its embedding."""
    if models is None:
        sections = [config.model_of(name) for name in data.names]
        categories = data.categories or ((),) * len(data.names)
        makers = [
            networks.party_model(
                model.name,
                tuple(rows.shape[1:]),
                model.width,
                model.hidden,
                dtype,
                categories=codes,
            )
            for model, rows, codes in zip(sections, data.train, categories, strict=True)
        ]
        return tuple(makers), tuple(model.width for model in sections)
    if len(models) != len(data.names):
        raise ConfigError(f"{len(models)} models for {len(data.names)} parties")
    trials = [initialised(make, config.seed, m).eval() for m, make in enumerate(models, start=1)]
    with torch.no_grad():
        shapes = [
            tuple(trial(table[torch.arange(min(2, len(table)))]).shape)
            for trial, table in zip(trials, data.train, strict=True)
        ]
    for name, shape in zip(data.names, shapes, strict=True):
        if len(shape) != 2:
            raise ConfigError(f"{name}: a party's model gives B x P numbers, not {shape}")
    return tuple(models), tuple(shape[1] for shape in shapes)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device: {name!r} is not available here") from None


def _plan(config: RunConfig, data: VerticalData, widths: tuple[int, ...], loss: Loss, dtype: torch.dtype) -> Plan:
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
        widths=widths,
        loss=loss,
        step_size=StepSize(**config.step_size.model_dump()),
        optimizer=Optimizer(**config.optimizer.model_dump()),
        algorithm=config.algorithm,
        evaluate_every=config.evaluate_every or epoch,
        validation_rows=len(data.validation_labels),
        dtype=dtype,
        device=_device(config.device),
    )


def make_federation(recipe: Recipe, data: VerticalData) -> Federation:
    """All roles in this process, sharing codecs so that each packet is decoded once."""
    codecs, device = recipe.codecs(), recipe.plan.device
    labels = Labels(*(y.to(device) for y in (data.train_labels, data.test_labels, data.validation_labels)))
    shared = labels.train if recipe.plan.algorithm == 1 else None
    parties = tuple(
        recipe.party(m, Holding(name, *_held(data, m - 1, device), shared, data.augment), codecs)
        for m, name in enumerate(data.names, start=1)
    )
    return Federation(recipe, codecs, recipe.server(labels, codecs), parties)


def _held(data: VerticalData, at: int, device: torch.device) -> tuple[Rows, tuple[Rows, ...]]:
    """A party's training rows and its held-out rows; what is in memory goes to the device once."""
    held_out = (*data.validation[at : at + 1], data.test[at])
    train, *rest = (rows.to(device) if isinstance(rows, Tensor) else rows for rows in (data.train[at], *held_out))
    return train, tuple(rest)
