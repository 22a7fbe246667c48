"""Labels that stay with a party, in whole federations: the same run by any carrier, and a server that sees none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import SERVER, settings, table_settings, write_config, write_tables
from conformance.loop import Loop
from conformance.outcome import Outcome, in_process, of_parties, same, written
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.agreement.labels import TableLabels
from cvfl.federation.agreement.terms import offer_of
from cvfl.federation.processes import add_parties, train_grpc
from cvfl.wire import Embedding, Passed, Report, decode, encode
from cvfl.wire.control import Hello, Settled, decode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.message import KINDS, PASSED, REPORT
from cvfl.wire.targets import Targets
from federations import data, federation, parameters, run

pytestmark = pytest.mark.usefixtures("tidy")
AT_BANK = {"privacy": {"labels": "bank"}, "local_iterations": 1}


@pytest.mark.parametrize(
    ("holder", "changes"),
    [
        ("org1", {}),
        ("org3", {"compressor": "lattice:bits=3", "gradient_compressor": "scalar:bits=6", "local_iterations": 3}),
        ("org2", {"compressor": "auto", "server_compressor": "auto", "server_model": {"name": "mlp", "hidden": [5]}}),
        ("org1", {"optimizer": {"name": "adam"}, "compressor": "topk:bits=8", "precision": "float32"}),
        ("org3", {"compressor": "auto", "server_model": {"name": "sum"}, "aggregation": "secure"}),
    ],
    ids=["identity", "quantized, Q = 3", "auto", "adam", "secure"],
)
def test_where_the_labels_are_changes_no_bit(holder: str, changes: dict[str, Any]) -> None:
    """Law 1, with labels at a party: the run is that with labels at the server, and so that of centralised SGD."""
    more = {key: value for key, value in changes.items() if key != "aggregation"}
    aggregation = changes.get("aggregation", "open")
    table = data(dtype=getattr(torch, changes.get("precision", "float64")))
    ours, theirs = (
        federation(table, **more, rounds=6, evaluate_every=2, privacy={"labels": labels, "aggregation": aggregation})
        for labels in (holder, "server")
    )
    run(ours)
    run(theirs)
    assert all(torch.equal(a, b) for a, b in zip(parameters(ours), parameters(theirs), strict=True))
    assert theirs.server.evaluation is not None
    assert ours.roles[0].evaluation == replace(theirs.server.evaluation, embeddings={}, largest={})  # not for a relay
    assert ours.roles[0].loss == theirs.server.loss


def tables(folder: Path, flipped: bool = False, **changes: Any) -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(folder, unlabelled=(3, 40, 41))
    if flipped:
        other = {"overdue": "settled", "settled": "overdue"}
        text = (folder / "bank.csv").read_text(encoding="utf-8")
        (folder / "bank.csv").write_text(re.sub("|".join(other), lambda word: other[word[0]], text), encoding="utf-8")
    return table_settings(folder, **AT_BANK | changes)


def test_own_tables(tmp_path: Path) -> None:
    config = tables(tmp_path, data={"validation_share": 0.2})
    expected = in_process(config)
    same(Loop(config, tmp_path / "loop").run(), expected, setup=True)


@pytest.mark.slow
def test_the_command_that_starts_all_roles(tmp_path: Path) -> None:
    """Real processes."""
    config = tables(tmp_path, rounds=3)
    summary = train_grpc(write_config(tmp_path / "fed.toml", config), [], tmp_path / "run")
    expected = in_process(config)
    models = of_parties(tmp_path / "run" / "parameters")
    same(Outcome.recorded(models, summary, written(tmp_path / "run" / "metrics.jsonl")), expected)


def test_the_server_model_is_left_with_the_label_holder(tmp_path: Path) -> None:
    """The server's run directory has none until what parties of the same machine wrote is added to it."""
    loop = Loop(tables(tmp_path, rounds=2), tmp_path / "loop")
    expected = loop.run()
    run_folder, models = tmp_path / "loop" / "run", tmp_path / "loop" / "models"
    assert list((run_folder / "parameters").iterdir()) == []
    assert json.loads((run_folder / "summary.json").read_text())["parameters"].keys() == {"bank", "shop", "server"}
    assert {path.stem for path in models.glob("*.safetensors")} == {"bank", "shop", "server"}
    assert "server" in json.loads((models / "bank.json").read_text())
    assert "server" not in json.loads((models / "shop.json").read_text())
    add_parties(run_folder, loop.names, models)
    assert of_parties(run_folder / "parameters") == expected.models


