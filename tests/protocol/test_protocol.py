"""The message machines: order, shapes, restart between any two messages, determinism."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from cvfl.compress import Scalar
from cvfl.errors import CompressError, ConfigError, CvflError, DataError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.train import train
from cvfl.protocol import Codec, Loss, Plan, StepSize
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.wire import Broadcast, Embedding, Gradient, Message
from federations import apart, config, data, federation, parameters, run

LOSSY = {"compressor": "lattice:bits=3", "server_compressor": "scalar:bits=4", "local_iterations": 3}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread_a_role():  # sums, and so bits, depend on how many threads share them
        yield


CASES = {
    "quantized": LOSSY,
    "top-k": LOSSY | {"compressor": "topk:bits=8", "server_compressor": "topk:bits=8"},
    "algorithm 2": {"algorithm": 2, "compressor": "scalar:bits=3", "gradient_compressor": "scalar:bits=8"},
    "adam": LOSSY | {"optimizer": {"name": "adam"}},
    "momentum": LOSSY | {"optimizer": {"momentum": 0.9}, "step_size": {"eta": 0.02}},
    "schedule": LOSSY | {"compressor": "schedule(scalar:bits=2):rate=0.5"},
    "feedback": LOSSY | {"compressor": "feedback(topk:bits=4)", "server_compressor": "feedback(scalar:bits=2)"},
    "feedback, algorithm 2": {
        "algorithm": 2,
        "compressor": "feedback(scalar:bits=2)",
        "gradient_compressor": "feedback(entropy(deadzone))",
    },
    "auto": LOSSY | {"compressor": "auto", "server_compressor": "auto"},
    "auto, nothing folded": LOSSY | {"compressor": "auto", "server_compressor": "auto", "folding": False},
}


@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_bits_whatever_runs_side_by_side(case: str) -> None:
    one, other = federation(**CASES[case]), federation(**CASES[case])
    alone = apart(federation(**CASES[case]))
    meters = run(one, workers=1), run(other, workers=3), run(alone)
    for another in (other, alone):
        assert all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(another), strict=True))
    assert meters[0] == meters[1] == meters[2]
    different = federation(**CASES[case], seed=4, rounds=1)
    run(different)
    assert not torch.equal(parameters(one)[0], parameters(different)[0])


@pytest.mark.parametrize("case", CASES)
def test_restart_between_any_two_messages_changes_nothing(case: str) -> None:
    whole = federation(**CASES[case])
    run(whole)
    fed = apart(federation(**CASES[case]))
    inbox: list[Message] = [message for party in fed.parties for message in party.start()]
    while not fed.server.done:
        replies = []
        for message in inbox:
            replies += fed.server.receive(message)
            fed = _restarted(fed, 0)
        inbox = []
        if replies:
            fed.server.train()
            fed = _restarted(fed, *range(4))  # those too that have not changed since their last restart
        for m, message in replies:
            inbox += fed.parties[m - 1].receive(message)
            fed = _restarted(fed, m)
    assert all(torch.equal(a, b) for a, b in zip(parameters(fed), parameters(whole), strict=True))
    assert fed.server.evaluation == whole.server.evaluation


def _restarted(fed: Federation, *roles: int) -> Federation:
    """The same federation with these roles, the server is 0, as new objects that know only the saved states."""
    recipe, server, parties = fed.recipe, fed.server, list(fed.parties)
    for m in roles:
        if m == 0:
            server = recipe.server(server.labels, recipe.codecs())
            server.load_state_dict(copy.deepcopy(fed.server.state_dict()))
        else:
            parties[m - 1] = recipe.party(m, parties[m - 1].holding, recipe.codecs())
            parties[m - 1].load_state_dict(copy.deepcopy(fed.parties[m - 1].state_dict()))
    return Federation(recipe, fed.codecs, (server, tuple(parties)))


def _with_states(fresh: Federation, fed: Federation) -> Federation:
    fresh.server.load_state_dict(copy.deepcopy(fed.server.state_dict()))
    for old, new in zip(fed.parties, fresh.parties, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    return fresh


class Shaky(nn.Sequential):
    """Normalisation and dropout: layers with statistics and randomness of their own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 4))
        self.double()


