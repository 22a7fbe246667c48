"""Noise in a federation: nothing leaves but what was released, on every runtime, and a restart releases nothing new."""

from __future__ import annotations

import copy
import math
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.cases import AUTO, NAMED, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import Outcome, same
from conformance.threads import threads
from cvfl.config.schema import RunConfig
from cvfl.errors import RemoteProtocolError
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.roles import ServerRun
from cvfl.federation.state import NOISE, kept_secret
from cvfl.federation.train import train
from cvfl.privacy.noise_of_sum import SharedNoise
from cvfl.protocol import Loss, Party
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds
from cvfl.wire import Embedding, Evaluation, Folded, Message, decode, encode
from cvfl.wire.control import Hello, encode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.message import FOLDED, KINDS
from federations import config, data, parameters, run

pytestmark = pytest.mark.usefixtures("tidy")
PRIVACY: dict[str, Any] = {"clip": 1.0, "noise": 0.5}
SECRETS = {name: bytes([n]) * 32 for n, name in enumerate(("hospital", "bank", "insurer", "shop"))}
LINEAR: dict[str, Any] = {"server_model": {"name": "linear"}}
SUM: dict[str, Any] = {"server_model": {"name": "sum", "hidden": [5]}}
SHARED: dict[str, Any] = {"aggregation": "secure", "noise_shared": True}

WAYS: dict[str, dict[str, Any]] = {
    "identity": {},
    "scalar": {"compressor": "scalar:bits=3"},
    "scalar, fixed range": {"compressor": "scalar:bits=3,low=-1,high=1"},
    "lattice": {"compressor": "lattice:bits=2"},
    "top-k": {"compressor": "topk:bits=16"},
    "top-k by entry": {"compressor": "topk:bits=8,by=entry"},
    "schedule of top-k": {"compressor": "schedule(topk:bits=8)"},
    "shaped": {"compressor": "entropy(shaped)"},
    "feedback": {"compressor": "feedback(entropy(deadzone))"},
    "auto": {"compressor": "auto"},
    "auto, folded": {"compressor": "auto", "server_compressor": "auto"},
    "auto, algorithm 2": {"compressor": "auto", "algorithm": 2, "local_iterations": 1},
    "auto, algorithm 2, Q = 3, linear": {"compressor": "auto", "algorithm": 2} | LINEAR,
    "top-k, algorithm 2, Q = 3, mlp": {
        "compressor": "topk:bits=16",
        "algorithm": 2,
        "server_model": {"name": "mlp", "hidden": [5]},
    },
}


