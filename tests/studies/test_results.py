"""Tables, figures and small records of a study: they say what was recorded, and can be made again from the records."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cvfl.errors import DataError
from cvfl.report.series import to_series
from cvfl.runs import compact as records
from cvfl.runs.compact import compact
from cvfl.runs.read import read_run
from cvfl.studies.figures import groups
from cvfl.studies.origin import Machine, Origin
from cvfl.studies.scaled import scaled_down
from cvfl.studies.study import load_study
from cvfl.studies.tables import best, reached, study_tables
from study_files import changed, contents, cvfl, in_this_process, study_toml

pytestmark = pytest.mark.usefixtures("no_pages")
STUDY = study_toml({"none": "identity", "scalar b=2": "scalar:bits=2", "scalar b=4": "scalar:bits=4"})
SVG = "{http://www.w3.org/2000/svg}"
ORIGIN = Origin("cpu", "cvfl reproduce wine --preset cpu --seeds 2", (Machine(2, "A processor", 24),))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "wine.toml").write_text(STUDY)
    with in_this_process():
        code, output = cvfl("reproduce", folder / "wine.toml", "--out", folder / "out")
    assert code == 0, output
    return folder / "out"


@pytest.fixture(scope="module")
def published(results, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "wine"
    code, output = cvfl("report", results, "--publish", folder)
    assert code == 0, output
    return folder


def loaded(tmp_path: Path, text: str = STUDY):
    (tmp_path / "wine.toml").write_text(text)
    return load_study(str(tmp_path / "wine.toml"))


def test_a_study_leaves_a_figure_for_each_bit_width(results):
    names = ["accuracy-by-bytes-b2", "accuracy-by-bytes-b4", "accuracy-by-epoch-b2", "accuracy-by-epoch-b4"]
    assert sorted(path.stem for path in (results / "figures").iterdir()) == names
    text = (results / "tables.md").read_text()
    assert [name for name in names if f"](figures/{name}.svg)" in text] == names
    two, four = ((results / "figures" / f"accuracy-by-bytes-b{b}.svg").read_text() for b in (2, 4))
    assert "none" in two
    assert "scalar b=2" in two
    assert "scalar b=4" not in two
    assert "scalar b=4" in four
    assert "target 0.6" in two
    assert "target 0.6" in (results / "report.html").read_text()


def test_a_figure_stands_alone(results):
    for path in (results / "figures").iterdir():
        text, root = path.read_text(), ElementTree.parse(path).getroot()
        assert len(text) < 60_000
        assert root.tag == f"{SVG}svg"
        assert root[0].tag == f"{SVG}rect"  # white, since the ink is dark
        assert root[0].get("fill") == "#fff"
        assert "color: #1a1e23" in root.get("style", "")
        assert float(root.get("width", "").removesuffix("pt")) > 300
        assert "var(" not in text
        assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"20\d\d-\d\d-\d\d|matplotlib\.org|<dc:date", text)
        ids = {element.get("id") for element in root.iter()}
        assert {element.get("href", "#")[1:] for element in root.iter(f"{SVG}use")} <= ids


def test_published_records_give_the_same_tables_and_figures(results, published, tmp_path):
    code, output = cvfl("report", published, "--publish", tmp_path / "again")
    assert code == 0, output
    assert contents(tmp_path / "again") == contents(published)
    code, output = cvfl("report", published, "--publish", published)  # also in its own place
    assert code == 0, output
    assert contents(tmp_path / "again") == contents(published)
    assert (published / "tables.md").read_text() == (results / "tables.md").read_text()
    assert {"study.toml", "study.json", "tables.md", "runs/none/seed-1/metrics.jsonl"} <= contents(published).keys()
    assert "report.html" not in contents(published)


def test_published_records_are_small_and_tell_nothing_of_the_machine(results, published):
    small = {name: data for name, data in contents(published).items() if name.startswith("runs/")}
    assert len(small) == 2 * 6
    assert sum(map(len, small.values())) < 30_000
    text = b"".join(small.values()).decode()
    assert '"path"' not in text
    assert '"network"' not in text
    line = json.loads(small["runs/none/seed-0/metrics.jsonl"].splitlines()[0])
    assert list(line) == ["round", "epoch", "loss", "bytes", "test"]
    assert list(line["test"]) == ["accuracy"]
    assert len(f"{line['loss']:.10g}".replace(".", "").lstrip("0")) <= 6
    whole = json.loads((results / "runs/none/seed-0/summary.json").read_text())
    summary = json.loads(small["runs/none/seed-0/summary.json"])
    assert summary["bytes"] == whole["bytes"]
    assert summary["parameters"] == whole["parameters"]


def test_publishing_again_removes_what_is_no_longer_there(results, tmp_path):
    target = tmp_path / "wine"
    assert cvfl("report", results, "--publish", target)[0] == 0
    old = target / "runs" / "gone" / "seed-0"
    compact(results / "runs" / "none" / "seed-0", old, "accuracy")
    (target / "figures" / "gone.svg").write_text("<svg/>")
    assert cvfl("report", results, "--publish", target)[0] == 0
    assert not old.exists()
    assert not (target / "figures" / "gone.svg").exists()


def test_whole_runs_are_not_overwritten_by_small_ones(results):
    before = contents(results / "runs")
    code, output = cvfl("report", results, "--publish", results)
    assert code == 2
    assert "holds whole runs" in output
    assert contents(results / "runs") == before


def test_long_runs_keep_an_even_spacing_and_every_best_round(results, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LINES", 3)
    source = tmp_path / "long"
    source.mkdir()
    (source / "summary.json").write_bytes((results / "runs/none/seed-0/summary.json").read_bytes())
    scores = [0.1, 0.3, 0.2, 0.25, 0.5, 0.4, 0.45, 0.6, 0.55]
    line = json.loads((results / "runs/none/seed-0/metrics.jsonl").read_text().splitlines()[1])
    lines = [line | {"round": n, "test": {"accuracy": score}} for n, score in enumerate(scores)]
    (source / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    compact(source, tmp_path / "small", "accuracy")
    small, whole = read_run(tmp_path / "small"), read_run(source)
    assert [one.number for one in small.history if not one.aside] == [2, 5, 8]  # the last one is the outcome
    assert [one.number for one in small.history if one.aside] == [0, 1, 4, 7]
    for target in (0.05, 0.1, 0.2, 0.3, 0.45, 0.5, 0.58, 0.6):
        assert reached(small, "accuracy", target).number == reached(whole, "accuracy", target).number
    assert best(small, "accuracy") == best(whole, "accuracy") == 0.6
    (series,) = to_series([small])
    assert series.curve(lambda one: one.number, lambda one: one.test.get("accuracy")).x == (2, 5, 8)
    compact(tmp_path / "small", tmp_path / "smaller", "accuracy")
    assert contents(tmp_path / "smaller") == contents(tmp_path / "small")
    assert small.round_seconds == pytest.approx(whole.round_seconds, rel=1e-5)


def test_seconds_a_round_leave_evaluation_out(results):
    run = read_run(results / "runs/none/seed-0")
    plain = sorted(line.seconds for line in run.history if not line.test)  # type: ignore[type-var]
    assert len(plain) == 6
    assert run.round_seconds == pytest.approx((plain[2] + plain[3]) / 2)


def test_report_writes_figures_alone(results, tmp_path):
    code, output = cvfl("report", results, "--figures", tmp_path / "figures", "--preset", "paper")
    assert code == 0, output
    assert "accuracy 1.1" in output
    assert "target 1.1" in (tmp_path / "figures" / "accuracy-by-epoch-b2.svg").read_text()
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "figures" / "own.svg").write_text("<svg/>")
    assert cvfl("report", results, "--figures", tmp_path / "figures")[0] == 0
    assert (tmp_path / "figures" / "own.svg").exists()
    code, output = cvfl("report", results, "--figures", tmp_path / "figures" / "own.svg" / "inside")
    assert code == 2
    assert "cannot be written" in output


def test_figures_need_a_study(results, tmp_path):
    for options in ((), ("--out", tmp_path / "r.html")):
        code, output = cvfl("report", results / "runs", "--figures", tmp_path, *options)
        assert code == 2
        assert "name it by --study" in output
    code, output = cvfl("report", results / "runs", "--figures", tmp_path, "--study", "latency")
    assert code == 2
    assert "no run belongs to the study" in output


def test_what_was_scaled_down_is_read_off_the_configurations(tmp_path):
    rows = scaled_down(loaded(tmp_path), "cpu", 2)
    assert rows == (("target", "1.1", "0.6"), ("seeds", "5", "2"), ("step size", "0.1", "0.05"), ("rounds", "90", "12"))
    assert scaled_down(loaded(tmp_path), "paper", 5) == ()
    names = {name: (paper, here) for name, paper, here in scaled_down(load_study("cifar10"), "cpu", 3)}
    assert names["epochs"][0] == "200"
    assert names["training samples"][0] == "as it comes"


def test_tables_name_machine_versions_and_what_was_scaled_down(published):
    text = (published / "tables.md").read_text()
    assert "| rounds | 90 | 12 |" in text
    assert "In words: fewer rounds." in text
    assert (
        f"| machine | {Machine.this().cores} cores, {Machine.this().cpu}, {Machine.this().memory_gb} GB memory |"
        in text
    )
    assert "| torch | " in text


def test_facts_name_every_machine_once(tmp_path):
    other = Machine(64, "Another", 512)
    ORIGIN.on(*ORIGIN.machines, other, other).write(tmp_path)
    assert Origin.read(tmp_path) == replace(ORIGIN, machines=(*ORIGIN.machines, other))
    assert Origin.read(tmp_path / "nowhere") is None
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(DataError, match=r"study\.json"):
        Origin.read(tmp_path)


def test_parties_have_figures_of_their_own(results):
    run = read_run(results / "runs/none/seed-0")
    more = changed(run, name="none, M = 12", sent=changed(run.sent, by_party={str(m): run.sent for m in range(12)}))
    assert {part: [one.label for one in series] for part, series in groups(to_series([run, more])).items()} == {
        "M = 2": ["none"],
        "M = 12": ["none, M = 12"],
    }
    assert list(groups(to_series([run]))) == [""]


def test_a_cell_is_compared_with_the_uncompressed_one_that_is_like_it(results, tmp_path):
    study = loaded(tmp_path)
    plain, lossy = read_run(results / "runs/none/seed-0"), read_run(results / "runs/scalar-b-2/seed-0")
    tenth = [
        changed(line, sent=changed(line.sent, up=line.sent.up / 10, down=line.sent.down / 10)) for line in plain.history
    ]
    other = {"local_iterations": "25"}
    runs = [
        plain,
        changed(lossy, history=tuple(tenth)),
        changed(plain, name="none, Q = 25", settings={**plain.settings, **other}, history=tuple(tenth)),
        changed(lossy, name="scalar, Q = 25", settings={**lossy.settings, **other}, history=tuple(tenth)),
    ]
    cells = [study.cell[0].model_copy(update={"name": run.name}) for run in runs]
    (table,) = study_tables(study.model_copy(update={"cell": tuple(cells)}), study.preset["cpu"], runs)
    assert table.head[3:6:2] == ("fewer than none", "fewer, training frames only")
    assert [str(row[5]) for row in table.rows] == ["", "**90.0%**", "", "0.0%"]
    everything = [run.history[-1].sent.total for run in runs[:2]]
    assert all(line.sent.total < everything[0] for line in runs[0].history[:-1])
    reached_at = [reached(run, "accuracy", 0.6).sent.total for run in runs[:2]]  # type: ignore[union-attr]
    assert str(table.rows[1][3]) == f"**{1 - reached_at[1] / reached_at[0]:.1%}**"


def test_ray_that_is_not_installed_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "wine.toml").write_text(STUDY)
    code, output = cvfl("reproduce", tmp_path / "wine.toml", "--out", tmp_path / "out", "--ray", "127.0.0.1:6399")
    assert code == 2
    assert "pip install 'cvfl[ray]'" in output
    assert not (tmp_path / "out").exists()


def test_an_unknown_preset_is_named(results):
    code, output = cvfl("report", results, "--preset", "gpu", "--figures", results / "figures")
    assert code == 2
    assert "no preset 'gpu'" in output