def test_dropout_and_batch_norm_are_deterministic_and_survive_a_restart() -> None:
    def make() -> Federation:
        return make_federation(replace(federation(local_iterations=2).recipe, models=(Shaky,) * 3), data())

    one, other, cut = make(), make(), make()
    run(one)
    torch.manual_seed(99)  # ambient randomness must not matter
    run(other, workers=3)
    assert all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(other), strict=True))
    inbox = [message for party in cut.parties for message in party.start()]
    for _ in range(cut.plan.rounds):
        replies = [reply for message in inbox for reply in cut.server.receive(message)]
        cut.server.train()
        cut = _with_states(make(), cut)
        inbox = [message for m, reply in replies for message in cut.parties[m - 1].receive(reply)]
    assert all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(cut), strict=True))


def test_messages_out_of_order_are_refused_by_name() -> None:
    fed = federation()
    party, server = fed.parties[0], fed.server
    with pytest.raises(LocalProtocolError, match=r"org1: start\(\)"):
        party.receive(Broadcast(0, (), ()))
    (message,) = party.start()
    with pytest.raises(RemoteProtocolError, match="org1: Broadcast of round 5 in round 0"):
        party.receive(Broadcast(5, (), ()))
    with pytest.raises(RemoteProtocolError, match="Gradient of round 0 in round 0 of algorithm 1"):
        party.receive(Gradient(0, b""))
    with pytest.raises(LocalProtocolError, match="train"):
        server.train()
    assert server.receive(message) == []
    with pytest.raises(RemoteProtocolError, match="party 1"):
        server.receive(message)
    with pytest.raises(RemoteProtocolError, match="party 9"):
        server.receive(Embedding(0, 9, b""))
    with pytest.raises(RemoteProtocolError, match="round 3 in round 0"):
        server.receive(Embedding(3, 2, b""))


def test_a_broadcast_must_hold_exactly_the_other_parties() -> None:
    fed = federation()
    replies = [r for party in fed.parties for message in party.start() for r in fed.server.receive(message)]
    (m, broadcast) = replies[0]
    assert m == 1
    assert isinstance(broadcast, Broadcast)
    with pytest.raises(RemoteProtocolError, match=r"org1: embeddings of \[2\], not of \[2, 3\]"):
        fed.parties[0].receive(Broadcast(0, broadcast.model, broadcast.embeddings[:1]))


def test_an_embedding_of_the_wrong_shape_names_the_party() -> None:
    fed = federation()
    for party in fed.parties[:2]:
        fed.server.receive(party.start()[0])
    wrong = Codec(Scalar(bits=8), 3, 3, "org3").encode(torch.zeros(16, 3, dtype=torch.float64), 0)
    with pytest.raises(RemoteProtocolError, match=r"org3, round 0: the embedding is none of shape \(16, 4\)"):
        fed.server.receive(Embedding(0, 3, wrong))


def test_nan_and_infinity_name_the_party_and_round() -> None:
    fed = federation(compressor="scalar:bits=4")
    with torch.no_grad():
        next(iter(fed.parties[1].model.parameters()))[0] = float("nan")
    with pytest.raises(CompressError, match="org2, round 0: the embedding holds a NaN"):
        fed.parties[1].start()


def test_algorithm_1_needs_labels_at_the_parties() -> None:
    fed = federation()
    party = fed.parties[0]
    party.exchange.labels = None
    replies = [r for p in fed.parties for message in p.start() for r in fed.server.receive(message)]
    with pytest.raises(DataError, match="org1: algorithm 1 needs the training labels"):
        party.receive(replies[0][1])


def test_algorithm_2_parties_hold_no_labels_and_learn() -> None:
    fed = federation(data(Loss.BINARY, rows=200), algorithm=2, rounds=150, step_size={"eta": 0.5})
    assert all(party.holding.labels is None for party in fed.parties)
    run(fed)
    assert fed.server.evaluation is not None
    assert fed.server.evaluation.test["roc_auc"] > 0.9


