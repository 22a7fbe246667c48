"""Labels that are told randomised: the law, and what stays with their holder."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cases import AUTO, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import same
from conformance.test_who_sees_what import _plain, captured
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.rows.load import load_data
from cvfl.federation.told_labels import randomise
from cvfl.federation.train import train
from cvfl.privacy.label_draw import tell_classes
from cvfl.wire import Passed
from cvfl.wire.control import CONTROL, End, decode_control, encode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.read import read_frame

pytestmark = pytest.mark.usefixtures("tidy")
MODES: dict[str, dict[str, Any]] = {
    "auto": AUTO | {"batch_size": 16, "class_weight": "balanced"},
    "algorithm 2": {"algorithm": 2, "local_iterations": 2},
    "embeddings relayed": {"folding": False, "compressor": "scalar:bits=4"},
    "private model": AUTO | {"batch_size": 16},
}


def told(folder: Path, aligned: bool = False, private: bool = False, **changes: Any) -> RunConfig:
    """A bank that tells its labels with epsilon 1, and a shop; the bank may have a private model."""
    data = {"validation_share": 0.2, "stratify": True, "alignment": "aligned" if aligned else "private"}
    privacy = {"labels": "bank", "label_epsilon": 1.0} | ({"private_model": True} if private else {})
    return table_settings(folder, data, privacy=privacy, **changes)


def heard(config: RunConfig, folder: Path) -> dict[str, list[Any]]:
    """All that every role hears in a run; what names the run, and secrets and keys of the session, are left out."""
    loop = Loop(config, folder)
    frames = captured(loop)
    loop.run()
    return {role: [_said(frame) for frame in own] for role, own in frames.items()}


def _said(frame: bytes) -> Any:
    if isinstance(message := read_frame(frame), Passed):  # sealed by keys of the session
        return replace(message, data=bytes(len(message.data)))
    return {**_plain(frame), "sealed": []} if kind_of(frame) == CONTROL else frame


def replace_labels(table: Path, labels: list[str]) -> None:
    with table.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *([*row[:-1], label] for row, label in zip(rows, labels, strict=True))])


@pytest.mark.parametrize("mode", MODES)
def test_all_that_others_hear_follows_from_the_told_labels(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law: a bank whose table has the told labels, and tells them as they are, is heard as the same bytes."""
    write_tables(tmp_path, aligned=True)  # where people are aligned, blinded ids are new bytes in every session
    config = told(tmp_path, aligned=True, private=mode == "private model", **MODES[mode])
    first = heard(config, tmp_path / "one")
    table, drawn = tmp_path / "bank.csv", tell_classes
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    names = ("overdue", "settled")
    lines = (tmp_path / "bank.csv.label_secret").read_text("utf-8").splitlines()
    secret, noise = bytes.fromhex(json.loads(lines[0])["secret"]), config.privacy.randomised
    assert noise is not None
    true = np.array([names.index(row["y"]) for row in rows])
    found = drawn(secret, noise, "y", [f"row {i}" for i in range(len(rows))], true, names)
    assert 0 < int((found != true).sum()) < len(rows)
    replace_labels(table, [names[code] for code in found])
    monkeypatch.setattr(randomise, "tell_classes", lambda *given: given[4])
    assert heard(config, tmp_path / "two") == first
    monkeypatch.undo()
    assert heard(config, tmp_path / "three") != first  # told labels of these labels, and the test would notice