FAULTS: Mapping[str, Any] = {
    "holder": lambda loop: loop.kill("bank"),
    "server": lambda loop: loop.kill(SERVER),
    "other party": lambda loop: loop.kill("hospital"),
    "connection of the holder": lambda loop: loop.cut("bank"),
    "everyone": Loop.kill_all,
}


@pytest.mark.parametrize("who", FAULTS)
def test_a_restart_at_any_time_changes_no_bit(who: str, tmp_path: Path) -> None:
    """Law 3: a fault at every fifth frame, at other ones for each role; `test_law3_restart` has more of them."""
    config = settings(**AT_BANK, rounds=3, every=1, evaluate_every=2)
    expected, undisturbed = in_process(config), Loop(config, tmp_path / "undisturbed")
    same(undisturbed.run(), expected)
    for n in range(list(FAULTS).index(who), undisturbed.delivered + 1, 5):
        same(Loop(config, tmp_path / str(n)).run({n: FAULTS[who]}), expected)


def heard(loop: Loop) -> list[bytes]:
    """Record every frame that reaches the server."""
    frames: list[bytes] = []
    role = loop.server.role
    join, receive = role.join, role.receive

    def spy(m: int, frame: bytes) -> Any:
        frames.append(bytes(frame))
        return receive(m, frame)

    def first(frame: bytes, name: str | None = None) -> Any:
        frames.append(bytes(frame))
        return join(frame, name)

    role.join, role.receive = first, spy  # type: ignore[method-assign]
    return frames


def test_nothing_that_reaches_the_server_depends_on_labels_but_what_is_sealed_or_reported(tmp_path: Path) -> None:
    """Two runs whose labels are the opposite of each other: the server can tell them apart by reports alone."""
    seen = []
    for flipped in (False, True):
        loop = Loop(tables(tmp_path / str(flipped), flipped, rounds=4), tmp_path / str(flipped) / "loop")
        frames = heard(loop)
        loop.run()
        kinds = [kind_of(frame) for frame in frames]
        assert {kind for kind in kinds if kind in KINDS} == {PASSED, REPORT}
        plain = [message for frame in frames if kind_of(frame) in (7, 8) for message in [decode_control(frame)[1]]]
        said = [message for message in plain if isinstance(message, Hello | Settled | Targets)]
        sealed = [len(frame) for frame in frames if kind_of(frame) == PASSED]
        (targets,) = (message for message in said if isinstance(message, Targets))
        assert (len(targets.labels), len(targets.parts)) == (0, sum(loop.server.role.facts["rows"]))
        state = loop.server.role.rows.state()
        assert state["labels"] == b""
        # Blinded ids come out of fresh keys, their number and order is the same.
        seen.append((kinds, said, sealed, [decode(frame) for frame in frames if kind_of(frame) == REPORT]))
    (kinds, said, sealed, reports), (other_kinds, other_said, other_sealed, other_reports) = seen
    assert kinds == other_kinds
    assert said == other_said
    assert sealed == other_sealed
    assert reports != other_reports


def test_the_other_party_hears_of_labels_by_sealed_gradients_alone(tmp_path: Path) -> None:
    loop = Loop(tables(tmp_path, rounds=2), tmp_path / "loop")
    frames: list[bytes] = []
    receive = loop.parties["shop"].role.receive

    def spy(frame: bytes) -> Any:
        frames.append(frame)
        return receive(frame)

    loop.parties["shop"].role.receive = spy  # type: ignore[method-assign]
    loop.run()
    passed = [decode(frame) for frame in frames if kind_of(frame) in KINDS]
    assert [(message.t0, message.m, message.kind) for message in passed if isinstance(message, Passed)] == [
        (0, 1, 3),
        (1, 1, 3),
    ]
    (targets,) = (frame for frame in frames if kind_of(frame) == 8)
    assert len(targets) <= 2 + 4 + -(-sum(loop.server.role.facts["rows"]) // 4) + 2  # two bits a row at most


def tampered(loop: Loop, change: Any) -> None:
    """Let the server deliver another frame than came, from the given one on."""
    receive = loop.server.role.receive

    def changed(m: int, frame: bytes) -> Any:
        return [(j, change(j, sent)) for j, sent in receive(m, frame)]

    loop.server.role.receive = changed  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["changed", "repeated", "of another round"])
