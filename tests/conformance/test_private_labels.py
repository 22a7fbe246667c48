"""Algorithm 2 with Q > 1: parties without labels reuse the gradient, and move it where the algebra allows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cvfl.experiments.federation import make_recipe
from cvfl.protocol import Loss
from cvfl.protocol.layers import initialised
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
    """The gradient of round t0, moved by c W_m^T W_m per unit of h_m when the model is linear, else as it is."""
    changes: dict[str, object] = {"server_model": server}
    table, cfg = data(loss, 2), config(local_iterations=Q, rounds=ROUNDS, algorithm=2, **changes)
    recipe, eta = make_recipe(cfg, table), cfg.step_size.eta
    models = [initialised(make, cfg.seed, m) for m, make in enumerate(recipe.models, start=1)]
    head = initialised(recipe.server_model, cfg.seed, 0)
    curvature = {Loss.BINARY: 1 / 4, Loss.MULTICLASS: 1 / 2, Loss.SQUARED: 2.0}[loss]
    for t0 in range(ROUNDS):
        rows = recipe.plan.batch(t0)
        y = table.train_labels[rows]
        stale = [model(x[rows]).detach().requires_grad_() for model, x in zip(models, table.train, strict=True)]
        gradients = torch.autograd.grad(recipe.plan.loss(head(stale), y), stale)
        W = head.head.weight.detach().clone() if server["name"] == "linear" else None
        for _ in range(Q):
            _descend(head, recipe.plan.loss(head([h.detach() for h in stale]), y), eta)
        for m, model in enumerate(models):
            own = None if W is None else W[:, recipe.plan.columns(m + 1)]
            for _ in range(Q):
                h = model(table.train[m][rows])
                moved = gradients[m].clone()
                if own is not None:
                    moved += curvature / len(rows) * (h - stale[m]).detach() @ own.T @ own
                _descend(model, (h * moved).sum(), eta)
    expected = [value for model in (head, *models) for value in model.parameters()]
    assert distance(private(loss, 2, **changes), expected) < 1e-12


@pytest.mark.parametrize("loss", list(Loss))
def test_the_curvature_bounds_the_loss_from_above(loss: Loss) -> None:
    """l(z + d) <= l(z) + l'(z) d + c/2 d^2 for any label: what a party descends lies above the true loss."""
    generator = torch.Generator().manual_seed(3)
    z = 4 * torch.randn(400, 3 if loss is Loss.MULTICLASS else 1, generator=generator, dtype=torch.float64)
    y = loss.labels(torch.randint(0, 3 if loss is Loss.MULTICLASS else 2, (400,), generator=generator), torch.float64)
    for scale in (0.01, 0.3, 3.0, 30.0):
        d = scale * torch.randn(z.shape, generator=generator, dtype=torch.float64)
        for at in range(0, 400, 40):
            one, label, step = z[at : at + 1].clone().requires_grad_(), y[at : at + 1], d[at : at + 1]
            value = loss(one, label)
            (slope,) = torch.autograd.grad(value, one)
            upper = value + (slope * step).sum() + loss.curvature / 2 * step.square().sum()
            assert float((loss(one + step, label) - upper).detach()) <= 1e-9


def test_with_one_step_nothing_of_the_model_is_sent() -> None:
    """Q = 1 is the paper's Algorithm 2: the gradient alone."""
    fed = federation(data(Loss.BINARY), algorithm=2, local_iterations=1, rounds=1)
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    assert [message.weights for _, message in replies] == [b""] * 3


def _descend(model: nn.Module, loss: torch.Tensor, eta: float) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for value, gradient in zip(model.parameters(), gradients, strict=True):
            value.sub_(eta * gradient)
