"""From a configuration and data to the roles of a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cvfl import models as networks
from cvfl.compress import build
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, suggest
from cvfl.federation.modes import check_sum, label_holder, masked, release_of, session_secrets
from cvfl.privacy.relay import Relay, sealed
from cvfl.protocol import (
    Codecs,
    Holding,
    Labels,
    Loss,
    Optimizer,
    Party,
    PartyMachine,
    Plan,
    Recipe,
    Rows,
    Server,
    ServerMachine,
    StepSize,
)
from cvfl.protocol.fusion import Foldable
from cvfl.protocol.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.types import SERVER

_CPU = torch.device("cpu")
Roles = tuple[ServerMachine, tuple[PartyMachine, ...]]
"""What a runtime drives: in the place of the server, and of the parties."""


@dataclass(frozen=True)
class Federation:
    """All roles of a run in one process."""

    recipe: Recipe
    codecs: Codecs
    server: Server
    parties: tuple[Party, ...]
    sealed: Roles | None = None

    @property
    def roles(self) -> Roles:
        """The server and the parties as they are driven: themselves, or in machines that seal what they say."""
        return self.sealed or (self.server, self.parties)

    @property
    def plan(self) -> Plan:
        """The plan that all roles share."""
        return self.recipe.plan


@dataclass(frozen=True)
class Facts:
    """What every role must know of the others: who they are, what they send, and the rows they share."""

    names: tuple[str, ...]
    widths: tuple[int, ...]
    compressors: tuple[str, ...]
    rows: tuple[int, int, int]
    loss: Loss
    outputs: int


def make_recipe(
    config: RunConfig,
    data: VerticalData,
    models: Sequence[MakeModel] | None = None,
    server_model: MakeModel | None = None,
) -> Recipe:
    """Plan, models and compressors for this data; own models take the place of the configured ones.

    A party's model maps its rows to B x P_m, the server model maps the list of all embeddings to B x outputs.
    """
    if strange := [name for name in config.party if name not in data.names]:
        raise ConfigError(f"party.{strange[0]}: no such party{suggest(strange[0], data.names)}")
    makers = tuple(models) if models is not None else _configured(config, data)
    facts = Facts(
        names=data.names,
        widths=_widths(config, data, makers) if models is not None else configured_widths(config, data.names),
        compressors=tuple(config.compressor_of(name) for name in data.names),
        rows=(len(data.train_labels), len(data.validation_labels), len(data.test_labels)),
        loss=data.loss,
        outputs=data.outputs,
    )
    return recipe_of(config, facts, makers, server_model)


def recipe_of(
    config: RunConfig, facts: Facts, models: Sequence[MakeModel], server_model: MakeModel | None = None
) -> Recipe:
    """The recipe that belongs to these facts, the same at every role."""
    loss, dtype, head = config.loss or facts.loss, getattr(torch, config.precision), config.server_model
    if (loss is Loss.MULTICLASS) != (facts.loss is Loss.MULTICLASS):
        raise ConfigError(f"loss: {loss} does not fit labels of a {facts.loss} task")
    make = server_model or networks.server_model(head.name, facts.widths, facts.outputs, head.hidden, dtype)
    replies = config.reply_compressor
    if config.privacy.secure:
        check_sum(config, facts, make, dtype)
    return Recipe(
        plan=_plan(config, facts, loss, dtype, _sum_width(config, facts, make, dtype)),
        names=facts.names,
        models=tuple(models),
        server_model=make,
        compressors=tuple(partial(build, spec) for spec in facts.compressors),
        server_compressor=partial(build, config.server_compressor, "model"),
        gradient_compressor=partial(build, config.gradient_compressor or replies, "gradient"),
        partial_compressor=partial(build, config.partial_compressor or replies, "partial"),
        holder=label_holder(config, facts.names),
        release=release_of(config.privacy),
    )


def _sum_width(config: RunConfig, facts: Facts, make: MakeModel, dtype: torch.dtype) -> int:
    """How wide the sums over the others are; 0 if nothing is folded."""
    wanted = config.reply_compressor == "auto" if config.folding is None else config.folding
    if not wanted or config.algorithm == 2 or config.privacy.secure:
        return 0
    model = initialised(make, config.seed, SERVER)
    if not (isinstance(model, Foldable) and model.folds):
        if config.folding:
            raise ConfigError("folding: the server model does not start with a linear layer or a sum over embeddings")
        return 0
    with torch.no_grad():
        blank = model.join([torch.zeros(1, width, dtype=dtype) for width in facts.widths])
        return model.enter(blank).shape[1]


def party_maker(config: RunConfig, name: str, rows: Rows, categories: tuple[int, ...] = ()) -> MakeModel:
    """How to make the configured model of a party for its rows."""
    model, dtype = config.model_of(name), getattr(torch, config.precision)
    shape = tuple(rows.shape[1:])
    return networks.party_model(model.name, shape, model.width, model.hidden, dtype, categories=categories)


def configured_widths(config: RunConfig, names: Sequence[str]) -> tuple[int, ...]:
    """Widths of the embeddings as the configuration has them."""
    return tuple(config.model_of(name).width for name in names)


def _configured(config: RunConfig, data: VerticalData) -> tuple[MakeModel, ...]:
    categories = data.categories or ((),) * len(data.names)
    return tuple(party_maker(config, *held) for held in zip(data.names, data.train, categories, strict=True))


def _widths(config: RunConfig, data: VerticalData, models: Sequence[MakeModel]) -> tuple[int, ...]:
    """Widths of the embeddings that a user's own models give, found by trying them."""
    if len(models) != len(data.names):
        raise ConfigError(f"{len(models)} models for {len(data.names)} parties")
    widths = []
    for m, (name, make, rows) in enumerate(zip(data.names, models, data.train, strict=True), start=1):
        with torch.no_grad():
            h = initialised(make, config.seed, m).eval()(rows[torch.arange(min(2, len(rows)))])
        if h.ndim != 2:
            raise ConfigError(f"{name}: a party's model gives B x P numbers, not {tuple(h.shape)}")
        widths.append(h.shape[1])
    return tuple(widths)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device: {name!r} is not available here") from None


