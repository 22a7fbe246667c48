"""Law 1: with identity compressors and Q = 1, Algorithm 1, Algorithm 2 and centralised SGD are one method."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cvfl.federation.build import recipe_for
from cvfl.protocol import Loss
from cvfl.protocol.layers import initialised
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


METHODS = pytest.mark.parametrize("method", [{"algorithm": 1}, {"folding": True}, {"algorithm": 2}])


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


def test_local_iterations_leave_the_centralised_path() -> None:
    """The comparison above can fail: with Q = 2 the parameters differ."""
    fed = federation(data(Loss.BINARY), local_iterations=2)
    run(fed)
    pairs = list(zip(parameters(fed), centralised(Loss.BINARY, 3), strict=True))
    assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) > 1e-3


@pytest.mark.parametrize("folding", [False, True])
def test_q_steps_are_those_of_a_hand_written_loop(folding: bool) -> None:
    """Algorithm 1 with Q = 3, written out with plain tensors."""
    table, Q = data(Loss.MULTICLASS, 2), 3
    cfg = config(local_iterations=Q, rounds=5)
    recipe = recipe_for(cfg, table)
    models = [initialised(make, cfg.seed, m) for m, make in enumerate(recipe.models, start=1)]
    head = initialised(recipe.server_model, cfg.seed, 0)
    for t0 in range(5):
        rows = recipe.plan.batch(t0)
        y = table.train_labels[rows]
        stale = [model(x[rows]).detach() for model, x in zip(models, table.train, strict=True)]
        start = {key: value.clone() for key, value in head.state_dict().items()}
        for _ in range(Q):
            _descend(head, recipe.plan.loss(head(stale), y), cfg.step_size.eta)
        trained = {key: value.clone() for key, value in head.state_dict().items()}
        head.load_state_dict(start)  # parties see theta_0 as it was at t0
        for m, model in enumerate(models):
            for _ in range(Q):
                phi = list(stale)
                phi[m] = model(table.train[m][rows])
                _descend(model, recipe.plan.loss(head(phi), y), cfg.step_size.eta)
        head.load_state_dict(trained)
    fed = federation(table, local_iterations=Q, rounds=5, folding=folding)
    run(fed)
    expected = [value for model in (head, *models) for value in model.parameters()]
    for ours, theirs in zip(parameters(fed), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def _descend(model: nn.Module, loss: torch.Tensor, eta: float) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for value, gradient in zip(model.parameters(), gradients, strict=True):
            value.sub_(eta * gradient)
