"""Studies: what they run, that they can be stopped and taken up again, and the tables that come of them."""

import signal
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from cvfl.config.files import merged
from cvfl.errors import ConfigError
from cvfl.runs.read import read_run
from cvfl.runs.record import Run, Sent
from cvfl.studies.run import run_all
from cvfl.studies.study import Study, load, load_study, slug, study_names, tasks
from cvfl.studies.tables import best, reached, study_tables
from study_files import cvfl, growing, in_this_process, started, stopped_growing, study_toml

pytestmark = pytest.mark.usefixtures("no_pages")
STUDY = study_toml()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "wine.toml"
    path.write_text(STUDY)
    return path


def markdown(study: Study, preset: str, runs: list[Run]) -> str:
    return "\n".join(table.markdown() for table in study_tables(study, study.preset[preset], runs))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "wine.toml").write_text(STUDY)
    with in_this_process():
        code, output = cvfl("reproduce", folder / "wine.toml", "--out", folder / "out", "--workers", 2)
    assert code == 0, output
    assert "4 runs, 0 complete" in output
    return folder / "out"


def test_it_leaves_runs_tables_and_a_report(results):
    runs = sorted(path.parent for path in results.rglob("summary.json"))
    assert [str(path.relative_to(results)) for path in runs] == [
        "runs/lattice-b-2/seed-0",
        "runs/lattice-b-2/seed-1",
        "runs/none/seed-0",
        "runs/none/seed-1",
    ]
    text = (results / "tables.md").read_text()
    assert "Preset cpu, seeds 0, 1." in text
    assert "    cvfl reproduce wine.toml --preset cpu --seeds 2\n" in text
    assert "| none | " in text
    assert (results / "report.html").stat().st_size > 10_000
    assert not list(results.rglob("state"))


def up_and_down(sent: Sent) -> float:
    return sent.up + sent.down


def test_the_table_says_what_the_runs_recorded(results, study):
    runs = [read_run(path.parent) for path in sorted(results.rglob("summary.json"))]
    lattice = [run for run in runs if run.name == "lattice b=2"]
    expected = sum(max(line.test["accuracy"] for line in run.history if line.test) for run in lattice) / 2
    first = [next(line for line in run.history if line.test and line.test["accuracy"] >= 0.6) for run in lattice]
    figures = (attrgetter("total"), up_and_down)
    cost, training = (sum(figure(line.sent) for line in first) / 2 / 1e6 for figure in figures)
    row = next(line for line in (results / "tables.md").read_text().splitlines() if line.startswith("| lattice"))
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2].replace("**", "").startswith(f"{expected:.3f} ± ")
    assert cells[3].startswith(f"**{cost:.4f}** ± ")  # the fewest bytes, in as many digits as it needs
    assert cells[5].startswith(f"**{training:.5f}** ± ")
    whole = sum(run.sent.total for run in lattice) / 2 / 1e6
    evaluation, rest = (
        sum(figure(run.sent) / run.sent.total for run in lattice) / 2
        for figure in (attrgetter("evaluation"), lambda sent: sent.alignment + sent.setup)
    )
    assert cells[7].startswith(f"{whole:.4f} ± ")
    assert cells[8:10] == [f"{evaluation:.1%}", f"{rest:.1%}"]
    assert cells[-2] == "2"
    seconds = sum(run.round_seconds for run in lattice) / 2
    assert cells[-3].startswith(f"{seconds:.3f} ± ")


def test_a_target_that_is_missed_has_no_figure(results, study):
    loaded = load_study(str(study))
    runs = [read_run(path.parent) for path in sorted(results.rglob("summary.json"))]
    text = markdown(loaded, "paper", runs)
    assert text.count("| -- | -- |") == 1  # lattice: neither bytes nor a reduction
    assert reached(runs[0], "accuracy", 1.1) is None
    assert best(runs[0], "accuracy") <= 1
    latency = markdown(loaded.model_copy(update={"table": "latency"}), "paper", runs)
    assert latency.count("--") >= 10


def test_time_under_latency_is_that_of_the_paper_s_formula(results, study):
    loaded = load_study(str(study)).model_copy(update={"table": "latency"})
    runs = [read_run(path.parent) for path in sorted(results.rglob("summary.json")) if path.parent.name == "seed-0"]
    row = next(line for line in markdown(loaded, "cpu", runs).splitlines() if line.startswith("| none"))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    rounds = int(cells[0])
    assert [cell.replace("**", "") for cell in cells[1:]] == [
        f"{rounds * (3 * 10 + t) / 1e3:.1f}" for t in (1, 10, 50, 200)
    ]


def test_the_formula_stands_beside_what_was_measured(results, study):
    loaded = load_study(str(study)).model_copy(update={"table": "formula"})
    runs = [read_run(path.parent) for path in sorted(results.rglob("summary.json"))]
    run = next(run for run in runs if run.name == "none")
    row = next(line for line in markdown(loaded, "cpu", runs).splitlines() if line.startswith("| none"))
    assert f"| {run.formula_bytes / 1e6:.3f} | {run.sent.training / 1e6:.3f} |" in row


