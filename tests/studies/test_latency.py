"""Time to the target when a round trip is long: computed as in the paper, and measured over gRPC."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.errors import DataError
from cvfl.runs.read import read_run
from cvfl.studies.figures import study_figures
from cvfl.studies.latency import ROUND_TRIPS, Measured, measure, read_measured, write_measured
from cvfl.studies.origin import Origin
from cvfl.studies.publish import Results
from cvfl.studies.study import load_study, tasks
from cvfl.studies.tables import study_tables

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
    arguments = ["reproduce", folder / "wine.toml", "--out", folder / "out", "--no-measure", "--workers", 1]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "as the paper computes them" in result.output
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
    found = Results.of(
        study, Origin("cpu", "cvfl reproduce", ()), [p.parent for p in results.rglob("summary.json")], tmp_path
    )
    found.publish(STUDY, tmp_path / "published")
    assert read_measured(tmp_path / "published") == measurements()
    assert "measured over gRPC" in (tmp_path / "published" / "tables.md").read_text()
    (tmp_path / "latency.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"latency\.jsonl"):
        read_measured(tmp_path)


def test_only_what_is_missing_is_measured_and_evaluation_is_left_out(study, tmp_path):
    pytest.importorskip("grpc")
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
