"""The recipe of a run: its plan, its models and its compressors, the same at every role."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from cvfl import models as networks
from cvfl.compress import build
from cvfl.config.modes import check_step_size, check_sum, label_holder
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, LocalProtocolError, suggest
from cvfl.federation.agreement.facts import Facts
from cvfl.federation.builder.plan import plan_of
from cvfl.models.server import Ended, Sum, parted
from cvfl.privacy.noise import noise_for
from cvfl.privacy.noise_of_sum import Shared, shared_noise_for
from cvfl.protocol import Loss, Recipe, Rows
from cvfl.protocol.absence import standing_in
from cvfl.protocol.fusion import Foldable
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.protocol.release import MakeRelease
from cvfl.types import SERVER

FirstLayer = tuple[list[Tensor], Sum]
"""The server model's first layer by party, and the rest of it."""
LAST_PASS = "scalar:bits=6"
"""Of all rows once more when the rounds are over, in place of a compressor that follows the loss."""


def make_recipe(
    config: RunConfig,
    facts: Facts,
    models: Sequence[MakeModel],
    server_model: MakeModel | None = None,
    partly: bool = False,
) -> Recipe:
    """The recipe that belongs to these facts, the same at every role; `partly` if parties may not hold some rows.

    A party's model maps its rows to B x P_m, the server model maps the list of all embeddings to B x outputs.
    """
    check_step_size(config)
    loss, dtype, head = config.loss or facts.loss, getattr(torch, config.precision), config.server_model
    private = config.privacy.private_model
    if (loss is Loss.MULTICLASS) != (facts.loss is Loss.MULTICLASS):
        raise ConfigError(f"loss: {loss} does not fit labels of a {facts.loss} task")
    make = server_model or networks.server_model(head.name, facts.widths, facts.outputs, head.hidden, dtype)
    replies = config.reply_compressor
    offered = facts.widths
    first = parted(initialised(make, config.seed, SERVER), facts.widths)
    parts = first if _at_parties(config, facts, first) else None
    kind = "trained " if parts is None and _has_hidden(first) else ""  # of messages, by compress.registry.AUTO
    if parts is not None:
        slices, rest = parts
        models = [partial(_ended, model, W) for model, W in zip(models, slices, strict=True)]
        make, facts = partial(copy.deepcopy, rest), replace(facts, widths=tuple(len(W) for W in slices))
    partly = partly or config.data.alignment == "outer"
    if partly or config.absence.rate:
        make = standing_in(make, facts.widths, dtype)
    if config.privacy.secure:
        check_sum(config, facts.names, facts.widths, facts.compressors, make)
    shared = config.privacy.noise_of_sum(build(facts.compressors[0]), len(facts.names), facts.widths[0])
    return Recipe(
        plan=plan_of(config, facts, loss, dtype, _sum_width(config, facts, make, dtype), partly),
        names=facts.names,
        models=tuple(models),
        server_model=make,
        compressors=tuple(partial(build, spec, f"{kind}embedding") for spec in facts.compressors),
        evaluation_compressors=tuple(
            partial(build, config.evaluation_compressor_of(spec), "evaluation") for spec in facts.compressors
        ),
        server_compressor=partial(build, config.server_compressor, f"{kind}model"),
        gradient_compressor=partial(build, config.gradient_compressor or replies, "gradient"),
        partial_compressor=partial(build, config.partial_compressor or replies, f"{kind}partial"),
        offered=offered,
        parted=parts is not None,
        holder=label_holder(config, facts.names),
        release=_release(config.privacy.clip, config.privacy.noise, shared),
        wrapped=shared.grid if shared else None,
        last_pass=tuple(partial(build, of_last_pass(config, spec)) for spec in facts.compressors) if private else (),
        memory=config.network.memory_mb << 20,
        limits=config.limits,
    )


def of_last_pass(config: RunConfig, spec: str) -> str:
    """The compressor of all rows once more when the rounds are over, at a party whose embeddings have this one."""
    held_out = config.evaluation_compressor_of(spec)
    return LAST_PASS if build(held_out, "evaluation").follows else held_out


def _at_parties(config: RunConfig, facts: Facts, first: FirstLayer | None) -> bool:
    """Whether parties are to hold their own part of the server model's first layer."""
    where = config.first_layer
    if where == "server" or (where is None and config.reply_compressor != "auto"):
        return False
    if config.algorithm == 2 or config.privacy.noise is not None or config.folding is False:
        return False
    if config.privacy.secure:
        return False  # what a part of the layer gives has no limits, which the grid of the sum needs
    if first is None and where == "parties":
        raise ConfigError("first_layer: the server model does not start with a linear layer over all embeddings")
    if first is None or where == "parties":
        return first is not None
    return len(first[0][0]) <= min(facts.widths)  # a wider layer would be more to send


def _has_hidden(first: FirstLayer | None) -> bool:
    """Whether the server model starts with a linear layer that others follow."""
    return first is not None and isinstance(first[1].head, nn.Sequential) and len(first[1].head) > 1


def _ended(make: MakeModel, W: Tensor) -> Ended:
    return Ended(make(), W)


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


def _release(clip: float | None, noise: float | None, shared: Shared | None) -> MakeRelease | None:
    """How noise is added to what leaves a party, if it is."""
    if noise is None or clip is None:
        return None
    if shared is not None:
        return partial(shared_noise_for, shared)
    return partial(noise_for, noise * clip)


def party_maker(config: RunConfig, name: str, rows: Rows, categories: tuple[int, ...] = ()) -> MakeModel:
    """How to make the configured model of a party for its rows."""
    model, dtype = config.model_of(name), getattr(torch, config.precision)
    shape = tuple(rows.shape[1:])
    return networks.party_model(
        model.name,
        shape,
        model.width,
        model.hidden,
        dtype,
        categories=categories,
        dropout=model.dropout,
        pieces=model.pieces,
    )


def elsewhere() -> nn.Module:
    """Stands for the model of a role that is on another machine."""
    raise LocalProtocolError("the model of another role is not here")


def recipe_for(
    config: RunConfig,
    data: VerticalData,
    models: Sequence[MakeModel] | None = None,
    server_model: MakeModel | None = None,
) -> Recipe:
    """The recipe for data that is all here; own models take the place of the configured ones."""
    if strange := [name for name in config.party if name not in data.names]:
        raise ConfigError(f"party.{strange[0]}: no such party{suggest(strange[0], data.names)}")
    facts = Facts(
        names=data.names,
        widths=_widths(config, data, models) if models else tuple(config.model_of(name).width for name in data.names),
        compressors=tuple(config.compressor_of(name) for name in data.names),
        rows=(len(data.train_labels), len(data.validation_labels), len(data.test_labels)),
        loss=data.loss,
        outputs=data.outputs,
    )
    return make_recipe(config, facts, models or _configured(config, data), server_model, data.present is not None)


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
