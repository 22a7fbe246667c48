"""Small federations for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.models.server import Concat
from cvfl.protocol import Loss
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds


def data(
    loss: Loss = Loss.MULTICLASS, M: int = 3, rows: int = 60, width: int = 5, dtype: torch.dtype = torch.float64
) -> VerticalData:
    """Random columns and labels that depend on all of them."""
    x = (
        torch.from_numpy(stream(5, "test data").uniform((rows + 20) * M * width)).to(dtype).reshape(M, -1, width) * 2
        - 1
    )
    score = x.sum((0, 2))
    match loss:
        case Loss.SQUARED:
            y = score
        case Loss.BINARY:
            y = (score > score.median()).to(dtype)
        case Loss.MULTICLASS:
            y = (score > score.quantile(0.33)).long() + (score > score.quantile(0.67)).long()
    return VerticalData(
        names=tuple(f"org{m}" for m in range(1, M + 1)),
        train=tuple(x[:, :rows]),
        test=tuple(x[:, rows:]),
        train_labels=y[:rows],
        test_labels=y[rows:],
        loss=loss,
    )


def config(**changes: Any) -> RunConfig:
    """A configuration for `data`, float64 and uncompressed unless changed."""
    values: dict[str, Any] = {
        "data": {"name": "digits"},
        "step_size": {"eta": 0.2},
        "rounds": 12,
        "batch_size": 16,
        "local_iterations": 1,
        "compressor": "identity",
        "server_compressor": "identity",
        "precision": "float64",
        "party_model": {"width": 4, "hidden": [6]},
        "seed": 3,
    }
    return parse_config(values | changes)


def federation(table: VerticalData | None = None, **changes: Any) -> Federation:
    """All roles, ready to run."""
    table = table or data(dtype=getattr(torch, changes.get("precision", "float64")))
    return make_federation(recipe_for(config(**changes), table), table)


def apart(fed: Federation) -> Federation:
    """The same roles, each with codecs of its own, as on machines of their own."""
    recipe, server = fed.recipe, fed.server
    parties = tuple(recipe.party(party.m, party.holding, recipe.codecs()) for party in fed.parties)
    return Federation(
        recipe, fed.codecs, (recipe.server(server.labels, recipe.codecs(), present=server.present), parties)
    )


def run(fed: Federation, workers: int | None = 1) -> Meter:
    """Run to the end."""
    meter = Meter()
    for _ in rounds(*fed.roles, meter, workers):
        pass
    return meter


def parameters(fed: Federation) -> list[torch.Tensor]:
    """Copies of all roles' parameters, server first."""
    models = [fed.server.model, *(party.model for party in fed.parties)]
    return [value.detach().clone() for model in models for value in model.parameters()]


def side_by_side(widths: tuple[int, ...], outputs: int) -> nn.Module:
    """A server model of a user's own that takes the embeddings side by side."""
    return Concat(nn.Linear(sum(widths), outputs))
