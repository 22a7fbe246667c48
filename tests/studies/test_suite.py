"""A suite: the same cells in several studies, one progress, one table, and every member a study of its own."""

import math
import re
import shutil
import signal
import tomllib
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest

from cvfl.errors import ConfigError
from cvfl.runs.read import read_run
from cvfl.runs.record import Run, Sent
from cvfl.studies.figures import suite_figure
from cvfl.studies.study import Cell, Study, all_tasks, load, load_study, member_text, study_names
from cvfl.studies.suite_table import suite_table
from study_files import cells, changed, contents, cvfl, growing, in_this_process, started, stopped_growing, study_toml

pytestmark = pytest.mark.usefixtures("no_pages")
COMPRESSORS = {"none": "identity", "scalar b=2": "scalar:bits=2"}
SUITE = f"""
title = "Two data sets"
paper = "no table of the paper"
suite = ["wine", "breast_cancer"]
[preset.cpu.breast_cancer]
target = 0.8
{cells(COMPRESSORS)}"""
TEXT = "{http://www.w3.org/2000/svg}text"


def written(folder: Path, suite: str = SUITE, **options: int) -> Path:
    """The suite and the studies that it names."""
    for name in ("wine", "breast_cancer"):
        (folder / f"{name}.toml").write_text(study_toml(data=name, **options))
    (folder / "both.toml").write_text(suite)
    return folder / "both.toml"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    with in_this_process():
        code, output = cvfl("reproduce", written(folder), "--out", folder / "out")
    assert code == 0, output
    assert "Two data sets: 8 runs, 0 complete" in output
    assert "breast_cancer: scalar b=2, seed 1: complete" in output
    assert "| wine | none | accuracy 0.6 | " in output
    return folder / "out"


