"""metrics.jsonl as columns: the same values that a whole read has, however the file grows and whatever is in it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from board.made import finished, line, text, watched
from cvfl.runs import columns
from cvfl.runs.columns import Columns
from cvfl.runs.read import parse_round
from cvfl.runs.tally import Tally

KEYS = ("round", "epoch", "loss", "seconds", "bytes")


def read(path: Path) -> Columns:
    found = Columns(path)
    found.refresh()
    return found


def expected(lines: list[str]) -> dict[str, list[float]]:
    rounds = [parse_round(one, "here") for one in lines]
    return {
        "round": [one.number for one in rounds],
        "epoch": [one.epoch for one in rounds],
        "loss": [one.loss for one in rounds],
        "seconds": [math.nan if one.seconds is None else one.seconds for one in rounds],
        "bytes": [one.sent.total for one in rounds],
    }


def test_the_pattern_finds_what_a_whole_read_finds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text(23))
    found = read(path)
    for key, values in expected(path.read_text().splitlines()).items():
        np.testing.assert_array_equal(found[key], values)
    assert [one.number for one in found.evaluated] == [4, 9, 14, 19]
    assert found.last is not None
    assert found.last.number == 22
    assert found.damaged == []


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.none() | st.floats(0, 1e6),
    st.integers(0, 10**15 - 1),
    st.booleans(),
    st.booleans(),
)
def test_any_line_that_a_run_writes(tmp_path_factory, loss, seconds, sent, counted, spaces) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    found = {"up": sent, "down": 2, "evaluation": 3} | ({"setup": 4} if counted else {})
    one = line(0) | {"loss": loss, "bytes": found}
    one = {key: value for key, value in (one | {"seconds": seconds}).items() if value is not None}
    path.write_text(json.dumps(one, separators=(", ", ": ") if spaces else (",", ":")) + "\n")
    found = read(path)
    assert len(found) == 1
    assert found["bytes"][0] == float(sent + 5 + 4 * counted)

    np.testing.assert_equal(float(found["loss"][0]), loss)


def test_times_and_figures_of_embeddings_add_up_as_in_a_whole_read(tmp_path: Path) -> None:
    path = watched(finished(tmp_path / "run"), jump=30) / "metrics.jsonl"
    found, whole = read(path).tally, Tally.of(parse_round(one, "here") for one in path.read_text().splitlines())
    assert found.clocks == whole.clocks
    assert found.seen == whole.seen
    assert found.alarms.lines == whole.alarms.lines != []
    assert found.clocks["server"].wait == {"bank": 120.0, "hospital": 40.0}
    assert (found.seen["bank"].first.norm, found.seen["bank"].last.norm, found.seen["bank"].longest) == (2, 20, 40)


@pytest.mark.parametrize("time", ["1", "[]", '{"a": 1}', '{"a": {"compute": [], "codec": 0}}', '{"a": {"compute": 1'])
def test_a_time_of_another_shape_is_passed_over(tmp_path: Path, time: str) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(line(0, parties=("time", "embeddings")))[:-1] + f', "time": {time}}}', json.dumps(line(1))]
    path.write_text("\n".join(lines) + "\n")
    assert read(path).tally.clocks == {}


def test_a_file_that_grows_is_read_on_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path, whole = tmp_path / "metrics.jsonl", text(12)
    found = Columns(path)
    assert not found.refresh()
    seen = []
    for end in range(0, len(whole) + 97, 97):
        path.write_bytes(whole[:end].encode())  # the same file, longer
        found.refresh()
        assert len(found) == whole[:end].count("\n")
        seen.append(len(found))
    assert seen[-1] == 12
    assert not found.refresh()
    assert found.damaged == []


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text(12))
    found = read(path)
    other = tmp_path / "other"
    other.write_text(text(7))
    other.replace(path)  # a run that went back to a checkpoint
    assert found.refresh()
    assert len(found) == 7
    assert [one.number for one in found.evaluated] == [4]
    path.unlink()
    assert found.refresh()
    assert (len(found), found.last) == (0, None)


def test_lines_that_cannot_be_read_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    turned = json.dumps(dict(reversed(line(3).items())))  # keys in another order are as good
    bad = ["rubbish", "{}", "[1]", '{"round": "one"}', '{"round": 1, "epoch": 1', "\ufffd", "9" * 5000, '{"a":' * 3000]
    path.write_text(json.dumps(line(0)) + "\n" + "\n".join(bad) + "\n" + turned + "\n" + json.dumps(line(4)) + "\n")
    found = read(path)
    assert found["round"].tolist() == [0, 3, 4]
    assert len(found.damaged) == len(bad)
    path.write_bytes(b"\xff\xfe\n" * 3)
    assert len(read(path).damaged) == 3


def test_of_many_evaluations_every_second_fourth_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "EVALUATIONS", 10)
    path = tmp_path / "metrics.jsonl"
    path.write_text(text(100, every=1))
    kept = [one.number for one in read(path).evaluated]
    assert 5 <= len(kept) <= 10
    assert len({after - before for before, after in itertools.pairwise(kept)}) == 1
    assert len(read(path)) == 100


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8), st.integers(0, 3000))
def test_changed_bytes_never_do_more_than_damage_lines(tmp_path_factory, changes, cut) -> None:
    data = bytearray(text(5, every=2).encode())
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    path.write_bytes(data[: len(data) - cut % 200])
    found = read(path)
    assert len(found) + len(found.damaged) == path.read_bytes().count(b"\n")
    assert len({len(found[key]) for key in KEYS}) == 1
