"""The builder of roles, one for every runtime.

    configuration, Facts ──make_recipe──▶ Recipe ──▶ party_machine, server_machine ──▶ what a runtime drives

A role on a machine of its own hears the facts in the handshake; where all roles are in one process they come from the
data, and `make_federation` builds them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from cvfl import models as networks
from cvfl.compress import build
from cvfl.config.modes import check_step_size, check_sum, label_holder
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, suggest
from cvfl.models.server import Ended, Sum, parted
from cvfl.privacy.keys import PairSecrets, session_secrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.noise import noise_for
from cvfl.privacy.relay import Holder, Relay, sealed
from cvfl.protocol import (
    Codecs,
    Holding,
    Labels,
    Loss,
    Party,
    PartyMachine,
    Plan,
    Presence,
    Recipe,
    Rows,
    Server,
    ServerMachine,
)
from cvfl.protocol.absence import standing_in
from cvfl.protocol.fusion import Foldable
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.learning.metrics import METRICS, headline
from cvfl.protocol.learning.objective import ClassWeight
from cvfl.protocol.learning.randomised import Randomised
from cvfl.protocol.recipe import MakeModel
from cvfl.protocol.release import MakeRelease, Secret
from cvfl.types import SERVER
from cvfl.wire.control import MAX_SPEC, Count

_CPU = torch.device("cpu")
FirstLayer = tuple[list[Tensor], Sum]
"""The server model's first layer by party, and the rest of it."""
AWAY = 0
"""The width of a party that does not take part in a session."""
Width = Annotated[int, Field(ge=AWAY, le=1 << 20)]


@dataclass(frozen=True)
class Facts:
    """What every role must know of the others: who they are, what they send, and the rows they share."""

    names: tuple[str, ...]
    widths: tuple[Width, ...]
    compressors: tuple[Annotated[str, Field(max_length=MAX_SPEC)], ...]
    rows: tuple[Count, Count, Count]
    """Training, validation and test rows."""
    loss: Loss
    outputs: Annotated[int, Field(ge=1, lt=1 << 16)]


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
    return Recipe(
        plan=_plan(config, facts, loss, dtype, _sum_width(config, facts, make, dtype), partly),
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
        release=_release(config.privacy.clip, config.privacy.noise),
        memory=config.network.memory_mb << 20,
        limits=config.limits,
    )


def _at_parties(config: RunConfig, facts: Facts, first: FirstLayer | None) -> bool:
    """Whether parties are to hold their own part of the server model's first layer."""
    where = config.first_layer
    if where == "server" or (where is None and config.reply_compressor != "auto"):
        return False
    if config.algorithm == 2 or config.privacy.noise is not None or config.folding is False:
        return False
    if first is None and where == "parties":
        raise ConfigError("first_layer: the server model does not start with a linear layer over all embeddings")
    if first is None or where == "parties" or config.privacy.secure:
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


def _release(clip: float | None, noise: float | None) -> MakeRelease | None:
    """How noise is added to what leaves a party, if it is."""
    if noise is None or clip is None:
        return None
    return partial(noise_for, noise * clip)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device: {name!r} is not available here") from None


def _plan(config: RunConfig, facts: Facts, loss: Loss, dtype: torch.dtype, sum_width: int, partly: bool) -> Plan:
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
        step_size=config.step_size,
        optimizer=config.optimizer,
        algorithm=config.algorithm,
        sum_width=sum_width,
        secure=config.privacy.secure,
        patience=config.stopping.patience or 0,
        improving=_improving(config.stopping.metric, loss),
        class_weight=_class_weight(config.class_weight, loss, facts.outputs),
        decision=config.decision,
        cached=config.cached,
        evaluate_every=config.evaluate_every or epoch,
        validation_rows=validation_rows,
        dtype=dtype,
        device=_device(config.device),
        clip=config.privacy.clip,
        budget=config.budget,
        quiet=config.quiet,
        absence=config.absence.rate,
        partial=partly,
        reconstruction_penalty=config.privacy.reconstruction_penalty,
        randomised=_randomised(config, loss),
    )


def _randomised(config: RunConfig, loss: Loss) -> Randomised | None:
    """How labels of this kind were randomised, if they were."""
    noise = config.privacy.randomised
    if noise is not None and (noise.range is None) == (loss is Loss.SQUARED):
        raise ConfigError(
            "privacy.label_range: give the limits of the label, [low, high], which is a quantity"
            if loss is Loss.SQUARED
            else "privacy.label_range is for a label that is a quantity; of classes all that there are may be told"
        )
    return noise


