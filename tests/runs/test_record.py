"""The record of a run: what is written can be read, and what is read is tame, whatever the file says."""

import json
import math

import pytest
from pydantic import ValidationError

from cvfl.errors import DataError
from cvfl.runs.read import read_run
from cvfl.runs.record import CompressionError, Round, Sent, Summary
from cvfl.runtime import Traffic

SENT = {"up": 10, "down": 20, "evaluation": 3}
LINE = {"round": 0, "epoch": 0.5, "loss": 1.25, "bytes": SENT}
SUMMARY = {
    "name": "a run",
    "seed": 1,
    "rounds": 1,
    "completed": True,
    "metrics": {"train": {}, "test": {"accuracy": 0.5}},
    "bytes": SENT | {"total": 33, "by_party": {"bank": SENT}},
    "seconds": 2,
}


def record(path, summary=SUMMARY, *lines):
    path.mkdir(exist_ok=True)
    (path / "summary.json").write_text(summary if isinstance(summary, str) else json.dumps(summary))
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines or (LINE,)]
    (path / "metrics.jsonl").write_text("".join(text + "\n" for text in texts))
    return path


def test_the_least_that_a_record_has(tmp_path):
    run = read_run(record(tmp_path))
    assert (run.name, run.metric, run.error, run.account, run.audit) == ("a run", None, None, None, None)
    assert (run.sent.training, run.sent.total, run.sent.by_party["bank"].up) == (30, 33, 10)
    assert (run.settings, run.parameters, run.versions, run.round_seconds) == ({}, {}, {}, None)
    assert run.history == (Round(round=0, epoch=0.5, loss=1.25, bytes=Sent(**SENT)),)
    assert run.compressed


def test_keys_of_other_versions_and_empty_values_are_tolerated(tmp_path):
    empty = dict.fromkeys(("metric", "formula_bytes", "compression_error", "privacy", "parameters", "config"))
    more = {"history": 7, "audit": "x", "settings": 1, "newer": {"a": [1]}, "bytes": SUMMARY["bytes"] | {"later": 1}}
    line = LINE | dict.fromkeys(("train", "test", "compression_error", "certificate", "seconds")) | {"newer": 1}
    run = read_run(record(tmp_path, SUMMARY | empty | more, line))
    assert run.audit is None
    assert run.settings == run.parameters == {}
    assert run.history[0].test == run.history[0].errors == {}


@pytest.mark.parametrize("number", ["1e101", "-1e400", "Infinity", "NaN", "1" + "0" * 120, "1" + "0" * 4000])
def test_what_has_diverged_is_not_a_number(tmp_path, number):
    line = json.dumps(LINE).replace("1.25", number)
    assert math.isnan(read_run(record(tmp_path, SUMMARY, line)).history[0].loss)


def test_a_number_too_long_for_python_is_refused_in_one_line(tmp_path):
    record(tmp_path, SUMMARY, LINE, json.dumps(LINE).replace("1.25", "1" * 10_000))
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not JSON: ") as told:
        read_run(tmp_path)
    assert "\n" not in str(told.value)


def test_names_are_one_line_that_can_be_printed(tmp_path):
    odd = " a\nb\x00\t c\u2028\x1b[31m"
    values = SUMMARY | {
        "name": odd,
        "metrics": {"test": {odd: 1.0}},
        "bytes": SENT | {"by_party": {odd: SENT}},
        "config": {odd: {"x": odd, "y": [odd], "z": {}}},
        "versions": {odd: odd},
        "parameters": {odd: odd},
    }
    run = read_run(
        record(tmp_path, values, LINE | {"compression_error": {odd: dict.fromkeys(CompressionError.model_fields, 1)}})
    )
    clean = "a b c [31m"
    found = [run.name, *run.metrics.test, *run.sent.by_party, *run.versions, *run.parameters, *run.history[0].errors]
    assert found == [clean] * 6
    assert run.settings == {f"{clean}.x": clean, f"{clean}.y": f'["{clean}"]', f"{clean}.z": "{}"}


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        ({"bytes": SENT}, "'bytes': key 'by_party' is missing"),
        (
            {"bytes": SENT | {"by_party": {"a\nb": SENT | {"up": "9" * 99}}}},
            r"""'bytes': 'by_party': 'a b': 'up' must be a number, not "9{39}…$""",
        ),
        (
            {"bytes": SENT | {"by_party": {"bank": [1]}}},
            r"'bytes': 'by_party': 'bank': expected an object, found \[1\]",
        ),
        ({"compression_error": {"measured": 1}}, "'compression_error': key 'expected' is missing"),
        ({"compression_error": 0}, "'compression_error': expected an object, found 0"),
        ({"privacy": {"clip": 1.0}}, "'privacy': key 'noise' is missing"),
        ({"seed": 1.0}, "'seed' must be a whole number, not 1.0"),
        ({"seconds": None}, "'seconds' must be a number, not null"),
        ({"metrics": {"test": {"accuracy": True}}}, "'metrics': 'test': 'accuracy' must be a number, not true"),
        ({"versions": {"cvfl": 1}}, "'versions': 'cvfl' must be text, not 1"),
        ({"config": []}, r"'config': expected an object, found \[\]"),
        ({"round_seconds": "fast"}, "'round_seconds' must be a number, not \"fast\""),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, summary, message):
    with pytest.raises(DataError, match=rf"summary\.json: {message}") as told:
        read_run(record(tmp_path, SUMMARY | summary))
    assert "\n" not in str(told.value)


def test_a_line_is_named(tmp_path):
    for bad, message in (({}, "key 'round' is missing"), ("[]", r"expected an object, found \[\]"), ("", "not JSON")):
        with pytest.raises(DataError, match=rf"metrics\.jsonl, line 2: {message}"):
            read_run(record(tmp_path, SUMMARY, LINE, bad, LINE))


def test_what_is_written_is_what_is_read():
    values = SUMMARY | {"best": None, "rows": {"train": 7}, "privacy": None}
    written = Summary.model_validate(values).model_dump(by_alias=True, exclude_unset=True)
    assert written.keys() == values.keys()
    assert json.dumps(written["bytes"]) == json.dumps(values["bytes"])  # whole numbers stay whole, in their order
    assert written["best"] is None
    line = Round.model_validate(LINE | {"loss": math.inf}).model_dump(by_alias=True, exclude_defaults=True)
    assert json.dumps(line) == json.dumps(LINE | {"loss": math.inf})  # only a reader takes infinity for NaN


def test_a_record_does_not_change():
    sent = Sent.model_validate(Traffic(1, 2, 4))
    assert (sent.training, sent.total) == (3, 7)
    with pytest.raises(ValidationError):
        sent.up = 5
