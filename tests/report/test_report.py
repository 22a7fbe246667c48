"""The report of runs, from files as `cvfl` writes them: what it shows, what it refuses, that it stands alone."""

import json
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from cvfl.errors import DataError, OutputError
from cvfl.report import figures
from cvfl.report.report import write_report
from cvfl.report.series import POINTS, to_series
from cvfl.runs.read import read_run

PARTIES = ("hospital", "bank")
SVG = "{http://www.w3.org/2000/svg}"


def sent(rounds, up, down, evaluation):
    before = {"alignment": 30_000, "setup": 4_000}
    return {"up": rounds * up, "down": rounds * down, "evaluation": evaluation} | before


def make_run(path, name="lattice b=2", compressor="lattice:bits=2", score=0.9, up=10_000, rounds=4, seed=1, **changes):
    """Write a run directory; evaluations every second round, the last of them with the given score."""
    lossless = compressor == "identity"
    error = dict.fromkeys(("measured", "expected", "bound"), 0.0)
    error = error if lossless else {"measured": 1.5, "expected": 1.6, "bound": 4.8}
    evaluate = changes.pop("evaluate", True)
    metric = changes.get("metric", "accuracy")
    lines, test, train = [], {}, {}
    for t in range(rounds):
        parties = {m: sent(t + 1, up, 3 * up, 5_000 * evaluate * ((t + 1) // 2)) for m in PARTIES}
        line = {"round": t, "epoch": (t + 1) / 2, "loss": 2.0 / (t + 1), "step_size": 0.1, "seconds": 0.02}
        total = {part: sum(bytes_[part] for bytes_ in parties.values()) for part in parties[PARTIES[0]]}
        line |= {"bytes": total, "by_party": parties}
        if evaluate and t % 2:
            test = {"loss": 1.0 / (t + 1), metric: score * (t + 1) / rounds}
            train = {"loss": 0.9 / (t + 1), metric: (score + 0.05) * (t + 1) / rounds}
            line |= {"train": train, "test": test, "compression_error": dict.fromkeys(("server", *PARTIES), error)}
        lines.append(line)
    summary = {
        "name": name,
        "seed": seed,
        "rounds": rounds,
        "completed": True,
        "metric": "accuracy",
        "metrics": {"train": train, "test": test},
        "bytes": total | {"total": sum(total.values()), "by_party": parties},
        "formula_bytes": 400_000,
        "compression_error": error,
        "seconds": 12.25,
        "parameters": {"server": "a1" * 32, "hospital": "b2" * 32},
        "config": {"seed": seed, "compressor": compressor, "server_compressor": "identity", "step_size": {"eta": 0.1}},
        "versions": {"cvfl": "0.1.0", "torch": "2.13.0"},
    }
    path.mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps(summary | changes))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def report(tmp_path, *runs, title=None):
    write_report(runs, tmp_path / "report.html", title)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def svgs(page):
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def rows(page, label):
    """The rows of a table as lists of cells, with the bold ones marked by stars."""
    found = re.search(rf'aria-label="{label}">(.*?)</table>', page, re.DOTALL)
    assert found, label
    bodies = re.findall(r"<tr.*?</tr>", found[1], re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body, re.DOTALL) for body in bodies]
    return [[unescape(re.sub(r"<[^>]*>", "", re.sub(r"</?strong>", "*", cell))) for cell in row] for row in cells]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    path = tmp_path_factory.mktemp("three")
    return (
        make_run(path / "a", "none", "identity", score=0.95, up=160_000),
        make_run(path / "b", "scalar b=2", "scalar:bits=2", score=0.91, seconds=9.0),
        make_run(path / "c", "lattice b=2", score=0.93),
    )


@pytest.fixture(scope="module")
def page_of_three(tmp_path_factory, three):
    return report(tmp_path_factory.mktemp("page"), *three, title="Three & more")


def test_results_have_units_best_and_reduction(page_of_three):
    head, *body = rows(page_of_three, "Results")
    assert head == ["Run", "Test accuracy", "Training, as last seen", "Rounds", "Total MB", "Reduction", "Seconds"]
    few = ["4", "*0.408*training 0.320", "*12.8×*training 16.0×"]
    assert body == [
        ["noneseed 1", "*0.9500*", "*1.0000*", "4", "5.208training 5.120", "1.0×training 1.0×", "12.2"],
        ["scalar b=2seed 1", "0.9100", "0.9600", *few, "*9.0*"],
        ["lattice b=2seed 1", "0.9300", "0.9800", *few, "12.2"],
    ]


def test_what_was_not_recorded_is_not_nothing(tmp_path):
    """Runs of versions that did not count alignment and set-up."""
    runs = [make_run(tmp_path / name, name, name, seed=1) for name in ("identity", "auto")]
    for path in (runs[1] / "summary.json", runs[1] / "metrics.jsonl"):
        path.write_text(path.read_text().replace(', "alignment": 30000, "setup": 4000', ""))
        path.write_text(path.read_text().replace(', "alignment": 60000, "setup": 8000', ""))
    page = report(tmp_path, *runs)
    assert [row[-3:] for row in rows(page, "Bytes by party") if row[0] == "all parties"] == [
        ["0.0600", "0.0080", "0.4080"],
        ["not recorded", "not recorded", "0.3400"],
    ]
    assert "the total is without them" in page
    assert "94% training, 5.9% evaluation, alignment and set-up not recorded" in report(tmp_path, runs[1])
    assert "78% training, 4.9% evaluation, 15% alignment, 2.0% set-up" in report(tmp_path, runs[0])


def test_cards_say_the_outcome(page_of_three):
    text = " ".join(re.sub(r"<[^>]*>", " ", page_of_three).split())
    # Two runs sent the same; the card names the one that learnt more.
    assert (
        "Largest reduction 12.8× lattice b=2 against none; test accuracy −0.0200; training frames only: 16.0×" in text
    )
    assert "Best test accuracy 0.9500 none" in text
    assert "Fewest bytes in all 0.408 MB lattice b=2: 78% training, 4.9% evaluation, 15% alignment, 2.0% set-up" in text


def test_low_is_better_for_a_loss(tmp_path):
    runs = [make_run(tmp_path / n, n, f"scalar:bits={n}", float(n), metric="rmse") for n in ("2", "1")]
    page = report(tmp_path, *runs)
    assert [row[1] for row in rows(page, "Results")] == ["Test RMSE", "2.0000", "*1.0000*"]
    assert "Test RMSE by epoch" in page


def test_without_a_baseline_there_is_no_reduction(tmp_path, three):
    assert "Reduction" not in report(tmp_path, *three[1:])


def test_one_run(tmp_path, three):
    page = report(tmp_path, three[2])
    assert "<h1>lattice b=2</h1>" in page
    assert "1 run · 2 parties · cvfl 0.1.0" in page
    assert "*" not in str(rows(page, "Results"))
    assert len(svgs(page)) == 4 + 1 + 3 + 1  # learning, bytes, an error for each role and its legend


def test_everything_is_there(page_of_three):
    assert "<title>Three &amp; more</title>" in page_of_three
    for text in ("by megabytes sent", "by epoch", "step_size.eta", "2.13.0", "b2" * 32, "Algorithm 1"):
        assert text in page_of_three
    assert rows(page_of_three, "Bytes by party")[1:3] == [
        ["none"],
        ["hospital", "0.6400", "1.9200", "0.0100", "0.0300", "0.0040", "2.6040"],
    ]
    assert rows(page_of_three, "Formula and measured bytes")[2] == ["scalar b=2", "0.400", "0.320", "80.0%"]
    assert rows(page_of_three, "Compression error")[1] == ["none", "0", "0", "0", "exact"]
    assert rows(page_of_three, "Compression error")[3] == ["lattice b=2", "1.50", "1.60", "4.80", "31.2%"]
    configuration = rows(page_of_three, "Configuration")
    assert ["compressor", "*identity*", "*scalar:bits=2*", "*lattice:bits=2*"] in configuration
    assert ["step_size.eta", "0.1", "0.1", "0.1"] in configuration


def test_an_error_above_its_bound_is_said(tmp_path):
    total = make_run(tmp_path / "a", "total", compression_error={"measured": 5.0, "expected": 1.0, "bound": 4.0})
    single = make_run(tmp_path / "b", "single")
    lines = (single / "metrics.jsonl").read_text()
    (single / "metrics.jsonl").write_text(lines.replace('"measured": 1.5', '"measured": 4.9', 1))
    shares = [row[-1] for row in rows(report(tmp_path, total, single), "Compression error")[1:]]
    assert shares == ["125.0% exceeds the bound", "31.2% exceeds the bound"]


def certified(run, **worse):
    """Put certificates into the lines of a run: all well, but for what is `worse` in the last one."""
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1::2]:
        line["certificate"] = {role: {"cosine": 0.99, "ratio": 1.01, "ease": 1.0} for role in ("server", "bank")}
    lines[-1]["certificate"]["bank"] |= worse
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_the_certificate_is_shown_where_there_is_one(tmp_path, page_of_three):
    assert "Certificate" not in page_of_three
    one = certified(make_run(tmp_path / "a", "auto", "auto"), cosine=0.8, ratio=0.5, ease=0.25)
    page = report(tmp_path, one, make_run(tmp_path / "b"))
    assert rows(page, "Certificate")[1:] == [
        ["auto"],
        ["server", "0.990 (1)", "1.010 (1)", "1", "0 of 2"],
        ["bank", "0.800 (3)", "0.500 (3)", "0.250 (3)", "1 of 2"],
    ]