def test_a_complete_study_only_reports_again(results, study):
    code, output = cvfl("reproduce", study, "--out", results)
    assert code == 2
    assert "use --resume" in output
    before = {path: path.stat().st_mtime_ns for path in results.rglob("summary.json")}
    code, output = cvfl("reproduce", study, "--out", results, "--resume")
    assert code == 0, output
    assert "4 runs, 4 complete" in output
    assert before == {path: path.stat().st_mtime_ns for path in results.rglob("summary.json")}


def test_one_more_seed_runs_only_what_is_missing(results, study):
    with in_this_process():
        code, output = cvfl("reproduce", study, "--out", results, "--resume", "--seeds", 3)
    assert code == 0, output
    assert "6 runs, 4 complete" in output
    assert "none, seed 2: complete" in output
    assert "none, seed 0: complete" not in output


def test_report_reads_runs_without_training(results, tmp_path):
    code, output = cvfl("report", results, "--out", tmp_path / "r.html")
    assert code == 0, output
    assert "<svg" in (tmp_path / "r.html").read_text()
    code, output = cvfl("report", tmp_path, "--out", tmp_path / "r.html")
    assert code == 2
    assert "there is no run directory" in output


def test_tasks_merge_section_by_section(study, tmp_path):
    loaded = load_study(str(study))
    found = tasks(loaded, "paper", 1, tmp_path / "data", tmp_path)
    assert [task.cell for task in found] == ["none", "lattice b=2"]
    assert found[0].config.step_size.eta == 0.1
    assert found[0].config.rounds == 90
    assert found[0].config.data.name == "wine"
    assert found[0].config.data.path is None
    real = tasks(load_study("cifar10"), "cpu", 1, tmp_path / "data", tmp_path)
    assert real[0].config.data.path == tmp_path / "data" / "cifar10"
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": 4}) == {"a": {"b": 1, "c": 3}, "d": 4}
    assert slug("vector (lattice) b=2") == "vector-lattice-b-2"


def test_workers_do_what_they_can_and_an_error_in_one_run_ends_the_study(study, tmp_path):
    loaded = load_study(str(study))
    bad = loaded.model_copy(update={"run": merged(loaded.run, {"batch_size": 100_000})})
    good, refused = (tasks(one, "cpu", 1, tmp_path, tmp_path)[n] for n, one in enumerate((loaded, bad)))
    going = run_all([good, refused], 1, lambda: None)
    assert next(going) is good
    assert (good.out / "summary.json").exists()
    with pytest.raises(ConfigError, match="batch_size"):
        next(going)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 3", "title"),
        (STUDY.replace('metric = "accuracy"', 'metrik = "accuracy"'), "metri"),
        (STUDY + "[[", "wine"),
    ],
)
def test_a_study_that_is_malformed(tmp_path, text, message):
    path = tmp_path / "wine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_study(str(path))


def test_unknown_names(tmp_path, study):
    with pytest.raises(ConfigError, match="did you mean 'physionet2012'"):
        load_study("physionet")
    with pytest.raises(ConfigError, match="no such file"):
        load_study("nothing.toml")
    with pytest.raises(ConfigError, match="no preset 'gpu'"):
        tasks(load_study(str(study)), "gpu", 1, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("name", "preset"),
    [(name, preset) for name in study_names() if "" in load(name).members for preset in load_study(name).preset],
)
def test_the_studies_that_come_with_it_are_valid(name, preset, tmp_path):
    loaded = load_study(name)
    found = tasks(loaded, preset, None, tmp_path, tmp_path)
    chosen = loaded.preset[preset]
    assert len(found) == sum(map(chosen.runs, (cell.name for cell in loaded.cell))) * chosen.seeds
    assert len({task.out for task in found}) == len(found)
    assert preset == "paper" or "paper" not in loaded.preset or chosen.scaled


def test_the_list_shows_every_study():
    code, output = cvfl("reproduce", "list")
    assert code == 0
    assert all(name in output for name in study_names())


def test_how_far_a_run_is_stands_in_the_last_line(study, tmp_path):
    task = tasks(load_study(str(study)), "cpu", 1, tmp_path, tmp_path)[0]
    assert task.share == 0
    task.out.mkdir(parents=True)
    lines = task.out / "metrics.jsonl"
    lines.write_text('{"round": 0, "epoch"')
    assert task.share == 0
    # No line but the last whole one is read: the others are not even JSON.
    lines.write_text("nothing\n" * 100_000 + '{"round": 2, "epoch": 0.5}\n{"round": 3, "ep')
    assert task.share == 3 / 12
    lines.write_text("nothing\n" + f'{{"note": "{"x" * 100_000}", "round": 5, "epoch": 0.5}}\n')
    assert task.share == 6 / 12
    by_epochs = replace(task, config=task.config.model_copy(update={"rounds": None, "epochs": 2}))
    assert by_epochs.share == 0.25


@pytest.mark.slow
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    """And with one that is told to end: see how a suite is stopped."""
    (tmp_path / "wine.toml").write_text(study_toml(rounds=100_000))
    out = tmp_path / "out"
    with started("reproduce", tmp_path / "wine.toml", "--out", out, "--workers", 2) as command:
        growing(out, 2, command)
        command.kill()
        command.communicate(timeout=60)
        assert command.returncode == -signal.SIGKILL
        assert stopped_growing(out)
