"""A holder's private model: the same bits wherever roles are and after every fault, and nobody else has part in it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from conformance.cases import AUTO, NAMED, SECURE, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from conformance.test_law3_restart import FAULTS
from conformance.test_who_sees_what import captured
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, DataError, DecodeError, RemoteProtocolError
from cvfl.federation.builder import machines
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.named import NamedRows
from cvfl.federation.told_labels.randomise import Held
from cvfl.federation.train import train
from cvfl.privacy.private_model import Fitter, fit
from cvfl.protocol import Labels
from cvfl.protocol.learning.last_layer import LastLayer
from cvfl.runs.bundle import PRIVATE
from cvfl.runs.directory import PARAMETERS
from cvfl.runs.progress import Progress
from cvfl.serving.bundles import read_bundles
from cvfl.wire import Passed, decode, encode
from cvfl.wire.frame import kind_of
from cvfl.wire.message import EVALUATION, PASSED
from federations import config as small
from federations import data

pytestmark = pytest.mark.usefixtures("tidy")
OWN = {"labels": "bank", "label_epsilon": 2.0, "private_model": True}
CASES: dict[str, dict[str, Any]] = {
    "auto": {},
    "stopped early": {"rounds": 20, "stopping": {"patience": 1}, "step_size": {"eta": 0.5}},
    "secure": {key: SECURE[key] for key in ("compressor", "server_model")}
    | {"server_compressor": "scalar:bits=8", "privacy": OWN | {"aggregation": "secure"}},
}


def told(folder: Path, case: str = "auto", **changes: Any) -> RunConfig:
    """A bank with labels and a model of its own, and a shop; checkpoints lie between rounds."""
    data = {"validation_share": 0.2, "stratify": True}
    known = AUTO | {"batch_size": 16, "privacy": OWN, "every": 3} | CASES[case]
    return table_settings(folder, data, **known | changes)


def left(folder: Path) -> dict[str, bytes]:
    """What the holder has in the end."""
    return {path.name: path.read_bytes() for path in (folder / PRIVATE).iterdir()}


@pytest.mark.parametrize("case", [pytest.param("auto", marks=pytest.mark.slow), "stopped early", "secure"])
def test_the_model_has_the_same_bits_after_a_fault_at_every_frame_of_the_end(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cvfl.protocol.rows.BATCH", 16)
    write_tables(tmp_path)
    config = told(tmp_path, case)
    here = train(config, out=tmp_path / "one")
    expected, account = left(tmp_path / "one" / PARAMETERS), here.summary["label_privacy"]["private"]
    assert account["test"].keys() == {"loss", "accuracy", "f1", "roc_auc"}
    loop = Loop(config, tmp_path / "loop")
    while not loop.server.role.rounds.server or not loop.server.role.rounds.server.done:
        loop.step()
    first = loop.delivered
    loop.run()
    assert _same_private(loop, tmp_path / "loop" / "models", account, expected)
    others, faults = in_process(config), list(FAULTS.items())
    for n in range(first - 1, loop.delivered + 1):
        who, fault = faults[n % len(faults)]
        again_run = Loop(config, tmp_path / str(n))
        same(again_run.run({n: fault}), others)
        assert _same_private(again_run, tmp_path / str(n) / "models", account, expected), (n, who)


def _same_private(loop: Loop, models: Path, account: dict[str, Any], expected: dict[str, bytes]) -> bool:
    told = json.loads((models / "bank.json").read_text("utf-8"))["label_privacy"]["private"]
    found = left(models)
    weights = {name: value for name, value in found.items() if name.endswith(".safetensors")}
    return told == account and weights.items() <= expected.items() and found.keys() == expected.keys()


@pytest.mark.parametrize("at", ["Fitter._take", "fit"])
@pytest.mark.parametrize("stop", [SystemError, KeyboardInterrupt])
def test_a_stop_before_the_model_is_there_loses_nothing(
    at: str, stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, while the rows of all go to the holder or while it fits; state is kept after every round."""
    config = settings(**NAMED["told labels, private model"])
    whole = train(config, out=tmp_path / "whole", keep_seconds=0)
    take = Fitter._take

    def stopped(*given: Any) -> None:
        if at == "fit" or given[1] != given[0].m:  # the first of another party
            raise stop
        take(*given)

    with monkeypatch.context() as patched:
        patched.setattr(f"cvfl.privacy.private_model.{at}", stopped)
        if stop is KeyboardInterrupt:
            assert not train(config, out=tmp_path / "run", keep_seconds=0).summary["completed"]
            with pytest.raises(DataError, match=r"the private model of bank is missing, which alone scores"):
                read_bundles([tmp_path / "run"])
        else:
            with pytest.raises(stop):
                train(config, out=tmp_path / "run", keep_seconds=0)
    repeated: list[Progress] = []
    found = train(config, out=tmp_path / "run", resume=True, on_round=repeated.append)
    assert len(repeated) == (0 if at == "fit" else 1)
    assert found.summary["completed"]
    assert found.summary["label_privacy"] == whole.summary["label_privacy"]
    assert found.summary["bytes"] == whole.summary["bytes"]
    kept, weights = (left(tmp_path / name / PARAMETERS) for name in ("run", "whole")), "server.safetensors"
    assert len({one[weights] for one in kept}) == 1
    server, _ = read_bundles([tmp_path / "run"]).everyone()
    assert server.private