class Given:
    """A release that owes nothing to the embedding."""

    def __call__(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        values = torch.from_numpy(stream(1, purpose, t0).uniform(h.numel())).to(h) * 2 - 1
        return values.reshape(h.shape)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def restarted(party: Party, fed: Federation) -> Party:
    """The party in a fresh memory; the answer to what it sent is still to come."""
    again = fed.recipe.party(party.m, party.holding, fed.recipe.codecs())
    again.release = party.release
    again.load_state_dict(party.state_dict())
    return again


def sent(way: dict[str, Any], first: float, restarts: bool = False) -> tuple[list[bytes], list[Tensor]]:
    """What org1 sends, and the parameters it ends with; its columns are multiplied by `first`."""
    table = data()
    table = replace(
        table, train=(table.train[0] * first, *table.train[1:]), test=(table.test[0] * first, *table.test[1:])
    )
    changes = {"local_iterations": 3, "rounds": 9, "batch_size": 30, "evaluate_every": 3} | way
    secrets = dict.fromkeys(table.names, bytes(32))
    fed = make_federation(recipe_for(config(privacy=PRIVACY, **changes), table), table, True, secrets)
    server, parties = fed.server, list(fed.parties)
    parties[0].release = Given()
    frames: list[bytes] = []

    def delivered(m: int, messages: list[Message]) -> list[tuple[int, Message]]:
        frames.extend(encode(message) for message in messages if m == 1)
        return [reply for message in messages for reply in server.receive(message)]

    replies = [reply for party in parties for reply in delivered(party.m, party.start())]
    while replies:
        if restarts:
            parties[0] = restarted(parties[0], fed)
        server.train()
        answers = [(m, parties[m - 1].receive(message)) for m, message in replies]
        early = [(m, [a for a in said if isinstance(a, Evaluation)]) for m, said in answers]
        late = [(m, [a for a in said if not isinstance(a, Evaluation)]) for m, said in answers]
        replies = [reply for m, said in (*early, *late) for reply in delivered(m, said)]
    assert parties[0].done
    return frames, [value.detach() for value in parties[0].model.parameters()]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_party_sends_depends_on_what_it_releases_alone(way: str) -> None:
    """Other columns and the same releases: every byte is the same, though another model was learnt."""
    frames, model = sent(WAYS[way], 1.0)
    others, other_model = sent(WAYS[way], -2.0, restarts=True)
    assert len(frames) == 9 + 3
    assert not any(torch.equal(a, b) for a, b in zip(model, other_model, strict=True))
    assert frames == others


def noisy(**changes: Any) -> RunConfig:
    return settings(**{"privacy": PRIVACY} | changes)


RUNS: dict[str, RunConfig] = {
    "top-k": noisy(),
    "identity": noisy(**NAMED["identity"]),
    "a grid": noisy(compressor="scalar:bits=4,low=-1,high=1"),
    "auto": noisy(**AUTO),
    "algorithm 2": noisy(**NAMED["algorithm 2, top-k, adam"]),
    "algorithm 2, private labels, Q = 2": noisy(privacy=PRIVACY | {"labels": "server"}),
    "labels at a party": noisy(privacy=PRIVACY | {"labels": "bank"}),
    "clipped alone": noisy(privacy={"clip": 0.5}),
    "secure": noisy(privacy=PRIVACY | {"aggregation": "secure"}, compressor="auto", **SUM),
    "shared": noisy(privacy=PRIVACY | SHARED, compressor="auto", **SUM),
    "shared, labels at a party": noisy(
        privacy=PRIVACY | SHARED | {"labels": "bank"},
        data={"name": "wine", "parties": 3},
        compressor="scalar:bits=8,low=-2,high=2",
        server_model={"name": "sum"},
    ),
}


def expected(config: RunConfig) -> Outcome:
    return Outcome.of(train(config, noise_secrets=SECRETS))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties that have the secrets which `expected` is given, wherever they keep them."""

    def secret(path: Path) -> bytes:
        if path.name != NOISE:
            return kept_secret(path)
        return next(SECRETS[folder.name] for folder in path.parents if folder.name in SECRETS)

    monkeypatch.setattr("cvfl.federation.roles.party_run.kept_secret", secret)


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize("case", RUNS)
def test_one_trajectory(case: str, tmp_path: Path) -> None:
    config = RUNS[case]
    faults: dict[int, Callable[[Loop], None]] = {9: Loop.kill_all, 25: lambda loop: loop.kill("bank")}
    same(Loop(config, tmp_path, random.Random(1)).run(faults), expected(config))


@pytest.mark.usefixtures("given")
def test_one_trajectory_by_grpc_and_with_own_tables(tmp_path: Path) -> None:
    for case in ("auto", "shared"):
        with threads(RUNS[case], tmp_path / case) as federation:
            federation.start_all()
            same(federation.outcome(), expected(RUNS[case]))
    write_tables(tmp_path)
    for more in ({}, {"privacy": PRIVACY | SHARED, "compressor": "auto"} | SUM):
        config = table_settings(tmp_path, **{"privacy": PRIVACY} | more)
        same(Loop(config, tmp_path / f"loop {len(more)}").run(), expected(config))


def overheard(loop: Loop, kills: Sequence[int] = ()) -> dict[tuple[str, int, int], list[bytes]]:
    """All that parties send in a run, by party, kind and round; all roles are killed before some frames."""
    said: defaultdict[tuple[str, int, int], list[bytes]] = defaultdict(list)
    todo = set(kills)
    while not loop.over:
        if loop.delivered in todo:
            todo.remove(loop.delivered)
            loop.kill_all()
        before = {name: len(loop.up[name]) for name in loop.names}
        loop.step()
        for name in loop.names:
            for kind, frame in list(loop.up[name])[before[name] :]:
                if kind == "frame" and kind_of(frame) in KINDS:
                    said[name, kind_of(frame), decode(frame).t0].append(frame)
    return said


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("case", ["top-k", "auto"])
def test_a_restart_releases_nothing_new(case: str, every: int, tmp_path: Path) -> None:
    """Roles are killed at every few frames, also before the first checkpoint; the secrets are their own."""
    network = RUNS[case].network.model_copy(update={"checkpoint_every": every})
    config = RUNS[case].model_copy(update={"network": network})
    said = overheard(Loop(config, tmp_path / "killed"), range(20, 140, 30))
    repeated = [frames for frames in said.values() if len(frames) > 1]
    assert len(repeated) > 4
    assert all(len(set(frames)) == 1 for frames in repeated)
    fresh = overheard(Loop(config, tmp_path / "fresh"))
    assert fresh.keys() == said.keys()
    assert not any(frames[0] in said[key] for key, frames in fresh.items() if key[2] > 0 or case == "top-k")


@pytest.mark.parametrize("every", [1, 100])
def test_a_restart_tells_no_other_sum_of_shared_noise(every: int, tmp_path: Path) -> None:
    """Masks are new in every session, and what they hide is the same: a round has one sum, however often it comes."""
    network = RUNS["shared"].network.model_copy(update={"checkpoint_every": every})
    config = RUNS["shared"].model_copy(update={"network": network})
    loop = Loop(config, tmp_path / "killed")
    told: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    kills = set(range(20, 140, 30))
    while not loop.over:
        if loop.delivered in kills:
            kills.remove(loop.delivered)
            loop.kill_all()
        before = {name: len(loop.down[name]) for name in loop.names}
        loop.step()
        for m, name in enumerate(loop.names):
            for frame in list(loop.down[name])[before[name] :]:
                if kind_of(frame) == FOLDED:
                    message = decode(frame)
                    assert isinstance(message, Folded)
                    told[m, message.t0].append(bytes(message.partial))
    assert sum(len(packets) > 1 for packets in told.values()) > 2
    assert all(len(set(packets)) == 1 for packets in told.values())
    assert len({packets[0] for (m, _), packets in told.items() if m == 0}) == config.rounds


def test_noise_that_is_shared_is_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank has the same rows in the same order again, the shop has others: both draw anew, but in a restart."""
    write_tables(tmp_path)
    privacy = PRIVACY | SHARED
    config = table_settings(tmp_path, every=100, rounds=2, **{"privacy": privacy, "compressor": "auto"} | SUM)
    released: dict[tuple[str, int, bytes], Tensor] = {}
    repeated, release = 0, SharedNoise.__call__

    def heard(self: SharedNoise, h: Tensor, purpose: str, t0: int) -> Tensor:
        nonlocal repeated
        out, key = release(self, h, purpose, t0), (purpose, t0, h.detach().numpy().tobytes())
        repeated += key in released
        assert released.setdefault(key, out).equal(out)
        return out

    monkeypatch.setattr(SharedNoise, "__call__", heard)

    def told() -> dict[tuple[str, int, bytes], Tensor]:
        released.clear()
        loop = Loop(config, tmp_path / "state")
        for part in ("run", "models"):
            shutil.rmtree(tmp_path / "state" / part, ignore_errors=True)
        loop.run({25: Loop.kill_all})
        return dict(released)

    first = told()
    table = tmp_path / "shop.csv"
    table.write_text(table.read_text("utf-8").replace("Kiel", "Bonn"), "utf-8")
    second = told()
    assert repeated
    same_rows = first.keys() & second.keys()
    assert any(purpose == "embedding" and t0 == 0 for purpose, t0, _ in same_rows)
    assert not any(first[key].equal(second[key]) for key in same_rows)


def test_noise_that_is_shared_is_never_in_two_runs_of_some_parties(tmp_path: Path) -> None:
    """One party alone has begun anew: the others would repeat their noise, and it would not."""
    config = RUNS["shared"].model_copy(
        update={"network": RUNS["shared"].network.model_copy(update={"checkpoint_every": 100})}
    )
    loop = Loop(config, tmp_path)
    while loop.server.role.rounds.server is None or loop.server.role.rounds.server.t0 < 1:
        loop.step()
    loop.restart = True
    loop.kill("bank")
    loop.restart = False
    with pytest.raises(RemoteProtocolError, match=r"^hospital: from the server: .* start every party with --restart"):
        loop.run()
    loop.restart_all()
    assert len(loop.run().history) == config.rounds


def test_the_sum_has_the_noise_of_all_and_a_party_alone_a_part_of_it() -> None:
    """The sum that the server reads beside what parties computed, in training and in evaluations."""
    table = data(Loss.BINARY, M=4, rows=600)
    privacy = {"clip": 1.0, "noise": 2.0} | SHARED
    recipe = recipe_for(config(privacy=privacy, batch_size=250, rounds=1, compressor="auto", **SUM), table)
    fed = make_federation(recipe, table)
    packets, evaluations, exact, held_out = {}, {}, [], []
    for party in fed.parties:
        release = party.release
        assert release is not None

        def spied(h: Tensor, purpose: str, t0: int, release: Any = release) -> Tensor:
            (exact if purpose == "embedding" else held_out).append(h.detach())
            out = release(h, purpose, t0)
            assert float((out - h.detach()).std()) == pytest.approx(2 / math.sqrt(4), rel=_spread(h))
            return out

        party.release = spied  # type: ignore[assignment]
        (message,) = party.start()
        assert isinstance(message, Embedding)
        packets[party.m] = message.packet
        evaluations[party.m] = party._evaluation(0).packet
    for held, sent, parts in ((False, packets, exact), (True, evaluations, held_out)):
        exchange = fed.server.exchange
        (total,) = exchange.read(exchange.gathered(sent, 0, held), 0, held)
        noise = total - torch.stack(parts).sum(0)
        assert float(noise.std()) == pytest.approx(2, rel=_spread(noise))
        assert abs(float(noise.mean())) < 5 * 2 / math.sqrt(noise.numel())


def _spread(numbers: Tensor) -> float:
    """How far a standard deviation is off at most, of so many."""
    return 4 / math.sqrt(2 * numbers.numel())


def test_a_fresh_run_draws_other_noise_and_given_secrets_the_same() -> None:
    config = RUNS["identity"]
    one, other = train(config), train(config)
    assert one.summary["parameters"] != other.summary["parameters"]
    again = train(config, noise_secrets=SECRETS).summary["parameters"]
    assert again == train(config, noise_secrets=SECRETS).summary["parameters"]
    assert again != train(config, noise_secrets=SECRETS | {"bank": bytes(32)}).summary["parameters"]


@pytest.mark.parametrize("compressor", ["identity", "auto"])
def test_a_party_that_is_restored_sends_the_same_again(compressor: str) -> None:
    """From its state alone, as a run in one process is taken up again."""
    table = data()
    recipe = recipe_for(config(privacy=PRIVACY, compressor=compressor, evaluate_every=1), table)
    fed = make_federation(recipe, table, apart=True)
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    party, (m, message) = fed.parties[0], replies[0]
    assert m == party.m
    states = [copy.deepcopy(party.state_dict())]
    said = party.receive(message)
    assert [type(one) for one in said] == [Evaluation, Embedding]
    states.append(party.state_dict())
    for state, asked in zip(states, (lambda again: again.receive(message), lambda again: again.start()), strict=True):
        again = recipe.party(party.m, party.holding, recipe.codecs())
        again.load_state_dict(state)
        answer = asked(again)
        assert answer == said[-len(answer) :]


def test_clipping_is_for_training_and_evaluation() -> None:
    table = data()
    fed = make_federation(recipe_for(config(privacy={"clip": 0.05}, rounds=1), table), table)
    decoded: dict[str, Tensor] = {}
    for party in fed.parties:
        for message in party.start():
            assert isinstance(message, Embedding)
            decoded["training"] = fed.codecs.embeddings[party.m].decode(message.packet, 0, (16, 4), torch.float64)
        message = party._evaluation(0)
        decoded["held out"] = fed.codecs.evaluations[party.m].decode(message.packet, 0, (20, 4), torch.float64)
        for h in decoded.values():
            assert float(h.norm(dim=1).max()) == pytest.approx(0.05)


def test_noise_is_another_for_every_party_and_round() -> None:
    """With the identity: what the server decodes is not what the party computed."""
    table = data()
    fed = make_federation(recipe_for(config(privacy=PRIVACY, rounds=3), table), table)
    noise = []
    for party in fed.parties:
        (message,) = party.start()
        assert isinstance(message, Embedding)
        assert party._h is not None
        assert float(party._h.detach().norm(dim=1).max()) <= 1 + 1e-12
        shape = (len(party._h), 4)
        noise.append(fed.codecs.embeddings[party.m].decode(message.packet, 0, shape, torch.float64) - party._h.detach())
    spread = torch.stack([z.reshape(-1) for z in noise])
    assert spread.std().item() == pytest.approx(0.5, rel=0.2)
    assert float((torch.corrcoef(spread) - torch.eye(3)).abs().max()) < 0.5


def test_the_secret_is_in_the_state_and_nowhere_else(tmp_path: Path) -> None:
    """It is on disk before the first embedding leaves, and no frame, record or configuration has it."""
    config = RUNS["identity"]
    loop = Loop(config, tmp_path)
    frames: list[bytes] = []
    known: set[bytes] = set()
    while not loop.over:
        loop.step()
        frames += [frame for name in loop.names for _, frame in loop.up[name]]
        frames += [frame for name in loop.names for frame in loop.down[name]]
        for name in loop.names:
            if loop.parties[name].role.party is not None:
                known.add((tmp_path / name / "noise.secret").read_bytes())
    assert len(known) == 2
    assert all(len(secret) == 32 for secret in known)
    loop.outcome()
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    written += [path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert len(written) > 4
    for secret in known:
        assert not any(secret in text or secret.hex().encode() in text for text in (*frames, *written))


@pytest.mark.parametrize(
    "changes",
    [{"algorithm": 2}, pytest.param({"compressor": "auto"}, marks=pytest.mark.slow)],
    ids=["algorithm 2", "auto"],
)
def test_training_survives_some_noise_and_not_much(changes: dict[str, Any]) -> None:
    """On average over draws: the loss of a single run moves by more than a tenth with them."""
    table = data(Loss.BINARY, M=2, rows=200)
    settings = {"rounds": 40, "batch_size": 50, "evaluate_every": 40, "step_size": {"eta": 2.0}} | changes
    loss = []
    for noise in (None, 0.05, 0.5, 50.0):
        privacy = {"clip": 1.0} | ({"noise": noise} if noise else {})
        recipe, drawn = recipe_for(config(privacy=privacy, **settings), table), []
        for n in range(6 if noise else 1):
            secrets = {"org1": bytes([n]) * 32, "org2": bytes([n + 100]) * 32}
            fed = make_federation(recipe, table, noise_secrets=secrets)
            run(fed)
            assert fed.server.evaluation is not None
            drawn.append(fed.server.evaluation.test["loss"])
        loss.append(float(np.mean(drawn)))
    assert loss[0] < 0.5  # chance is 0.69
    assert loss[1] < loss[0] + 0.1
    assert loss[1] < loss[2] < loss[3]


def test_clipping_changes_nothing_that_is_short() -> None:
    """The parties' models end within [-1, 1], four numbers wide: no row is longer than 2."""
    table = data()

    def trained(**privacy: float) -> list[Tensor]:
        fed = make_federation(recipe_for(config(privacy=privacy, rounds=6), table), table)
        for _ in rounds(fed.server, fed.parties, Meter(), 1):
            pass
        return parameters(fed)

    assert all(torch.equal(a, b) for a, b in zip(trained(), trained(clip=2.0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(trained(), trained(clip=0.1), strict=True))


def test_roles_that_differ_in_noise_do_not_train_together(tmp_path: Path) -> None:
    ours, theirs = RUNS["identity"], noisy(**NAMED["identity"], privacy=PRIVACY | {"noise": 0.4})
    server = ServerRun(ours, "test", tmp_path).role
    hello = Hello(name="bank", terms=terms_of(theirs), offer=offer_of(theirs, "bank"))
    with pytest.raises(RemoteProtocolError, match=r"^privacy differs: bank has .*0\.4"):
        server.join(encode_control(hello, 0), "bank")


def test_roles_that_differ_in_whose_noise_it_is_do_not_train_together(tmp_path: Path) -> None:
    """The term is there only where it is set: terms of other runs have the digest that they always had."""
    ours, theirs = RUNS["secure"], RUNS["shared"]
    assert "noise_shared" not in terms_of(ours)["privacy"]
    server = ServerRun(ours, "test", tmp_path).role
    hello = Hello(name="bank", terms=terms_of(theirs), offer=offer_of(theirs, "bank"))
    with pytest.raises(RemoteProtocolError, match=r"^privacy differs: bank has .*noise_shared"):
        server.join(encode_control(hello, 0), "bank")
