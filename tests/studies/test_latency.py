"""Time to the target when a round trip is long: computed as in the paper, and measured over gRPC."""

import json
from pathlib import Path

import pytest

from cvfl.config.files import load_config
from cvfl.errors import DataError
from cvfl.federation.train import train
from cvfl.runs.read import read_run
from cvfl.studies import latency
from cvfl.studies.figures import study_figures
from cvfl.studies.latency import ROUND_TRIPS, Measured, measure, read_measured, write_measured
from cvfl.studies.origin import Origin
from cvfl.studies.results import StudyResults
from cvfl.studies.study import load_study, tasks
from cvfl.studies.tables import study_tables
from study_files import cvfl, in_this_process

pytestmark = pytest.mark.usefixtures("no_pages")
STUDY = """
title = "Wine under latency"
paper = "no table of the paper"
metric = "accuracy"
table = "latency"
[run]
batch_size = 32
evaluate_every = 2
compressor = "lattice:bits=3"
step_size = { eta = 0.05 }
data = { name = "wine", parties = 2 }
[preset.cpu]
target = 0.6
seeds = 1
run = { rounds = 24 }
[[cell]]
name = "Q = 3"
run = { local_iterations = 3 }
[[cell]]
name = "Q = 5"
run = { local_iterations = 5 }
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "wine.toml").write_text(STUDY)
    with in_this_process():
        code, output = cvfl("reproduce", folder / "wine.toml", "--out", folder / "out", "--no-measure")
    assert code == 0, output
    assert "as the paper computes them" in output
    assert not (folder / "out" / "latency.jsonl").exists()
    return folder / "out"


@pytest.fixture
def study(results):
    return load_study(str(results / "study.toml"))


def measurements():
    cells = {"Q = 3": 0.2, "Q = 5": 0.1}
    return [Measured(name, t, (s, s + t / 1e3, 9.0)) for name, s in cells.items() for t in ROUND_TRIPS]


def test_measured_time_is_rounds_times_the_median_round(results, study):
    runs = [read_run(path.parent) for path in sorted(results.rglob("summary.json"))]
    computed, measured, target = study_tables(study, study.preset["cpu"], runs, measurements())
    rounds = {row[0]: row[1].spread.mean for row in computed.rows}
    row = next(row for row in measured.rows if row[0] == "Q = 3")
    assert [cell.mean for cell in row[2:]] == [f"{rounds['Q = 3'] * (0.2 + t / 1e3):.1f}" for t in ROUND_TRIPS]
    assert str(row[1]) == f"{200 / 3:.1f}"  # milliseconds a local iteration, of which there are three
    assert "fewer than none" not in target.head  # there is none to compare with
    time = study_figures(study, study.preset["cpu"], runs, measurements())[0]
    assert time.name == "time-by-round-trip"
    assert "Q = 3, computed" in time.svg
    assert "Q = 3, measured" in time.svg
    assert "measured" not in study_figures(study, study.preset["cpu"], runs)[0].svg


def test_a_published_study_keeps_its_measurements(results, study, tmp_path):
    write_measured(tmp_path, measurements())
    found = StudyResults.read(
        study, Origin("cpu", "cvfl reproduce", ()), [p.parent for p in results.rglob("summary.json")], tmp_path
    )
    found.publish(STUDY, tmp_path / "published")
    assert read_measured(tmp_path / "published") == measurements()
    assert "measured over gRPC" in (tmp_path / "published" / "tables.md").read_text()
    (tmp_path / "latency.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"latency\.jsonl"):
        read_measured(tmp_path)


def in_one_process(config: Path, change: list[str], out: Path, round_trip_ms: float) -> None:
    """Stands for `train_grpc`: the same run, and rounds that take a round trip."""
    train(load_config(config, change), out=out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = [json.dumps(line | {"seconds": round_trip_ms / 1e3}) for line in lines]
    (out / "metrics.jsonl").write_text("\n".join(timed) + "\n")


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in one process", "grpc"])
def test_only_what_is_missing_is_measured_and_evaluation_is_left_out(study, tmp_path, monkeypatch, real):
    pytest.importorskip("grpc")
    if not real:
        monkeypatch.setattr(latency, "train_grpc", in_one_process)
    found = [task for task in tasks(study, "cpu", 1, tmp_path, tmp_path) if task.cell == "Q = 3"]
    write_measured(tmp_path, [one for one in measurements() if one.cell == "Q = 3" and one.round_trip_ms != 50])
    started = []
    measure(found, tmp_path, lambda cell, ms: started.append((cell, ms)))
    assert started == [("Q = 3", 50)]
    timed = next(one for one in read_measured(tmp_path) if one.round_trip_ms == 50)
    assert len(timed.seconds) == 20 - 2  # without the first round and without the last, which is evaluated
    assert 0.05 <= timed.seconds_a_round < 5
    measure(found, tmp_path, lambda cell, ms: started.append((cell, ms)))
    assert len(started) == 1