@pytest.mark.parametrize("draw", ["tell_classes", "tell_quantities"])
def test_the_law_is_one_for_many_classes_and_for_quantities(
    draw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: the table of the second run has what the first one told, and tells it as it is."""
    write_tables(tmp_path, aligned=True)
    table, classes = tmp_path / "bank.csv", draw == "tell_classes"
    ages = [float(row["age"]) for row in csv.DictReader(table.read_text("utf-8").splitlines())]
    replace_labels(
        table, [["low", "mid", "top"][(age > 40) + (age > 65)] if classes else str(age / 30) for age in ages]
    )
    config = told(tmp_path, aligned=True, **AUTO | {"batch_size": 16})
    if not classes:
        limits = {"label_range": (-1.0, 4.0), "label_epsilon": 4.0}
        config = config.model_copy(update={"privacy": config.privacy.model_copy(update=limits)})
    drawn, asked = getattr(randomise, draw), []

    def listened(*given: Any) -> Any:
        asked.append(given)
        return drawn(*given)

    monkeypatch.setattr(randomise, draw, listened)
    first = heard(config, tmp_path / "one")
    found = drawn(*asked[0])
    assert (found != asked[0][4]).any()
    replace_labels(table, [asked[0][5][one] if classes else repr(one) for one in found.tolist()])
    monkeypatch.setattr(randomise, draw, lambda *given: given[4])
    assert heard(config, tmp_path / "two") == first
    monkeypatch.undo()
    assert heard(config, tmp_path / "three") != first


def test_what_is_told_is_not_the_true_labels(tmp_path: Path) -> None:
    """With epsilon 1 about a quarter of the labels in the rows are others than the holder's, by this secret."""
    write_tables(tmp_path)
    (tmp_path / "bank.csv.label_secret").write_text(json.dumps({"secret": "5a" * 32}) + "\n", encoding="utf-8")
    loaded = load_data(told(tmp_path))
    assert loaded.held is not None
    differ = float((loaded.data.train_labels != loaded.held.labels.train).double().mean())
    assert 0.1 < differ < 0.5
    assert loaded.held.epsilons == (1.0,)


def test_metrics_by_true_labels_are_at_the_holder_alone(tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = told(tmp_path, **AUTO | {"batch_size": 16})
    here = train(config)
    account = here.summary["label_privacy"]
    assert account["scores"]["test"].keys() == {"loss", "accuracy", "f1", "roc_auc"}
    assert account["scores"]["test"] != here.summary["metrics"]["test"]
    loop = Loop(config, tmp_path / "loop")
    outcome = loop.run()
    same(outcome, type(outcome).of(here), setup=True)
    own = json.loads((tmp_path / "loop" / "models" / "bank.json").read_text("utf-8"))
    assert own["label_privacy"] == account
    assert "label_privacy" not in json.loads((tmp_path / "loop" / "models" / "shop.json").read_text("utf-8"))
    told_server = json.loads((tmp_path / "loop" / "run" / "summary.json").read_text("utf-8"))["label_privacy"]
    assert "scores" not in told_server or told_server["scores"] is None
    assert told_server["released"] == []
    assert not (tmp_path / "loop" / "run" / "analysis.json").exists()


def test_a_holder_that_is_killed_after_the_end_still_has_what_it_was_told(tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = told(tmp_path)
    loop = Loop(config, tmp_path / "loop")
    while not loop.parties["bank"].role.done:
        loop.step()
    outputs = loop.parties["bank"].role.outputs
    assert outputs
    loop.kill("bank")
    assert loop.parties["bank"].role.outputs == outputs
    account = loop.parties["bank"].label_account
    assert account is not None
    assert account.scores is not None
    assert account.scores.model_dump() == train(config).summary["label_privacy"]["scores"]


def test_nobody_else_takes_outputs(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(told(tmp_path), tmp_path / "loop")
    while not loop.parties["shop"].role.done:
        waiting = loop.down["shop"]
        for place, frame in enumerate(waiting):
            if kind_of(frame) == CONTROL and isinstance(end := decode_control(frame)[1], End):
                waiting[place] = encode_control(end.model_copy(update={"outputs": "AAAA"}), 0)
                with pytest.raises(RemoteProtocolError, match="outputs that are for the holder"):
                    loop.run()
                return
        loop.step()


def test_a_second_epsilon_adds_up(tmp_path: Path) -> None:
    write_tables(tmp_path)
    load_data(told(tmp_path))
    more = told(tmp_path).model_dump(mode="json", exclude_none=True)
    more["privacy"]["label_epsilon"] = 0.5
    held = load_data(parse_config(more)).held
    assert held is not None
    assert held.epsilons == (1.0, 0.5)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"privacy": {"label_epsilon": 1.0}}, "privacy.labels which role holds them"),
        ({"privacy": {"labels": "bank", "label_epsilon": 1.0, "label_range": [2, 1]}}, "two limits"),
        ({"privacy": {"labels": "bank", "label_range": [0, 1]}}, "label_range is for labels that are told"),
        ({"privacy": {"labels": "bnk", "label_epsilon": 1.0}}, "there is no party 'bnk'; did you mean 'bank'"),
        ({"privacy": {"labels": "bank", "label_epsilon": 1.0, "label_range": [0, 1]}}, "of classes all that there are"),
        (
            {"data": {"name": "diabetes", "parties": 3}, "privacy": {"labels": "bank", "label_epsilon": 1.0}},
            "the label is a quantity; give its limits",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        train(settings(**changes))