def test_certificates_of_several_seeds_name_the_seed(tmp_path):
    runs = [certified(make_run(tmp_path / str(n), "auto", "auto", seed=n), cosine=0.9 - n / 10) for n in (1, 2)]
    assert rows(report(tmp_path, *runs), "Certificate")[3][:2] == ["bank", "0.700 (seed 2, 3)"]


def test_seeds_become_mean_and_deviation(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed, score=score) for seed, score in enumerate((0.90, 0.92, 0.94))]
    page = report(tmp_path, *runs, make_run(tmp_path / "other", "scalar b=2", "scalar:bits=2"))
    assert [row[:2] for row in rows(page, "Results")[1:]] == [
        ["lattice b=23 seeds: 0, 1, 2", "*0.9200* ± 0.0200"],
        ["scalar b=2seed 1", "0.9000"],
    ]
    assert len(rows(page, "Results of every seed")) == 1 + 4
    assert "one standard deviation over seeds" in page
    (one, _) = to_series([read_run(path) for path in (*runs, tmp_path / "other")])
    curve = one.curve(lambda line: line.epoch, lambda line: line.test.get("accuracy"))
    assert curve.x == (1.0, 2.0)
    assert curve.y == pytest.approx((0.46, 0.92))
    assert curve.deviation == pytest.approx((0.01, 0.02))


