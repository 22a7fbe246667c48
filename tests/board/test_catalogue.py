"""Which runs there are, what goes on in each, and what has not changed is not read again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from board.made import CONFIG, finished, line, text, under_way
from cvfl.board import catalogue as module
from cvfl.board import places
from cvfl.board.catalogue import Catalogue
from cvfl.board.rows import Row
from cvfl.runs.status import StatusFile, status_path


def rows(root: Path) -> dict[str, Row]:
    catalogue = Catalogue(root)
    catalogue.refresh()
    return catalogue.rows


def aged(path: Path) -> Path:
    """As if nothing had been written for an hour."""
    for file in (path, *path.rglob("*")):
        os.utime(file, (1e9, 1e9))
    return path


def test_runs_are_found_at_any_depth_and_nothing_else(tmp_path: Path) -> None:
    finished(tmp_path / "study" / "runs" / "none" / "seed-0")
    aged(under_way(tmp_path / "stopped"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"\xff\xd8")
    state = tmp_path / "state" / "fed" / "server" / "ab12"  # of a server, which tells of it by a status
    state.mkdir(parents=True)
    (state / "terms.json").write_text("{}")
    (state / "metrics.jsonl").write_text(text(3))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert {name: row["state"] for name, row in rows(tmp_path).items()} == {
        "stopped": "stopped",
        "study/runs/none/seed-0": "finished",
    }
    assert list(rows(tmp_path / "stopped")) == ["stopped"]
    assert rows(tmp_path / "photos") == {}
    assert rows(tmp_path / "nowhere") == {}


def test_a_file_of_that_name_alone_is_no_run(tmp_path: Path) -> None:
    for name, lines in {"empty": "", "foreign": '{"step": 1}\n', "lines": "rubbish\n" + text(2)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    finished(tmp_path / "foreign" / "below")
    assert set(rows(tmp_path)) == {"lines", "foreign/below"}


def test_what_a_row_says(tmp_path: Path) -> None:
    finished(tmp_path / "over")
    under_way(tmp_path / "going")
    aged(under_way(tmp_path / "stopped"))
    found = rows(tmp_path)
    over, going, stopped = (found[name] for name in ("over", "going", "stopped"))
    assert (over["score"], over["mb"], over["rounds"], over["note"]) == (
        "0.9875",
        "0.0408",
        40,
        "lattice:bits=2 · seed 1",
    )
    assert (going["state"], going["share"], going["score"]) == ("training", 0.25, "0.9500")
    assert going["says"] == "25.0%, 0 s left"
    assert (stopped["share"], stopped["says"]) == (None, "stopped after 10 of 40 rounds")


def test_damaged_runs_are_listed_with_a_line_that_names_the_file(tmp_path: Path) -> None:
    for name, summary in {"cut": '{"name": "x"', "list": "[]", "empty": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(summary)
    found = rows(tmp_path)
    assert {row["state"] for row in found.values()} == {"damaged"}
    assert found["cut"]["says"].startswith("summary.json: not JSON")
    assert "key 'name' is missing" in found["empty"]["says"]


@pytest.mark.parametrize(
    ("lines", "rounds"), [("", 0), ("{", 0), ("rubbish\n", 0), (text(3)[:-20], 2), ("[]\n" + text(4), 4)]
)
def test_half_written_runs_are_no_error(tmp_path: Path, lines: str, rounds: int) -> None:
    path = under_way(tmp_path / "half")
    (path / "metrics.jsonl").write_text(lines)
    (path / "config.json").write_text('{"seed"')
    assert rows(tmp_path)["half"]["rounds"] == rounds


def test_a_run_without_a_directory_is_followed_by_its_status(tmp_path: Path) -> None:
    state = tmp_path / "state" / "metrics.jsonl"
    state.parent.mkdir()
    file = StatusFile(tmp_path / "runs" / "fed-0", CONFIG, state)
    assert rows(tmp_path / "runs")["fed-0"]["state"] == "preparing"
    file.look(("shop", "bank"), ["bank"], {})
    file.tell("waiting")
    assert rows(tmp_path / "runs")["fed-0"]["says"].startswith("waiting for bank, 0 s")
    state.write_text(text(7))
    file.tell("training", rounds=20, metric="accuracy")
    found = rows(tmp_path / "runs")["fed-0"]
    assert (found["rounds"], found["share"], found["metric"]) == (7, 0.35, "accuracy")
    status = json.loads(status_path(tmp_path / "runs" / "fed-0").read_text())
    status_path(tmp_path / "runs" / "fed-0").write_text(json.dumps(status | {"pid": 2**22 + 1}))  # it was killed
    assert rows(tmp_path / "runs")["fed-0"]["state"] == "stopped"
    state.unlink()  # and nothing of it is left
    assert rows(tmp_path / "runs") == {}


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(module, "_SEARCH", 0.0)
    finished(tmp_path / "over")
    going = under_way(tmp_path / "going")
    catalogue = Catalogue(tmp_path)
    catalogue.refresh()
    over, columns = catalogue.known("over"), catalogue.known("going").columns
    with (going / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line(10)) + "\n")
    catalogue.refresh()
    assert catalogue.known("over") is over
    assert catalogue.known("going").columns is columns
    assert catalogue.rows["going"]["rounds"] == 11
    finished(tmp_path / "new")
    aged(going)
    catalogue.refresh()
    assert catalogue.rows["new"]["state"] == "finished"
    assert catalogue.rows["going"]["state"] == "stopped"
    (tmp_path / "new" / "metrics.jsonl").unlink()
    (tmp_path / "new" / "summary.json").unlink()
    catalogue.refresh()
    assert "new" not in catalogue.rows


def test_folders_that_may_not_be_read_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "mine")
    finished(tmp_path / "theirs")
    StatusFile(tmp_path / "theirs", CONFIG, tmp_path / "state" / "metrics.jsonl").tell("training")
    stat, scandir = Path.stat, os.scandir

    def refused(path: Path, **how: bool) -> os.stat_result:
        if "theirs" in path.parts:
            raise PermissionError(13, "Permission denied")
        return stat(path, **how)

    def listed(path: Path) -> object:
        if Path(path).name == "theirs":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(os, "scandir", listed)
    assert rows(tmp_path)["mine"]["state"] == "finished"


def test_of_very_many_runs_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST", 3)
    for n in range(5):
        finished(tmp_path / f"run-{n}", rounds=2)
    catalogue = Catalogue(tmp_path)
    catalogue.refresh()
    assert (len(catalogue.rows), catalogue.more) == (3, True)