def test_the_run_is_over_to_all_others_before_it_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a fit takes depends on true labels, so nobody waits for it; a kill while it goes on repeats it alone."""
    config = settings(**NAMED["told labels, private model"])
    expected = in_process(config)
    loop = Loop(config, tmp_path)

    def stopped(*_: Any) -> None:
        raise SystemError

    with monkeypatch.context() as patched:
        patched.setattr("cvfl.privacy.private_model.fit", stopped)
        while not loop.over:
            loop.step()
        with pytest.raises(SystemError):
            loop.parties["bank"].finish(tmp_path / "models")
    loop.kill("bank")
    assert loop.parties["bank"].role.done
    same(loop.outcome(), expected)
    assert left(tmp_path / "models").keys() == {"server.model.json", "server.safetensors"}


def test_it_is_fitted_on_the_cpu_wherever_the_run_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings that were decoded are there, and so have true labels to be."""
    table = data()
    held = Labels(table.train_labels, table.test_labels, table.validation_labels)
    config = small(privacy={"labels": "org1", "label_epsilon": 1.0, "private_model": True})
    recipe = recipe_for(config, table)
    recipe = replace(recipe, plan=replace(recipe.plan, device=torch.device("meta")))
    own: list[tuple[Labels, int] | None] = [
        NamedRows(config, "org1", table, Held(held, ()))._own_labels(recipe, table.outputs)
    ]
    monkeypatch.setattr(machines, "party_machine", lambda *given: own.append(given[-1]))
    monkeypatch.setattr(machines, "server_machine", lambda *given: None)
    machines.make_federation(recipe, table, held=held)
    found = [one[0] for one in own if one is not None]
    assert len(found) == 2
    for labels in found:
        assert {y.device.type for y in (labels.train, labels.validation, labels.test)} == {"cpu"}


def test_a_packet_that_cannot_be_read_is_called_what_it_is() -> None:
    config = small(privacy={"labels": "org1", "label_epsilon": 1.0, "private_model": True})
    codecs = recipe_for(config, data()).codecs()
    with pytest.raises(DecodeError, match=r"^org2, round 12: the embedding of the last pass is none of shape"):
        codecs.last_pass[2].decode(b"", 12, (80, 4), torch.float64)