def _class_weight(weights: ClassWeight | None, loss: Loss, outputs: int) -> ClassWeight | None:
    """Weights that fit the classes that there are."""
    classes = 2 if loss is Loss.BINARY else outputs
    if weights is not None and loss is Loss.SQUARED:
        raise ConfigError("class_weight is for classes; the label is a quantity")
    if isinstance(weights, tuple) and len(weights) != classes:
        raise ConfigError(f"class_weight has {len(weights)} weights for {classes} classes")
    return weights


def _improving(metric: str | None, loss: Loss) -> str:
    """The metric that a run is stopped by."""
    if metric is not None and metric not in METRICS[loss]:
        raise ConfigError(f"stopping.metric: there is no {metric!r} here{suggest(metric, METRICS[loss])}")
    return metric or headline(loss)


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


def party_machine(
    recipe: Recipe,
    m: int,
    holding: Holding,
    labels: Labels,
    codecs: Codecs,
    secrets: PairSecrets | None = None,
    noise_secret: Secret | None = None,
    present: Presence | None = None,
) -> PartyMachine:
    """Party m with its rows and the labels that it has; with the server model, too, if labels stay with it.

    `secrets` are those of this session, which masks and seals come from; `noise_secret` is the party's own. Who holds
    which rows, if not everybody holds all, the server model needs to know.
    """
    if codecs.total is not None and secrets is not None:
        codecs.mask(m, Masks(secrets))
    party = recipe.party(m, holding, codecs, noise_secret)
    if not recipe.holder:
        return party
    server = recipe.server(labels, codecs, present=present) if m == recipe.holder else None
    return sealed(recipe, party, server, secrets)


def server_machine(
    recipe: Recipe, labels: Labels | None, codecs: Codecs, around: int = 0, present: Presence | None = None
) -> ServerMachine:
    """The server with the labels; a relay if they stay with a party. `around` is what a budget sets aside."""
    if recipe.holder:
        return Relay(recipe.plan, recipe.holder)
    assert labels is not None
    return recipe.server(labels, codecs, around, present)


@dataclass(frozen=True)
class Federation:
    """All roles of a run in one process, as a runtime drives them."""

    recipe: Recipe
    codecs: Codecs
    roles: tuple[ServerMachine, tuple[PartyMachine, ...]]

    @property
    def plan(self) -> Plan:
        """The plan that all roles share."""
        return self.recipe.plan

    @property
    def server(self) -> Server:
        """The server with its model, wherever it runs: labels that stay with a party keep it there."""
        server, parties = self.roles
        if isinstance(server, Server):
            return server
        (found,) = (party.server for party in parties if isinstance(party, Holder))
        return found

    @property
    def parties(self) -> tuple[Party, ...]:
        """The parties themselves, without what seals their messages."""
        return tuple(party if isinstance(party, Party) else party.party for party in self.roles[1])  # type: ignore[attr-defined]


def make_federation(
    recipe: Recipe,
    data: VerticalData,
    apart: bool = False,
    noise_secrets: Mapping[str, bytes] | None = None,
    around: int = 0,
    folder: Path | None = None,
) -> Federation:
    """All roles in this process, sharing codecs so that each packet is decoded once.

    With `apart` each role decodes for itself, as on a machine of its own; the bits are the same. Noise comes from
    a secret of each party, given by name or drawn. What is known of rows is in the folder when memory is too small.
    """
    codecs, secrets, plan = recipe.codecs(folder), _session(recipe), recipe.plan
    labels = labels_of(data, plan.device)
    parties = tuple(
        party_machine(
            recipe,
            m,
            holding_of(data, m - 1, plan),
            labels,
            recipe.codecs(folder) if apart else codecs,
            secrets.get(m),
            Secret(noise_secrets[name]) if noise_secrets and name in noise_secrets else None,
            data.present,
        )
        for m, name in enumerate(data.names, start=1)
    )
    return Federation(recipe, codecs, (server_machine(recipe, labels, codecs, around, data.present), parties))


def _session(recipe: Recipe) -> dict[int, PairSecrets]:
    """What each party of this process shares with the others, for one session, if the mode needs it."""
    return session_secrets(recipe.plan.M) if recipe.plan.secure or recipe.holder else {}


def labels_of(data: VerticalData, device: torch.device = _CPU) -> Labels:
    """All labels of a data set."""
    return Labels(data.train_labels, data.test_labels, data.validation_labels, data.units).to(device)


def holding_of(data: VerticalData, at: int, plan: Plan) -> Holding:
    """A party's part of a data set; what is in memory goes to the device once."""
    held_out = (*data.validation[at : at + 1], data.test[at])
    train, *rest = (rows.to(plan.device) if isinstance(rows, Tensor) else rows for rows in (data.train[at], *held_out))
    labels = data.train_labels.to(plan.device) if plan.algorithm == 1 else None
    present = (None, None) if data.present is None else (data.present.train[at], data.present.held_out[at])
    return Holding(data.names[at], train, tuple(rest), labels, data.augment, *present)


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
