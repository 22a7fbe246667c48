"""The machines of a run by its recipe: of one role, or of all of them in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cvfl.data import VerticalData
from cvfl.privacy.keys import PairSecrets, session_secrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.private_model import with_private_model
from cvfl.privacy.relay import Holder, Relay, sealed
from cvfl.privacy.sealed_party import party_of
from cvfl.protocol import (
    Codecs,
    Holding,
    Labels,
    Party,
    PartyMachine,
    Plan,
    Presence,
    Recipe,
    Server,
    ServerMachine,
)
from cvfl.protocol.release import Secret

_CPU = torch.device("cpu")


def party_machine(
    recipe: Recipe,
    m: int,
    holding: Holding,
    labels: Labels,
    codecs: Codecs,
    secrets: PairSecrets | None = None,
    noise_secret: Secret | None = None,
    present: Presence | None = None,
    own: tuple[Labels, int] | None = None,
) -> PartyMachine:
    """Party m with its rows and the labels that it has; with the server model, too, if labels stay with it.

    `secrets` are those of this session, which masks and seals come from; `noise_secret` is the party's own. Who holds
    which rows, if not everybody holds all, the server model needs to know. A holder with a private model fits it to
    its `own` labels, of so many outputs.
    """
    if codecs.total is not None and secrets is not None:
        codecs.mask(m, Masks(secrets))
    party = recipe.party(m, holding, codecs, noise_secret)
    if recipe.plan.private_holder:
        return with_private_model(party, codecs, recipe.names, secrets, own)
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
        return tuple(map(party_of, self.roles[1]))


def make_federation(
    recipe: Recipe,
    data: VerticalData,
    apart: bool = False,
    noise_secrets: Mapping[str, bytes] | None = None,
    around: int = 0,
    folder: Path | None = None,
    held: Labels | None = None,
) -> Federation:
    """All roles in this process, sharing codecs so that each packet is decoded once.

    With `apart` each role decodes for itself, as on a machine of its own; the bits are the same. Noise comes from
    a secret of each party, given by name or drawn. What is known of rows is in the folder when memory is too small.
    `held` are the true labels of a holder that has told others.
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
            (held, data.outputs) if held and m == plan.private_holder else None,
        )
        for m, name in enumerate(data.names, start=1)
    )
    return Federation(recipe, codecs, (server_machine(recipe, labels, codecs, around, data.present), parties))


def _session(recipe: Recipe) -> dict[int, PairSecrets]:
    """What each party of this process shares with the others, for one session, if the mode needs it."""
    plan = recipe.plan
    return session_secrets(plan.M) if plan.secure or recipe.holder or plan.private_holder else {}


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