@pytest.fixture(scope="module")
def published(results, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "both"
    code, output = cvfl("report", results, "--publish", folder)
    assert code == 0, output
    return folder


def recorded(results: Path, member: str, cell: str) -> list[Run]:
    return [read_run(path.parent) for path in sorted((results / member / "runs" / cell).rglob("summary.json"))]


def table(results: Path) -> dict[tuple[str, str], list[str]]:
    """The figures of every row, by member and cell, without stars."""
    lines = [line for line in (results / "tables.md").read_text().splitlines() if line.startswith("| ")][2:]
    rows = [[cell.strip() for cell in line.replace("**", "").strip("|").split("|")] for line in lines]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_every_member_is_a_study_of_its_own(results, tmp_path):
    for name in ("wine", "breast_cancer"):
        assert len(list((results / name / "runs").rglob("summary.json"))) == 4
        study = load_study(str(results / name / "study.toml"))
        assert [cell.name for cell in study.cell] == list(COMPRESSORS)
        assert study.run["data"]["name"] == name
        assert "cvfl reproduce both.toml --preset cpu --seeds 2" in (results / name / "tables.md").read_text()
        assert (results / name / "report.html").stat().st_size > 10_000
        assert not list((results / name / "runs").rglob("state"))
    assert load_study(str(results / "wine" / "study.toml")).preset["cpu"].target == 0.6
    assert load_study(str(results / "breast_cancer" / "study.toml")).preset["cpu"].target == 0.8
    code, output = cvfl("report", results / "wine", "--out", tmp_path / "wine.html")
    assert code == 0, output
    assert "| none | " in output


def counted(sent: Sent) -> float:
    """All bytes, part by part."""
    assert sent.alignment == 0  # the rows of a data set by name are aligned
    assert sent.setup
    return sent.up + sent.down + sent.evaluation + sent.setup


@pytest.mark.parametrize(("member", "target"), [("wine", 0.6), ("breast_cancer", 0.8)])
def test_the_table_says_what_the_runs_recorded(results, member, target):
    def to_target(cell: str, figure):  # type: ignore[no-untyped-def]
        lines = [
            next(line for line in run.history if line.test.get("accuracy", 0) >= target)
            for run in recorded(results, member, cell)
        ]
        return [figure(line) for line in lines]

    def final(cell: str) -> list[float]:
        return [
            [line.test["accuracy"] for line in run.history if line.test][-1] for run in recorded(results, member, cell)
        ]

    rows = table(results)
    assert [row for row in rows if row[0] == member] == [(member, cell) for cell in (*COMPRESSORS, "floor")]
    none, own = (to_target(cell, lambda line: counted(line.sent) / 1e6) for cell in ("none", "scalar-b-2"))
    frames = [to_target(cell, lambda line: (line.sent.up + line.sent.down) / 1e6) for cell in ("none", "scalar-b-2")]
    epochs, last, base = to_target("scalar-b-2", lambda line: line.epoch), final("scalar-b-2"), final("none")
    said, megabytes, times, only, only_times, whole, epoch, metric, *differences, seeds = rows[member, "scalar b=2"]
    assert said == f"accuracy {target}"
    shown, deviation = megabytes.split(" ± ")
    assert float(shown) == pytest.approx(mean(own), rel=0.01)
    assert float(deviation) == pytest.approx(stdev(own), abs=0.0001)
    assert times == f"{mean(none) / mean(own):.1f}×"
    assert float(only.split(" ± ")[0]) == pytest.approx(mean(frames[1]), rel=0.01)
    assert only_times == f"{mean(frames[0]) / mean(frames[1]):.1f}×"
    assert mean(none) / mean(own) < mean(frames[0]) / mean(frames[1])
    assert epoch == f"{mean(epochs):.1f} ± {stdev(epochs):.1f}"
    assert metric == f"{mean(last):.4f} ± {stdev(last):.4f}"
    changes = [a - b for a, b in zip(last, base, strict=True)]
    t = 12.7062  # of one degree of freedom
    assert [
        float(x.replace("−", "-")) for x in differences[0].replace("the same", "0").split(" (")[0].split(" ± ")
    ] == [
        pytest.approx(mean(changes), abs=1e-4),
        pytest.approx(t * stdev(changes) / math.sqrt(2), abs=1e-4),
    ]
    assert seeds == "2"
    assert float(whole.split(" ± ")[0]) >= float(shown)
    assert {rows[member, "none"][n] for n in (2, 4, 8, 9, 10)} == {""}  # it is not compared with itself
    (run, *_) = recorded(results, member, "none")
    floor = run.rows["train"] * len(run.sent.by_party) * 2 / 8e6  # of the one direction that a study has by default
    assert rows[member, "floor"] == ["", f"{floor:.4f}", "", f"{floor:.4f}", *[""] * 8]


def test_the_baseline_is_what_others_are_compared_with(results):
    study = three_cells(results)

    def ended(cell: str, scores: tuple[float, ...], share: float = 1.0) -> list[Run]:
        """Runs of which all rounds reached the target, sent that share of the bytes, and ended with these scores."""
        (run, *_) = recorded(results, "wine", "none")
        lines = tuple(
            changed(line, test={"accuracy": 0.9}, sent=Sent(up=share * 1e6, down=0.0, evaluation=0.0))
            for line in run.history
        )
        ends = [changed(run.metrics, test={"accuracy": score}) for score in scores]
        return [changed(run, name=cell, seed=n, history=lines, metrics=end) for n, end in enumerate(ends)]

    def columns(*runs: Run) -> list[tuple[str, ...]]:
        found = suite_table("wine", study, study.preset["cpu"], runs).rows
        return [tuple(str(row[n]) for n in (3, 4, 10)) for row in found]

    none, two, eight = ended("none", (0.8, 0.9)), "scalar b=2", "scalar b=8"
    assert columns(*none, *ended(two, (0.79, 0.89), 0.01), *ended(eight, (0.75, 0.95), 0.5))[:-1] == [
        ("1.0000 ± 0.0000", "", ""),
        ("**0.0100** ± 0.0000", "**100×**", "−0.0100 ± 0.0000 (−0.0100 to −0.0100)"),
        ("0.5000 ± 0.0000", "2.0×", "the same ± 0.6353 (−0.0500 to +0.0500)"),  # 12.7062 x 0.0707 / sqrt(2)
    ]
    assert columns(*none[:1], *ended(two, (0.81,)))[1][2] == "+0.0100 (one seed)"
    assert columns(*ended(two, (0.8, 0.8)))[0][1:] == ("--", "--")
    low = [changed(run, history=()) for run in ended(two, (0.1, 0.1))]
    assert columns(*none, low[0], *ended(two, (0.1, 0.1))[1:])[1][:2] == ("-- (1 of 2)", "--")
    assert columns(*[changed(run, history=()) for run in none], *ended(two, (0.8, 0.8)))[1][1] == "--"


def test_others_are_compared_with_the_best_of_several_baselines(results):
    study = three_cells(results)
    names = ("none, Q=1", "none, Q=5", "scalar b=8")
    study = study.model_copy(update={"cell": tuple(Cell(name=name) for name in names)})
    (run, *_) = recorded(results, "wine", "none")

    def ended(cell: str, megabytes: float, score: float) -> Run:
        lines = (changed(run.history[-1], test={"accuracy": 0.9}, sent=Sent(up=megabytes * 1e6, down=0, evaluation=0)),)
        return changed(run, name=cell, history=lines, metrics=changed(run.metrics, test={"accuracy": score}))

    runs = [ended(name, *figures) for name, figures in zip(names, [(8, 0.7), (2, 0.8), (0.5, 0.85)], strict=True)]
    rows = suite_table("wine", study, study.preset["cpu"], runs).rows
    assert [(str(row[4]), row[10]) for row in rows[:3]] == [
        ("", "−0.1000 (one seed)"),
        ("", ""),
        ("4.0×", "+0.0500 (one seed)"),
    ]
    # One that was tried with fewer seeds is not compared with, however few its bytes are.
    runs += [changed(run, seed=run.seed + 1) for run in (runs[0], runs[2])]
    rows = suite_table("wine", study, study.preset["cpu"], runs).rows
    assert [str(row[4]) for row in rows[:3]] == ["", "", "16.0×"]


def test_a_figure_has_all_cells_and_a_logarithmic_axis(results):
    assert sorted(path.name for path in (results / "figures").iterdir()) == ["breast_cancer.svg", "wine.svg"]
    text = (results / "figures" / "wine.svg").read_text()
    assert all(name in text for name in (*COMPRESSORS, "target 0.6"))
    assert "](figures/wine.svg)" in (results / "tables.md").read_text()
    # Whatever the bit width, and also where the cells are not far apart.
    study, none = three_cells(results), recorded(results, "wine", "none")
    other = [changed(run, name="scalar b=8", settings=run.settings | {"compressor": "scalar:bits=8"}) for run in none]
    runs = [*none, *recorded(results, "wine", "scalar-b-2"), *other]
    assert all(cell.name in drawn(study, runs) for cell in study.cell)
    svg = drawn(study, [*none, *recorded(results, "wine", "scalar-b-2")])
    texts = [(one.text or "", one.get("x"), one.get("y")) for one in ElementTree.fromstring(svg).iter(TEXT)]
    ticks = [(float(value), float(x)) for value, x, y in texts if x and y == texts[0][2]]
    assert len(ticks) > 2
    scale = [(x - ticks[0][1]) / math.log(value / ticks[0][0]) for value, x in ticks[1:]]
    assert scale == pytest.approx([scale[0]] * len(scale), rel=0.01)


def drawn(study: Study, runs: list[Run]) -> str:
    return suite_figure("wine", study, study.preset["cpu"], runs).svg


def three_cells(results: Path) -> Study:
    study = load_study(str(results / "wine" / "study.toml"))
    return study.model_copy(update={"cell": (*study.cell, study.cell[1].model_copy(update={"name": "scalar b=8"}))})


def test_published_records_give_the_same_tables_and_figures(results, published, tmp_path):
    code, output = cvfl("report", published, "--publish", tmp_path / "again")
    assert code == 0, output
    assert contents(tmp_path / "again") == contents(published)
    code, output = cvfl("report", published, "--publish", published)  # also in its own place
    assert code == 0, output
    assert contents(tmp_path / "again") == contents(published)
    for name in ("tables.md", "wine/tables.md", "wine/study.toml", "study.toml", "study.json"):
        assert (published / name).read_bytes() == (results / name).read_bytes()
    assert "wine/runs/none/seed-1/metrics.jsonl" in contents(published)
    assert not [name for name in contents(published) if name.endswith((".html", "config.json"))]


def test_whole_runs_are_not_overwritten_by_small_ones(results):
    before = contents(results)
    code, output = cvfl("report", results, "--publish", results)
    assert code == 2
    assert "holds whole runs" in output
    assert contents(results) == before


def test_report_writes_one_page(results, tmp_path):
    code, output = cvfl("report", results, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures")
    assert code == 0, output
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 2
    assert "breast_cancer" in page
    assert "8 runs · 2 studies" in page
    assert contents(tmp_path / "figures") == contents(results / "figures")
    code, output = cvfl("report", results / "wine" / "runs", "--study", results / "study.toml")
    assert code == 2
    assert "no run belongs to the suite" in output


def test_only_what_is_missing_runs(results, tmp_path):
    suite, out = written(tmp_path), tmp_path / "out"
    shutil.copytree(results, out)
    shutil.rmtree(out / "breast_cancer" / "runs" / "none" / "seed-0")
    code, output = cvfl("reproduce", suite, "--out", out)
    assert code == 2
    assert "use --resume" in output
    with in_this_process():
        code, output = cvfl("reproduce", suite, "--out", out, "--resume")
    assert code == 0, output
    assert "8 runs, 7 complete" in output
    assert re.findall(r"^(.*): complete$", output, re.MULTILINE) == ["breast_cancer: none, seed 0"]
    assert contents(out / "figures") == contents(results / "figures")
    # A report of a suite that is not complete tells what there is.
    shutil.rmtree(out / "wine" / "runs")
    code, output = cvfl("report", out, "--out", tmp_path / "r.html")
    assert code == 0, output
    assert "| breast_cancer | none | " in output
    assert "| wine | " not in output


def test_a_suite_that_is_stopped_is_taken_up_again(tmp_path):
    suite, out = written(tmp_path, rounds=100_000), tmp_path / "out"
    with started("reproduce", suite, "--out", out, "--seeds", 1, "--workers", 2) as command:
        growing(out, 2, command)
        command.send_signal(signal.SIGTERM)
        assert command.communicate(timeout=60)[1] == "stopped\n"
        assert command.returncode == 128 + signal.SIGTERM
        assert stopped_growing(out)
    assert list((out / "wine" / "runs").rglob("state"))
    written(tmp_path, rounds=4)
    with in_this_process():
        code, output = cvfl("reproduce", suite, "--out", out, "--seeds", 1, "--resume")
    assert code == 0, output
    assert "4 runs, 0 complete" in output
    assert table(out)["wine", "scalar b=2"][-1] == "1"
    assert table(out)["wine", "scalar b=2"][-2].endswith("(one seed)")
    assert not list(out.rglob("state"))


def test_seeds_come_one_after_the_other_in_all_members(tmp_path):
    found = all_tasks(load(str(written(tmp_path))), "cpu", None, tmp_path, tmp_path / "out")
    assert [task.seed for task in found] == [0] * 4 + [1] * 4
    assert [task.member for task in found[:4]] == ["wine"] * 2 + ["breast_cancer"] * 2
    assert found[2].label == "breast_cancer: none, seed 0"
    assert found[2].folder == tmp_path / "out" / "breast_cancer"
    assert len({task.out for task in found}) == 8


def test_a_suite_changes_presets_key_by_key(tmp_path):
    text = SUITE.replace("target = 0.8", 'run = { rounds = 5 }\ncells = { "none" = { rounds = 7 } }')
    suite = load(str(written(tmp_path, text)))
    found = all_tasks(suite, "cpu", 1, tmp_path, tmp_path)
    assert [task.config.rounds for task in found] == [12, 12, 7, 5]
    assert suite.members["breast_cancer"].preset["cpu"].target == 0.6
    assert suite.members["breast_cancer"].preset["paper"] == suite.members["wine"].preset["paper"]


def test_what_a_member_had_for_its_own_cells_goes_with_them(tmp_path):
    suite = written(tmp_path)
    own = '[preset.cpu.cells]\n"lattice b=2" = { rounds = 3 }\n'
    (tmp_path / "wine.toml").write_text(study_toml().replace("[preset.paper]", own + "[preset.paper]"))
    assert load_study(str(tmp_path / "wine.toml")).preset["cpu"].cells
    assert not load(str(suite)).members["wine"].preset["cpu"].cells


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"none"', '"nothing"', "both.toml: there is no cell 'none' to compare"),
        ('"wine"', '"wines"', "unknown study 'wines'"),
        ('"wine"', '"physionet"', "did you mean 'physionet2012'"),
        ('"wine"', '"hundredfold"', "hundredfold is a suite of studies, not a study"),
        ('"wine"', '"breast_cancer"', "'breast_cancer' is to be the name of a study, without .toml, and only once"),
        ('"wine"', '"../wine"', "'../wine' is to be the name"),
        ('"wine"', "3", "suite.0: "),
        (
            "cpu.breast_cancer",
            "cpu.breast",
            "preset.cpu: the suite has no study 'breast'; did you mean",
        ),
        ("cpu.breast_cancer", "gpu.breast_cancer", "there is no preset 'gpu'"),
        ("target = 0.8", "targit = 0.8", "preset.cpu.targit"),
        ('paper = "no', 'colour = "no', "both.toml: "),
    ],
)
def test_a_suite_that_is_malformed(tmp_path, old, new, message):
    assert SUITE.count(old) == 1
    suite = written(tmp_path, SUITE.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(str(suite))


@pytest.mark.parametrize("name", study_names())
def test_a_study_written_as_toml_is_the_same_study(name, tmp_path):
    for study in load(name).members.values():
        (tmp_path / "again.toml").write_text(member_text(study))
        assert load_study(str(tmp_path / "again.toml")) == study
        assert member_text(load_study(str(tmp_path / "again.toml"))) == member_text(study)


def test_odd_values_as_toml(tmp_path):
    odd = {
        "a b": {'quo"te': [1, 2.5, 1e-7, -0.0, True], "ü": "line\nbreak \\ \U0001f600 \x7f"},
        "empty": {},
        "deep": {"one": {"two": {"three": {}}}, "four": {}},
        "list": [],
        "tables": [{"name": "x", "run": {"k": [{"in": 1}]}}, {}],
        "plain": "after a table",
    }
    (tmp_path / "wine.toml").write_text(study_toml())
    study = load_study(str(tmp_path / "wine.toml"))
    presets = study.preset | {"p q": study.preset["cpu"].model_copy(update={"run": odd})}
    update = {"title": 'a "title"', "run": odd, "cell": (Cell(name="ü", run=odd), Cell(name="")), "preset": presets}
    study = study.model_copy(update=update)
    text = member_text(study)
    assert tomllib.loads(text) == study.model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "again.toml").write_text(text)
    assert load_study(str(tmp_path / "again.toml")) == study


