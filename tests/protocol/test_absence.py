"""Parties that are away: who is left out at random, what stands for them, and rows that a party does not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, DataError
from cvfl.federation.agreement.terms import terms_of
from cvfl.federation.builder.machines import Federation
from cvfl.models.server import Concat
from cvfl.protocol import Loss, Plan, Presence, StepSize
from cvfl.protocol.absence import StandIns
from cvfl.rng import stream
from cvfl.wire import Folded
from federations import apart, config, data, federation, parameters, run

M, ROWS, HELD_OUT = 3, 60, 20
AUTO: dict[str, Any] = {"compressor": "auto", "server_compressor": "auto", "local_iterations": 3}
MODES: dict[str, dict[str, Any]] = {
    "folded": {"folding": True, "compressor": "lattice:bits=4", "local_iterations": 2},
    "first layer at parties": AUTO | {"first_layer": "parties"},
    "first layer at the server": AUTO
    | {
        "server_model": {"name": "wide_deep", "hidden": [6]},
        "party_model": {"name": "tabular", "width": 4, "hidden": [6], "dropout": 0.3},
        "first_layer": "server",
        "quiet_messages": True,
    },
    "algorithm 2": {"algorithm": 2, "local_iterations": 2, "gradient_compressor": "scalar:bits=8"},
}


def presence() -> Presence:
    """The first party holds all rows, each of the others about half."""
    drawn = [torch.from_numpy(stream(1, "presence", m).uniform(ROWS + HELD_OUT) < 0.5) for m in range(M)]
    drawn[0] = torch.ones(ROWS + HELD_OUT).bool()
    return Presence(tuple(one[:ROWS] for one in drawn), tuple(one[ROWS:] for one in drawn))


def partly(loss: Loss = Loss.BINARY, **changes: Any) -> VerticalData:
    return replace(data(loss), present=presence(), **changes)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {"widths": (2, 2, 2), "loss": Loss.BINARY, "step_size": StepSize(eta=0.1), "sum_width": 2}
    return Plan(3, 30, 4, 5, test_rows=0, absence=0.2, **{"rows": 23} | values | changes)


def test_each_party_is_left_out_as_often_as_the_rate_says_and_never_all_at_once() -> None:
    away = plan().dropped(4, 1, 20_000)
    assert away.shape == (M, 20_000)
    assert not away.all(0).any()
    expected = 0.2 - 0.2**M  # all at once counts as nobody
    assert ((away.double().mean(1) - expected).abs() < 0.015).all()
    assert abs(float((away[0] & away[1]).double().mean()) - (0.2**2 - 0.2**3)) < 0.01
    assert torch.equal(away, plan().dropped(4, 1, 20_000))
    assert not torch.equal(away, plan().dropped(4, 2, 20_000))
    whole = plan(rows=20_000).left_out(torch.arange(20_000))  # of a row the same at every visit
    assert torch.equal(plan(rows=20_000).left_out(torch.tensor([5, 3])), whole[:, [5, 3]])
    assert ((whole.double().mean(1) - expected).abs() < 0.015).all()
    assert not whole.all(0).any()


def test_what_stands_for_a_party_takes_the_place_of_its_absent_rows_and_learns_from_them() -> None:
    model = StandIns(Concat(torch.nn.Linear(4, 1)), (2, 2), torch.float32)
    with torch.no_grad():
        model.v[1].copy_(torch.tensor([5.0, 6.0]))
    h = [torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)]
    absent = torch.tensor([[False, False, False], [True, False, True]])
    phi = model.substituted(h, absent)
    assert phi[0].tolist() == [[1, 1]] * 3
    assert phi[1].tolist() == [[5, 6], [1, 1], [5, 6]]
    model(phi).sum().backward()
    assert h[1].grad is not None
    assert h[1].grad.abs().sum(1).gt(0).tolist() == [False, True, False]
    assert model.v[0].grad is None or not model.v[0].grad.any()
    assert model.v[1].grad is not None
    assert model.v[1].grad.any()


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_a_party_does_not_hold_never_reach_its_model(mode: str) -> None:
    """Whatever is in their place: the bits are the same."""

    def trained(filling: float) -> Federation:
        table = partly()
        assert table.present is not None
        shown = zip((*table.train, *table.test), (*table.present.train, *table.present.held_out), strict=True)
        x = [torch.where(held[:, None], rows, filling) for rows, held in shown if isinstance(rows, Tensor)]
        fed = federation(replace(table, train=tuple(x[:M]), test=tuple(x[M:])), **MODES[mode], absence={"rate": 0.3})
        run(fed)
        return fed

    one, other = trained(0.0), trained(7.0)
    assert all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(other), strict=True))
    assert one.server.evaluation == other.server.evaluation


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_roles_apart_have_the_bits_of_roles_together_and_every_stand_in_learns(mode: str, rate: float) -> None:
    fed = federation(partly(), **MODES[mode], absence={"rate": rate})
    alone = apart(federation(partly(), **MODES[mode], absence={"rate": rate}))
    assert run(fed).total() == run(alone).total()
    assert all(torch.equal(a, b) for a, b in zip(parameters(fed), parameters(alone), strict=True))
    assert isinstance(fed.server.model, StandIns)
    learned = [bool(v.detach().any()) for v in fed.server.model.v]
    assert learned == [rate > 0, True, True]  # without drops the first party is never away


def test_an_evaluation_is_of_the_rows_as_they_are() -> None:
    fed = federation(partly(), **MODES["folded"], absence={"rate": 0.3})
    run(fed)
    table, model, found = partly(), fed.server.models["server"], fed.server.evaluation
    assert isinstance(model, StandIns)
    assert table.present is not None
    assert fed.server.held_out is not None
    for h, v, held in zip(fed.server.held_out, model.v, table.present.held_out, strict=True):
        assert torch.equal(h[~held], v.detach().expand(int((~held).sum()), -1))
        assert not torch.isclose(h[held], v.detach()).all(1).any()
    with torch.no_grad():
        outputs = model.eval()(fed.server.held_out)
    assert found is not None
    expected = fed.server.exchange.objective(outputs, table.test_labels)
    assert found.test["loss"] == pytest.approx(float(expected))


def test_sums_over_the_others_leave_the_same_parties_out_of_a_row_at_every_visit() -> None:
    fed = federation(partly(), **MODES["folded"] | {"partial_compressor": "identity"}, absence={"rate": 0.3})
    server, model = fed.server, fed.server.model
    assert isinstance(model, StandIns)
    with torch.no_grad():
        for m, v in enumerate(model.v, start=1):
            v.fill_(m)
    replies = [reply for party in fed.parties for message in party.start() for reply in server.receive(message)]
    batch = server.plan.batch(0)
    lacking = torch.stack([~held[batch] for held in presence().train])
    away = lacking | server.plan.left_out(batch)
    phi = model.substituted(_phi(server), torch.where(away.all(0), lacking, away))
    for m, reply in replies:
        assert isinstance(reply, Folded)
        told = fed.codecs.replies[m].decode(reply.partial, 0, (len(batch), server.plan.sum_width), server.plan.dtype)
        assert torch.allclose(told, model.fold(phi)[m - 1])


def _phi(server: Any) -> list[Tensor]:
    return [h.detach() for h in server._phi]


def test_gradients_of_rows_that_a_party_was_left_out_of_are_zero() -> None:
    fed = federation(partly(), **MODES["algorithm 2"] | {"gradient_compressor": "identity"}, absence={"rate": 0.3})
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    batch, server = fed.plan.batch(0), fed.server
    lacking = torch.stack([~held[batch] for held in presence().train])
    away = lacking | fed.plan.dropped(0, 0, len(batch))
    away = torch.where(away.all(0), lacking, away)
    for m, reply in replies:
        gradient = fed.codecs.replies[m].decode(reply.packet, 0, (len(batch), 4), server.plan.dtype)
        assert torch.equal(gradient.abs().sum(1) > 0, ~away[m - 1])


def test_without_a_rate_nothing_is_as_it_would_be_with_one() -> None:
    """No stand-ins and no new term: bits and bytes are those of earlier versions."""
    fed, off = federation(**AUTO), config(**AUTO, absence={"rate": 0.0})
    assert not isinstance(fed.server.model, StandIns)
    assert "absence" not in terms_of(off)
    assert terms_of(off) == terms_of(config(**AUTO))
    assert terms_of(config(**AUTO, absence={"rate": 0.1}))["absence"] == {"rate": 0.1}


def test_with_a_rate_embeddings_are_about_as_long_as_without() -> None:
    with_rate, without = (run(federation(**AUTO, absence={"rate": rate})).total() for rate in (0.2, 0.0))
    assert with_rate.up == pytest.approx(without.up, rel=0.3)


REFUSED: dict[str, dict[str, Any]] = {
    "absence needs sums over the others": {"absence": {"rate": 0.2}},
    "nobody can be left out": {
        "privacy": {"aggregation": "secure"},
        "compressor": "auto",
        "server_model": {"name": "sum"},
        "absence": {"rate": 0.2},
    },
    "does not fold|sums over the others": AUTO | {"server_model": {"name": "attention"}, "absence": {"rate": 0.2}},
}


@pytest.mark.parametrize("line", REFUSED)
def test_modes_in_which_nobody_can_be_left_out_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        federation(**REFUSED[line])


def test_one_party_alone_cannot_be_away() -> None:
    with pytest.raises(ConfigError, match="two parties or more"):
        federation(data(M=1), **AUTO, absence={"rate": 0.2})


def test_presence_must_fit_the_rows() -> None:
    held = presence()
    with pytest.raises(DataError, match="not of 60 training rows of 3 parties"):
        replace(data(), present=replace(held, train=held.train[:2]))
    with pytest.raises(DataError, match="held by nobody"):
        replace(data(), present=replace(held, train=(torch.zeros(ROWS).bool(), *held.train[1:])))


def test_the_rate_is_a_probability() -> None:
    with pytest.raises(ConfigError, match=r"absence\.rate"):
        config(absence={"rate": 1.0})
    assert isinstance(config(absence={"rate": 0.5}), RunConfig)