def test_an_interrupted_run_is_said_and_not_compared(tmp_path, three):
    stopped = make_run(tmp_path / "d", "lattice b=2", rounds=2, up=1_000, seed=2, completed=False)
    page = report(tmp_path, *three, stopped)
    last = rows(page, "Results")[-1]
    assert last[0] == "lattice b=2 (interrupted)seed 2"
    assert last[-2] == "–"
    assert not any("*" in cell for cell in last)
    assert "stopped before its last round" in page
    assert "interrupted" in report(tmp_path, stopped)


def test_runs_with_other_test_rows_are_marked_and_not_compared(tmp_path):
    names = {"none": "one", "scalar b=2": "one", "lattice b=2": "other", "old": None}
    runs = [
        make_run(tmp_path / name, name, name, score=0.9 + n / 100, split=split)
        for n, (name, split) in enumerate(names.items())
    ]
    page = report(tmp_path, *runs)
    found = [row[0] for row in rows(page, "Results")[1:]]
    assert found == ["noneseed 1", "scalar b=2seed 1", "lattice b=2seed 1; other test rows", "oldseed 1"]
    assert "their metrics do not compare" in page
    assert not any("*" in cell for cell in rows(page, "Results")[3])


def test_seeds_of_other_splits_are_one_series(tmp_path):
    """A study splits anew with every seed: its cells have the same rows, seed by seed."""
    made = [
        make_run(
            tmp_path / f"{name}{n}", name, name, seed=n, split=str(n), config={"seed": n, "data": {"split_seed": n}}
        )
        for name in ("none", "auto")
        for n in (0, 1)
    ]
    page = report(tmp_path, *made)
    assert [row[0] for row in rows(page, "Results")[1:]] == ["none2 seeds: 0, 1", "auto2 seeds: 0, 1"]
    assert "other test rows" not in page


def test_without_any_evaluation(tmp_path):
    run = make_run(tmp_path / "a", evaluate=False, metrics={"train": {}, "test": {}})
    page = report(tmp_path, run)
    assert "No run was evaluated" in page
    assert rows(page, "Results")[1][1:3] == ["–", "–"]
    assert len(svgs(page)) == 2  # the loss on the batches, and bytes


def test_names_are_text(tmp_path):
    name = "<script>alert('$x$')</script> & \"_\" \x00 \ud800 日本"
    page = report(tmp_path, make_run(tmp_path / "a", name), make_run(tmp_path / "b", "_hidden $\\frac"))
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    drawn = ["".join(svg.itertext()) for svg in svgs(page)]
    assert any("<script>alert('$x$')" in text for text in drawn)
    assert any("_hidden $\\frac" in text for text in drawn)