def test_hundredfold_has_the_same_cells_in_seven_studies(tmp_path):
    suite = load("hundredfold")
    papers, tables = ["physionet2012", "cifar10", "modelnet10"], ["credit_default", "adult", "breast_cancer"]
    assert list(suite.members) == [*papers, "digits", *tables]
    for name, study in suite.members.items():
        ours = load_study(name)
        assert (study.title, study.metric, study.run) == (ours.title, ours.metric, ours.run)
        assert study.preset["cpu"] == ours.preset["cpu"]
    found = {(task.member, task.cell): task.config for task in all_tasks(suite, "cpu", 1, tmp_path, tmp_path)}
    assert len(found) == 7 * 9
    for name in suite.members:
        none = [found[name, f"none, Q={Q}"] for Q in (1, 5, 10, 25)]
        assert [config.local_iterations for config in none] == [1, 5, 10, 25]
        assert {config.compressor for config in none} == {"identity"}
        assert not any(config.cached for config in none)
        rows = [found[name, f"auto{rest}"].cached for rest in (", batch rows", "", ", Q=25", ", Q=25, no certificate")]
        assert rows == [False, True, True, True]
    with pytest.raises(ConfigError, match="no preset 'paper'"):
        all_tasks(suite, "paper", 1, tmp_path, tmp_path)
    code, output = cvfl("reproduce", "list")
    assert code == 0
    assert "hundredfold     A hundred times fewer bytes: " in output
