"""The penalty on what columns can be got back: it sees what an attacker would, is bounded, and hides what it sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.cases import settings
from cvfl.audit.attacks import invert
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.models import MLP
from cvfl.protocol.learning.guard import explained, hide, penalty_slope
from cvfl.protocol.learning.layers import initialised
from cvfl.rng import stream


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def share(h: Tensor, x: Tensor) -> float:
    return float(explained(h, x, stream(1, "test")))


def test_what_is_explained_is_a_share() -> None:
    x = numbers(400, 3)
    assert share(x, x) > 0.95
    assert share(x @ numbers(3, 3, seed=1), x) > 0.9
    assert share(x[:, :1], x) == pytest.approx(1 / 3, abs=0.05)
    assert share(numbers(400, 3, seed=2), x) < 0.08
    assert 0.6 < share(x[:, :1], x[:, :1] ** 2) <= 1  # bends are seen
    assert share(torch.zeros(400, 3, dtype=torch.float64), x) < 1e-9
    assert share(x, torch.ones(400, 2)) == 0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slope_is_bounded_and_leads_down(scale: float, dtype: torch.dtype) -> None:
    x = numbers(200, 4).to(dtype)
    h = scale * torch.tanh(x @ numbers(4, 2, seed=1).to(dtype))
    slope = penalty_slope(h, x, 0.5, stream(1, "test"))
    assert slope.dtype == dtype
    assert torch.isfinite(slope).all()
    assert float(slope.norm()) <= 0.5 * 200**-0.5 * (1 + 1e-6)
    step = 0.01 * scale * h.std() / scale * slope / slope.abs().max()
    assert share(h - step, x) < share(h, x)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_next_to_no_rows_have_no_slope_that_is_no_number(rows: int) -> None:
    slope = penalty_slope(numbers(rows, 2), numbers(rows, 3), 1.0, stream(1, "test"))
    assert slope.shape == (rows, 2)
    assert torch.isfinite(slope).all()


def recovered(model: nn.Module, x: Tensor) -> float:
    """R^2 of a fresh attacker."""
    with torch.no_grad():
        h = model.eval()(x)
    return invert(h, x, len(x) // 2, 0).r2


def test_a_model_that_hides_tells_a_fresh_attacker_less() -> None:
    x = (numbers(1024, 3) @ numbers(3, 6, seed=1)).float()
    model = initialised(lambda: MLP(6, 4, (32,), bounded=True), 3, 1)
    before = recovered(model, x)
    hide(model, lambda step: x[step % 4 * 256 :][:256], x[:2], 3, 1)
    assert recovered(model, x) < before - 0.2


def embeddings(config: RunConfig, trained: bool) -> tuple[Tensor, Tensor]:
    """Those of party 1 for the rows it trains on, and its columns."""
    loaded = load_data(config)
    (party, *_), x = make_federation(recipe_for(config, loaded.data), loaded.data).parties, loaded.data.train[0]
    if trained:
        party.model.load_state_dict(train(config).models[party.holding.name].state_dict())
    with torch.no_grad():
        return party.model.eval()(x[:]), x[:]


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_shows_less_at_its_start_and_at_its_end(trained: bool) -> None:
    found = {}
    for strength in (None, 1.0):
        config = settings(
            data={"name": "breast_cancer", "parties": 2},
            compressor="identity",
            server_compressor="identity",
            rounds=60,
            evaluate_every=60,
            batch_size=128,
            privacy={"reconstruction_penalty": strength},
        )
        h, x = embeddings(config, trained)
        found[strength] = invert(h, x, len(x) // 2, 0).r2
    assert found[1.0] < found[None] - 0.1


def test_nobody_else_hears_of_it() -> None:
    """Frames have the sizes that they have without, and kinds."""
    one, other = (
        train(settings(compressor="scalar:bits=4", privacy=privacy)).summary["bytes"]
        for privacy in ({}, {"reconstruction_penalty": 1.0})
    )
    assert {key: one[key] for key in ("up", "down", "evaluation")} == {
        key: other[key] for key in ("up", "down", "evaluation")
    }


@pytest.mark.parametrize("value", [0, -1, 1e9])
def test_strengths_that_are_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="reconstruction_penalty"):
        settings(privacy={"reconstruction_penalty": value})