def test_all_of_the_fit_is_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices have other last bits with other threads: the outputs, too, from which scores come."""
    table = data()
    plan = recipe_for(small(privacy={"labels": "org1", "label_epsilon": 1.0, "private_model": True}), table).plan
    own = Labels(table.train_labels, table.test_labels, table.validation_labels)
    outputs, seen = LastLayer.outputs, set[int]()

    def watched(layer: LastLayer, phi: torch.Tensor) -> torch.Tensor:
        seen.update(pool["num_threads"] for pool in threadpool_info())
        return outputs(layer, phi)

    monkeypatch.setattr(LastLayer, "outputs", watched)
    with threadpool_limits(2):
        fit(plan, 3, torch.cat([*table.train[:1], *table.test[:1]]), own)
    assert seen == {1}


def test_faults_anywhere(tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = told(tmp_path)
    expected = in_process(config)
    for seed in range(6):
        draw = random.Random(seed)
        faults = {draw.randrange(90): FAULTS[draw.choice(list(FAULTS))] for _ in range(4)}
        same(Loop(config, tmp_path / str(seed), draw).run(faults), expected)


def test_the_others_hear_nothing_of_it_and_the_server_cannot_read(tmp_path: Path) -> None:
    """All rows go to the holder alone, sealed; and a run without a private model has all other bits."""
    write_tables(tmp_path)
    config, plain = told(tmp_path), told(tmp_path, privacy={"labels": "bank", "label_epsilon": 2.0})
    loop = Loop(config, tmp_path / "loop")
    heard = captured(loop)
    outcome = loop.run()
    passed = {name: [decode(one) for one in frames if kind_of(one) == PASSED] for name, frames in heard.items()}
    assert {name for name, frames in passed.items() if frames} == {"server", "bank"}
    for one in passed["server"]:
        assert isinstance(one, Passed)
        assert (one.to, one.kind, one.t0) == (1, EVALUATION, config.rounds)
    without = in_process(plain)
    assert outcome.models == without.models
    assert outcome.metrics == without.metrics
    more = outcome.bytes["evaluation"] - without.bytes["evaluation"]
    assert more == 2 * sum(len(encode(one)) for one in passed["server"])  # up, and down
    assert not (tmp_path / "loop" / "run" / "parameters" / PRIVATE).exists()


@pytest.mark.parametrize(
    "lie",
    [
        lambda frame: [frame, frame],
        lambda frame: [encode(Passed(frame.t0 + 1, frame.m, frame.to, frame.kind, frame.data))],
        lambda frame: [encode(Passed(frame.t0, frame.m, 3, frame.kind, frame.data))],
        lambda frame: [encode(Passed(frame.t0, frame.m, frame.to, 1, frame.data))],
        lambda frame: [encode(Passed(frame.t0, frame.m, frame.to, frame.kind, bytes(len(frame.data))))],
    ],
    ids=["twice", "another batch", "for another party", "of another kind", "forged"],
)
def test_a_lie_at_the_end_is_refused_by_name(lie: Any, tmp_path: Path) -> None:
    loop = Loop(settings(**NAMED["told labels, private model"]), tmp_path)
    while not (found := _passed_up(loop, "hospital")):
        loop.step()
    place, message = found
    waiting = loop.up["hospital"]
    told = [one if isinstance(one, bytes) else encode(one) for one in lie(message)]
    del waiting[place]
    for frame in reversed(told):
        waiting.insert(place, ("frame", frame))
    with pytest.raises(RemoteProtocolError, match=r"^hospital: "):
        loop.run()


def _passed_up(loop: Loop, name: str) -> tuple[int, Passed] | None:
    for place, (kind, frame) in enumerate(loop.up[name]):
        if kind == "frame" and kind_of(frame) == PASSED:
            message = decode(frame)
            assert isinstance(message, Passed)
            return place, message
    return None


@pytest.mark.parametrize("early", [2, 7])
def test_all_rows_before_the_end_are_refused(early: int, tmp_path: Path) -> None:
    """Also in the last round, before the server has answered it."""
    loop = Loop(settings(**NAMED["told labels, private model"]), tmp_path)
    while loop.server.role.rounds.server is None or loop.server.role.rounds.server.t0 < early:
        loop.step()
    with pytest.raises(RemoteProtocolError, match=r"^hospital: Passed of round"):
        loop.server.role.receive(1, encode(Passed(8, 1, 2, EVALUATION, b"x")))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"privacy": {"labels": "bank", "private_model": True}}, "private_model is for labels that are told with"),
        ({"privacy": OWN | {"labels": "server"}}, "private_model is for labels of a party"),
        ({"privacy": OWN, "absence": {"rate": 0.2}}, "send all rows once more when the rounds are over: not with"),
        ({"privacy": OWN | {"noise": 1.0, "clip": 1.0}}, "send all rows once more when the rounds are over: not with"),
        ({"privacy": OWN, "budget": 10_000}, "send all rows once more when the rounds are over: not with"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        settings(**changes)


def test_terms_of_runs_without_one_are_as_they_were() -> None:
    """Else no run of before could be gone on with."""
    config = settings(privacy={"labels": "bank", "label_epsilon": 2.0})
    assert "private_model" not in config.model_dump(mode="json", exclude_unset=True)["privacy"]
    from cvfl.federation.agreement.terms import terms_of  # noqa: PLC0415

    assert "private_model" not in terms_of(config)["privacy"]
    assert terms_of(parse_config(config.model_dump(mode="json") | {"privacy": OWN}))["privacy"]["private_model"]