def test_split_learning_is_one_party_and_one_iteration() -> None:
    fed = federation(data(Loss.MULTICLASS, M=1, rows=200), rounds=150, step_size={"eta": 0.5})
    run(fed)
    assert fed.server.evaluation is not None
    assert fed.server.evaluation.test["accuracy"] > 0.8


def test_batches_cover_every_row_once_an_epoch_and_change_order() -> None:
    plan = Plan(1, 8, 1, 16, 60, 0, (2,), Loss.BINARY, StepSize(eta=0.1))
    epochs = [torch.cat([plan.batch(epoch * 4 + i) for i in range(4)]) for epoch in range(2)]
    assert all(sorted(order.tolist()) == list(range(60)) for order in epochs)
    assert not torch.equal(*epochs)
    assert [len(plan.batch(t0)) for t0 in range(4)] == [16, 16, 16, 12]


@pytest.mark.parametrize(
    ("step", "t0", "expected"),
    [
        (StepSize(eta=0.4), 7, 0.4),
        (StepSize(eta=0.4, schedule="sqrt"), 7, 0.04),
        (StepSize(eta=0.4, schedule="inverse"), 3, 0.1),
        (StepSize(eta=0.4, schedule="milestones", milestones=(2, 5), factor=0.5), 1, 0.4),
        (StepSize(eta=0.4, schedule="milestones", milestones=(2, 5), factor=0.5), 2, 0.2),
        (StepSize(eta=0.4, schedule="milestones", milestones=(2, 5), factor=0.5), 9, 0.1),
        (StepSize(eta=0.4, schedule="cosine"), 0, 0.4),
        (StepSize(eta=0.4, schedule="cosine"), 10, 0.2),
        (StepSize(eta=0.4, schedule="cosine"), 15, 0.4 * (1 - 0.5**0.5) / 2),
        (StepSize(eta=0.4, warmup=3), 0, 0.1),
        (StepSize(eta=0.4, warmup=3), 2, 0.3),
        (StepSize(eta=0.4, warmup=3), 3, 0.4),
        (StepSize(eta=0.4, schedule="cosine", warmup=39), 10, 0.2 * 11 / 40),
    ],
)
def test_step_sizes(step: StepSize, t0: int, expected: float) -> None:
    assert step.at(t0, R=20, Q=5) == pytest.approx(expected)


def test_own_modules_as_party_and_server_models() -> None:
    """Different widths, normalisation, dropout and a deep head that is no part of cvfl."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.Sequential(nn.Linear(7, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, embeddings: list[torch.Tensor]) -> torch.Tensor:
            return self.deep(torch.cat(embeddings, 1))

    models = [lambda: nn.Linear(5, 3), lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))]
    cfg = config(precision="float32", compressor="lattice:bits=4", server_compressor="scalar:bits=8", rounds=60)
    result = train(cfg, data(M=2, rows=200, dtype=torch.float32), models=models, server_model=Head)
    assert result.summary["metrics"]["test"]["accuracy"] > 0.6
    with pytest.raises(ConfigError, match="1 models for 2 parties"):
        train(cfg, data(M=2, dtype=torch.float32), models=models[:1])
    with pytest.raises(ConfigError, match="org1: a party's model gives B x P numbers"):
        train(cfg, data(M=1, dtype=torch.float32), models=[lambda: nn.Unflatten(1, (5, 1))])


def test_an_unavailable_device_is_named() -> None:
    with pytest.raises(ConfigError, match="device: 'warp' is not available here"):
        federation(device="warp")


def test_divergence_is_said_in_one_line() -> None:
    fed = federation(data(Loss.SQUARED), step_size={"eta": 1e200}, rounds=4)
    with pytest.raises(CvflError, match=r"(server|org\d), round \d: .*(not finite|NaN|if training diverged)"):
        run(fed)  # which of them depends on how the machine multiplies matrices


def test_a_server_model_that_diverges_is_named() -> None:
    fed = federation()
    replies = [r for party in fed.parties for message in party.start() for r in fed.server.receive(message)]
    assert len(replies) == 3
    with torch.no_grad():
        next(iter(fed.server.model.parameters())).fill_(float("inf"))
    with pytest.raises(DataError, match="server, round 0: the loss is not finite; training diverged"):
        fed.server.train()
