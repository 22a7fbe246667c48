"""Algorithm 2 with Q > 1: parties without labels reuse the gradient, and move it where the algebra allows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cvfl.federation.builder.recipe import recipe_for
from cvfl.protocol import Loss
from cvfl.protocol.learning.layers import initialised
from federations import config, data, federation, parameters, run

Q, ROUNDS = 4, 6


def private(loss: Loss, M: int = 3, **changes: object) -> list[torch.Tensor]:
    fed = federation(
        data(loss, M), local_iterations=Q, rounds=ROUNDS, **{"privacy": {"labels": "server"}, "algorithm": 2} | changes
    )
    assert all(party.holding.labels is None for party in fed.parties)
    run(fed)
    return parameters(fed)


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("compressor", ["identity", "scalar:bits=3", "lattice:bits=2"])
@pytest.mark.parametrize("server", [{"name": "linear"}, {"name": "sum"}])
def test_squared_error_and_a_linear_model_need_no_labels_at_all(server: dict[str, object], compressor: str) -> None:
    """The exact update: the same parameters as Algorithm 1, whose parties have the labels."""
    changes: dict[str, object] = {"server_model": server, "compressor": compressor, "step_size": {"eta": 0.05}}
    shared = federation(data(Loss.SQUARED), local_iterations=Q, rounds=ROUNDS, **changes)
    run(shared)
    assert distance(private(Loss.SQUARED, **changes), parameters(shared)) < 1e-12


@pytest.mark.parametrize("server", [{"name": "mlp", "hidden": [5]}, {"name": "linear"}])
@pytest.mark.parametrize("loss", list(Loss))
def test_steps_are_those_of_a_hand_written_loop(loss: Loss, server: dict[str, object]) -> None:
    """The gradient as it is; moved by 2 W_m^T W_m / B per unit of h_m for the squared error of a linear model."""
    changes: dict[str, object] = {"server_model": server}
    table, cfg = data(loss, 2), config(local_iterations=Q, rounds=ROUNDS, algorithm=2, **changes)
    recipe, eta = recipe_for(cfg, table), cfg.step_size.eta
    models = [initialised(make, cfg.seed, m) for m, make in enumerate(recipe.models, start=1)]
    head = initialised(recipe.server_model, cfg.seed, 0)
    for t0 in range(ROUNDS):
        rows = recipe.plan.batch(t0)
        y = table.train_labels[rows]
        stale = [model(x[rows]).detach().requires_grad_() for model, x in zip(models, table.train, strict=True)]
        gradients = torch.autograd.grad(recipe.plan.loss(head(stale), y), stale)
        W = head.head.weight.detach().clone() if server["name"] == "linear" and loss is Loss.SQUARED else None
        for _ in range(Q):
            _descend(head, recipe.plan.loss(head([h.detach() for h in stale]), y), eta)
        for m, model in enumerate(models):
            own = None if W is None else W[:, recipe.plan.columns(m + 1)]
            for _ in range(Q):
                h = model(table.train[m][rows])
                moved = gradients[m].clone()
                if own is not None:
                    moved += 2 / len(rows) * (h - stale[m]).detach() @ own.T @ own
                _descend(model, (h * moved).sum(), eta)
    expected = [value for model in (head, *models) for value in model.parameters()]
    assert distance(private(loss, 2, **changes), expected) < 1e-12


@pytest.mark.parametrize(("loss", "steps"), [(Loss.SQUARED, 1), (Loss.BINARY, 4), (Loss.MULTICLASS, 4)])
def test_otherwise_nothing_of_the_model_is_sent(loss: Loss, steps: int) -> None:
    """Q = 1 is the paper's Algorithm 2; and W_m with the gradient of cross-entropy would be the labels."""
    fed = federation(data(loss), algorithm=2, local_iterations=steps, rounds=1)
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    assert [message.weights for _, message in replies] == [b""] * 3


def _descend(model: nn.Module, loss: torch.Tensor, eta: float) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for value, gradient in zip(model.parameters(), gradients, strict=True):
            value.sub_(eta * gradient)