def test_a_server_that_meddles_is_noticed(how: str, tmp_path: Path) -> None:
    """It can stop a run, which any server can, but not bend it."""
    loop, before = Loop(settings(**AT_BANK), tmp_path), list[Passed]()

    def change(j: int, frame: bytes) -> bytes:
        if kind_of(frame) != PASSED:
            return frame
        message = decode(frame)
        assert isinstance(message, Passed)
        before.append(message)
        if len(before) < 4 or message.m != before[0].m:
            return frame
        match how:
            case "changed":
                data = bytes(message.data[:-1]) + bytes([message.data[-1] ^ 1])
                return encode(Passed(message.t0, message.m, message.to, message.kind, data))
            case "repeated":
                return encode(before[0])
            case _:
                return encode(Passed(message.t0 + 1, message.m, message.to, message.kind, message.data))

    tampered(loop, change)
    with pytest.raises(RemoteProtocolError, match=r"^hospital: a message of round \d does not open"):
        loop.run()


def test_open_embeddings_are_refused(tmp_path: Path) -> None:
    """A party that was told other terms would be refused before; one that breaks them is named."""
    loop = Loop(settings(**AT_BANK), tmp_path)
    while not loop.server.role.rounds.server:
        loop.step()
    with pytest.raises(RemoteProtocolError, match=r"^hospital: Embedding of round 0 in round 0$"):
        loop.server.role.receive(1, encode(Embedding(0, 1, b"")))
    with pytest.raises(RemoteProtocolError, match=r"^hospital: a message in the name of role 2$"):
        loop.server.role.receive(1, encode(Report(0, 2, 0.1)))
    with pytest.raises(RemoteProtocolError, match=r"^hospital: Report of round 0 in round 0$"):
        loop.server.role.receive(1, encode(Report(0, 1, 0.1)))


def desk(**changes: Any) -> TableLabels:
    party: dict[str, Any] = {"bank": {}, "shop": {}}
    return TableLabels(settings(data={"id": "ID"}, party=party, **AT_BANK | changes), ("bank", "shop"))


def test_a_desk_takes_no_labels() -> None:
    parts, label = bytes([0, 0, 2]), b"\0" * 8
    with pytest.raises(RemoteProtocolError, match=r"^bank: 3 labels for 3 rows, 0 were expected$"):
        desk().accept(Targets(1, 0, 1, parts, 3 * label))
    offers = [offer_of(desk().config, name) for name in ("bank", "shop")]
    with pytest.raises(RemoteProtocolError, match="names bank, but the table of shop has the label"):
        desk().check({1: offers[0], 2: offers[1].model_copy(update={"label": True})})
    taken = desk()
    taken.accept(Targets(1, 0, 1, parts, b""))
    assert taken.sizes() == [2, 0, 1]
    assert taken.passed_on(Targets(1, 0, 1, parts, b""), 2).labels == b""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"labels": "shap"}}, "privacy.labels: there is no party 'shap'; did you mean 'shop'?"),
        ({"privacy": {"labels": "server"}}, "privacy.labels: tables have their labels at a party"),
    ],
)
def test_a_holder_that_is_none(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        desk(**changes)
    assert said in str(caught.value)


def test_a_party_needs_not_list_the_others() -> None:
    """Its own file has its own section alone; the terms name the holder."""
    config = settings(data={"id": "ID"}, party={"shop": {"table": "shop.csv"}}, **AT_BANK)
    assert config.privacy.labels == "bank"
    with pytest.raises(ConfigError, match="labels at two roles"):
        settings(data={"id": "ID"}, party={"shop": {"table": "shop.csv", "label": "y"}}, **AT_BANK)