def _plan(config: RunConfig, facts: Facts, loss: Loss, dtype: torch.dtype, sum_width: int) -> Plan:
    rows, validation_rows, test_rows = facts.rows
    if config.batch_size > rows:
        raise ConfigError(f"batch_size: {config.batch_size} is more than the {rows} training rows")
    epoch = -(-rows // config.batch_size)
    return Plan(
        seed=config.seed,
        rounds=config.rounds or (config.epochs or 1) * epoch,
        Q=config.local_iterations,
        batch_size=config.batch_size,
        rows=rows,
        test_rows=test_rows,
        widths=facts.widths,
        loss=loss,
        step_size=StepSize(**config.step_size.model_dump()),
        optimizer=Optimizer(**config.optimizer.model_dump()),
        algorithm=config.algorithm,
        sum_width=sum_width,
        secure=config.privacy.secure,
        evaluate_every=config.evaluate_every or epoch,
        validation_rows=validation_rows,
        dtype=dtype,
        device=_device(config.device),
        clip=config.privacy.clip,
    )


def make_federation(
    recipe: Recipe, data: VerticalData, apart: bool = False, noise_secrets: Mapping[str, bytes] | None = None
) -> Federation:
    """All roles in this process, sharing codecs so that each packet is decoded once.

    With `apart` each role decodes for itself, as on a machine of its own; the bits are the same. Noise comes from
    a secret of each party, given by name or drawn.
    """
    codecs, device = recipe.codecs(), recipe.plan.device
    secrets = session_secrets(recipe.plan.M) if recipe.plan.secure or recipe.holder else {}
    labels = Labels(*(y.to(device) for y in (data.train_labels, data.test_labels, data.validation_labels)))
    shared = labels.train if recipe.plan.algorithm == 1 else None
    parties = tuple(
        recipe.party(
            m,
            Holding(name, *held(data, m - 1, device), shared, data.augment),
            masked(recipe.codecs() if apart else codecs, m, secrets.get(m)),
            (noise_secrets or {}).get(name),
        )
        for m, name in enumerate(data.names, start=1)
    )
    server = recipe.server(labels, codecs)
    if not recipe.holder:
        return Federation(recipe, codecs, server, parties)
    around = tuple(sealed(recipe, party, server, secrets[party.m]) for party in parties)
    return Federation(recipe, codecs, server, parties, (Relay(recipe.plan, recipe.holder), around))


def held(data: VerticalData, at: int, device: torch.device = _CPU) -> tuple[Rows, tuple[Rows, ...]]:
    """A party's training rows and its held-out rows; what is in memory goes to the device once."""
    held_out = (*data.validation[at : at + 1], data.test[at])
    train, *rest = (rows.to(device) if isinstance(rows, Tensor) else rows for rows in (data.train[at], *held_out))
    return train, tuple(rest)