def test_namesakes_are_told_apart(tmp_path):
    config = {"compressor": "lattice:bits=2", "seed": 1, "local_iterations": 10}
    paths = [make_run(tmp_path / str(q), config=config | {"local_iterations": q}) for q in (1, 10)]
    twin = make_run(tmp_path / "twin", config=config)
    labels = [one.label for one in to_series([read_run(path) for path in (*paths, twin)])]
    assert labels == [
        "lattice b=2, local_iterations=1",
        "lattice b=2, local_iterations=10 (#1)",
        "lattice b=2, local_iterations=10 (#2)",
    ]


def test_epochs_of_other_lengths_are_put_side_by_side(tmp_path):
    """A seed that splits rows differently evaluates at other rounds, and once an epoch all the same."""
    one, other = (read_run(make_run(tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    lines = [line.model_copy(update={"number": line.number + 1}) for line in other.history]
    later = other.model_copy(update={"history": tuple(lines)})
    (series,) = to_series([one, later])
    curve = series.curve(lambda line: line.epoch, lambda line: line.test.get("accuracy"))
    assert curve.x == (1.0, 2.0)
    assert curve.y == pytest.approx((0.45, 0.9))


def test_long_histories_are_averaged_in_windows(tmp_path):
    (one,) = to_series([read_run(make_run(tmp_path / "a", rounds=5 * POINTS))])
    curve = one.curve(lambda line: line.number, lambda line: line.loss)
    assert len(curve.x) == POINTS
    assert curve.x[0] == 2
    assert curve.y[0] == pytest.approx((2 + 1 + 2 / 3 + 1 / 2 + 2 / 5) / 5)


def test_a_diverged_run_still_has_a_report(tmp_path):
    run = make_run(tmp_path / "a", score=float("nan"))
    losses = zip((run / "metrics.jsonl").read_text().splitlines(), (1, 1e308, float("inf"), float("nan")), strict=True)
    lines = [json.loads(line) | {"loss": loss} for line, loss in losses]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert rows(report(tmp_path, run, make_run(tmp_path / "b", "b")), "Results")[1][1] == "NaN"


def test_the_page_stands_alone(page_of_three):
    assert not re.search(r"<(script|link|img|iframe|object|embed|base)\b|@import|\bsrc=", page_of_three)
    assert set(re.findall(r"https?://[^\"' <]*", page_of_three)) == {"http://www.w3.org/2000/svg"}
    for target in re.findall(r'href="([^"]*)"', page_of_three) + re.findall(r"url\(([^)]*)\)", page_of_three):
        assert target.startswith("#figure-")
    assert "default-src 'none'" in page_of_three


def test_svgs_are_well_formed_and_share_no_id(page_of_three):
    ids = [element.get("id") for svg in svgs(page_of_three) for element in svg.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    targets = {target[1:] for target in re.findall(r'href="([^"]*)"', page_of_three)}
    targets |= {target[1:] for target in re.findall(r"url\(([^)]*)\)", page_of_three)}
    assert targets <= set(ids)
    for svg in svgs(page_of_three):
        assert svg.tag == f"{SVG}svg"
        assert svg.get("viewBox")
        assert svg.get("aria-label")
        assert svg.find(f".//{SVG}style") is None  # it would apply to the whole page


def test_ink_follows_the_page(page_of_three):
    for svg in svgs(page_of_three):
        styles = " ".join(element.get("style", "") for element in svg.iter())
        assert "currentColor" in styles
        assert not {"#000000", "#ffffff", "#010203"} & set(re.findall(r"#[0-9a-f]{6}", styles))


def test_the_same_runs_give_the_same_bytes(tmp_path, three, page_of_three):
    assert report(tmp_path, *three, title="Three & more") == page_of_three


def test_megabytes_are_logarithmic_only_where_runs_lie_apart(tmp_path, three):
    series = to_series([read_run(path) for path in three])
    assert "(log)" in figures.metric_by_megabytes(series, "accuracy", "test accuracy", "a")
    assert "(log)" not in figures.metric_by_megabytes(series[1:], "accuracy", "test accuracy", "a")


def test_two_dozen_runs_have_lines_of_their_own(tmp_path):
    template = read_run(make_run(tmp_path / "a"))
    series = to_series([template.model_copy(update={"name": f"run {n}"}) for n in range(24)])
    svg = ElementTree.fromstring(figures.metric_by_epoch(series, "accuracy", "test accuracy", "a"))
    lines = [
        path for group in svg.iter(f"{SVG}g") if "line2d" in group.get("id", "") for path in group.findall(f"{SVG}path")
    ]
    styles = [
        path.get("style")
        for path in lines
        if "stroke-width: 1.8" in path.get("style") and "url" in path.get("clip-path", "")
    ]
    assert len(styles) == len(set(styles)) == 24


def corrupt(path, name, change):
    values = (
        json.loads((path / name).read_text().splitlines()[0])
        if name == "metrics.jsonl"
        else json.loads((path / name).read_text())
    )
    change(values)
    (path / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("summary.json", lambda v: v.pop("seed"), "summary.json: key 'seed' is missing"),
        ("summary.json", lambda v: v.update(completed=1), "summary.json: 'completed' must be true or false, not 1"),
        ("summary.json", lambda v: v.update(name=None), "summary.json: 'name' must be text, not null"),
        ("summary.json", lambda v: v.update(rounds=True), "summary.json: 'rounds' must be a whole number, not true"),
        ("summary.json", lambda v: v["bytes"].update(up="1"), "summary.json: 'bytes': 'up' must be a number"),
        ("summary.json", lambda v: v.update(metrics=[]), r"summary.json: 'metrics': expected an object, found \[\]"),
        ("metrics.jsonl", lambda v: v.pop("epoch"), "metrics.jsonl, line 1: key 'epoch' is missing"),
        ("metrics.jsonl", lambda v: v.update(test={"loss": None}), "metrics.jsonl, line 1: 'test': 'loss' must be a"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, name, change, message):
    run = make_run(tmp_path / "a")
    corrupt(run, name, change)
    with pytest.raises(DataError, match=message):
        report(tmp_path, run)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b'{"name": ', b"\xff\xfe", b"[]", b"[" * 100_000, None])
def test_a_file_that_is_no_record_is_named(tmp_path, name, content):
    run = make_run(tmp_path / "a")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        report(tmp_path, run)


def randomised(path, score, **known):
    """A run whose labels were told randomised; the holder's figures are in its summary, if any are given."""
    config = {"seed": 1, "compressor": "auto", "privacy": {"labels": "bank", "label_epsilon": 2.0}}
    account = {"holder": "bank", "epsilon": 2.0, "classes": 2, "rows": 100, "drawn": "secret"}
    account |= {part: {"test": {"accuracy": value}, "threshold": 0.5} for part, value in known.items()}
    return make_run(path, path.name, score=score, config=config, label_privacy=account)


def test_estimates_are_marked_and_are_never_the_best(tmp_path):
    runs = [
        randomised(tmp_path / "estimated", 0.99),
        randomised(tmp_path / "known", 0.95, scores=0.9, private=0.88),
        make_run(tmp_path / "open", "open", score=0.8),
    ]
    pages = [" ".join(re.sub(r"<[^>]*>", " ", report(tmp_path, run)).split()) for run in runs]
    assert "Test accuracy 0.9900 estimate, from randomised labels" in pages[0]
    assert (
        "Test accuracy 0.9000 by the true labels; the holder's private model: 0.8800; "
        "estimate, from randomised labels: 0.9500" in unescape(pages[1])
    )
    assert "estimate" not in pages[2]
    page = report(tmp_path, *runs)
    assert [row[1] for row in rows(page, "Results")[1:]] == ["0.9900estimate", "*0.9000*", "0.8000"]
    assert "Best test accuracy 0.9000 known" in " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_no_runs_and_no_place(tmp_path, three):
    with pytest.raises(DataError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report(three, three[0] / "summary.json" / "report.html")


def test_where_the_time_went(tmp_path):
    timed = make_run(tmp_path / "timed", rounds=2)
    lines = [json.loads(line) for line in (timed / "metrics.jsonl").read_text().splitlines()]
    for n, line in enumerate(lines):
        waits = {"bank": 3.0 * n, "hospital": 1.0}
        line["time"] = {"server": {"compute": 2.0, "codec": 0.5, "wait": waits}, "bank": {"compute": 1.0, "codec": 0.0}}
    (timed / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = rows(report(tmp_path, timed), "Time by role")
    assert [row[0] for row in found if row[0] in ("server", "bank")] == ["server", "bank"]
    (server,) = [row for row in found if row[0] == "server"]
    assert server[1:] == ["4.00", "1.00", "5.00", "bank, 60.0%"]
    (bank,) = [row for row in found if row[0] == "bank"]
    assert float(bank[1]) == 2
    assert float(bank[2]) == 0
    assert "Time by role" not in report(tmp_path, make_run(tmp_path / "untimed"))
