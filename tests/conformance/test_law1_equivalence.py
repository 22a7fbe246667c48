"""Law 1: with identity compressors and Q = 1, Algorithm 1, Algorithm 2 and centralised SGD are one method."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cvfl.federation.builder.machines import Federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.models.server import Ended
from cvfl.protocol import Loss
from cvfl.protocol.learning.layers import initialised
from federations import config, data, federation, parameters, run


def centralised(loss: Loss, M: int, rule: str = "sgd", **changes: object) -> list[torch.Tensor]:
    """Plain PyTorch on the joined model: one loss, one optimizer, all columns in one place."""
    table = data(loss, M)
    cfg = config(**changes)
    recipe = recipe_for(cfg, table)
    models = [initialised(make, cfg.seed, m) for m, make in enumerate(recipe.models, start=1)]
    head = initialised(recipe.server_model, cfg.seed, 0)
    everything = nn.ModuleList([head, *models]).train()
    make_optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule]
    steps = make_optimizer(everything.parameters(), lr=cfg.step_size.eta)
    for t0 in range(recipe.plan.rounds):
        rows = recipe.plan.batch(t0)
        outputs = head([model(x[rows]) for model, x in zip(models, table.train, strict=True)])
        value = loss(outputs, table.train_labels[rows])
        steps.zero_grad()
        value.backward()
        steps.step()
    return [value.detach() for value in everything.parameters()]


METHODS = pytest.mark.parametrize(
    "method",
    [
        {"algorithm": 1},
        {"folding": True},
        {"algorithm": 2},
        {"local_rows": "cached"},
        {"local_rows": "cached", "folding": True},
    ],
)


@METHODS
@pytest.mark.parametrize("M", [1, 2, 3])
@pytest.mark.parametrize("loss", list(Loss))
def test_federated_equals_centralised(loss: Loss, M: int, method: dict[str, object]) -> None:
    fed = federation(data(loss, M), **method)
    before = parameters(fed)
    run(fed)
    for ours, theirs, start in zip(parameters(fed), centralised(loss, M), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert not torch.equal(ours, start)


@METHODS
def test_equivalence_holds_for_adam_and_a_deep_server_model(method: dict[str, object]) -> None:
    changes = {
        "optimizer": {"name": "adam"},
        "step_size": {"eta": 0.01},
        "server_model": {"name": "mlp", "hidden": [7, 5]},
    }
    fed = federation(data(Loss.MULTICLASS), **method, **changes)
    run(fed)
    expected = centralised(Loss.MULTICLASS, 3, "adam", **changes)
    for ours, theirs in zip(parameters(fed), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def whole(fed: Federation) -> list[torch.Tensor]:
    """Parameters as if the server held all of the first layer: b and W = [W_1, ..., W_M] from their parts."""
    ends = [party.model for party in fed.parties]
    assert all(isinstance(model, Ended) for model in ends)
    b, *rest = fed.server.model.parameters()
    W = torch.cat([model.end.weight for model in ends], 1)
    return [W, b, *rest, *(value for model in ends for value in model.model.parameters())]


@pytest.mark.parametrize("folding", [{}, {"folding": True}])
@pytest.mark.parametrize("hidden", [[], [7, 5]])
@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("loss", list(Loss))
def test_equivalence_holds_when_each_party_has_its_part_of_the_first_layer(
    loss: Loss, M: int, hidden: list[int], folding: dict[str, bool]
) -> None:
    head = {"server_model": {"name": "mlp", "hidden": hidden}} if hidden else {}
    fed = federation(data(loss, M), first_layer="parties", **folding, **head)
    assert fed.recipe.plan.folding == bool(folding)
    before = [value.detach().clone() for value in whole(fed)]
    run(fed)
    for ours, theirs, start in zip(whole(fed), centralised(loss, M, **head), before, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-12)
        assert not torch.equal(ours, start)


def test_local_iterations_leave_the_centralised_path() -> None:
    """The comparison above can fail: with Q = 2 the parameters differ."""
    fed = federation(data(Loss.BINARY), local_iterations=2)
    run(fed)
    pairs = list(zip(parameters(fed), centralised(Loss.BINARY, 3), strict=True))
    assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) > 1e-3


@pytest.mark.parametrize("method", [{}, {"folding": True}, {"local_rows": "cached"}])
def test_q_steps_are_those_of_a_hand_written_loop(method: dict[str, object]) -> None:
    """Algorithm 1 with Q = 3, written out with plain tensors; `known` are the embeddings as they were last sent."""
    table, Q = data(Loss.MULTICLASS, 2), 3
    cfg = config(local_iterations=Q, rounds=7, **method)
    recipe = recipe_for(cfg, table)
    models = [initialised(make, cfg.seed, m) for m, make in enumerate(recipe.models, start=1)]
    head = initialised(recipe.server_model, cfg.seed, 0)
    known = [torch.full((60, 4), torch.nan, dtype=torch.float64) for _ in models]
    for t0 in range(7):
        batch = recipe.plan.batch(t0)
        for last, model, x in zip(known, models, table.train, strict=True):
            last[batch] = model(x[batch]).detach()
        steps = [(rows, table.train_labels[rows]) for rows in (recipe.plan.local_rows(t0, q) for q in range(Q))]
        start = {key: value.clone() for key, value in head.state_dict().items()}
        for rows, y in steps:
            _descend(head, recipe.plan.loss(head([last[rows] for last in known]), y), cfg.step_size.eta)
        trained = {key: value.clone() for key, value in head.state_dict().items()}
        head.load_state_dict(start)  # parties see theta_0 as it was at t0
        for m, model in enumerate(models):
            for rows, y in steps:
                phi = [last[rows] for last in known]
                phi[m] = model(table.train[m][rows])
                _descend(model, recipe.plan.loss(head(phi), y), cfg.step_size.eta)
        head.load_state_dict(trained)
    fed = federation(table, local_iterations=Q, rounds=7, **method)
    run(fed)
    expected = [value for model in (head, *models) for value in model.parameters()]
    for ours, theirs in zip(parameters(fed), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def _descend(model: nn.Module, loss: torch.Tensor, eta: float) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for value, gradient in zip(model.parameters(), gradients, strict=True):
            value.sub_(eta * gradient)
