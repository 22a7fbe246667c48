"""`cvfl plan` as a user types it, and `cvfl train` with what it writes."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cvfl.advise import trials
from cvfl.cli import app
from cvfl.runtime import inprocess

pytestmark = pytest.mark.usefixtures("no_pages")
DIGITS = """
seed = 3
epochs = 3
batch_size = 256
local_iterations = 4
compressor = "lattice:bits=2"
[data]
name = "digits"
parties = 4
[step_size]
eta = 0.1
"""
FEW = ("--compressor", "scalar:bits=3", "--compressor", "topk:bits=2", "--local", "8", "--epochs", "1")
COST = r"([\d.]+) MB \([^)]*% training, [^)]*% evaluation[^)]*% set-up\) and ([\d.]+) s; without"
ADVICE = re.compile(rf"recommended: (\S+) with Q = (\d+) for (\d+) (epochs|rounds), {COST}")


def cvfl(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "digits.toml").write_text(DIGITS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def trained(planned: str) -> dict[str, int]:
    code, output = cvfl("train", planned, "--out", "run")
    assert code == 0, output
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["completed"]
    return summary["bytes"]


def test_a_plan_is_a_configuration_that_trains_with_the_bytes_it_predicts(folder: Path) -> None:
    network = ("--bandwidth", "2", "--latency", "5")
    code, output = cvfl("plan", "digits.toml", *FEW, *network, "--set", "seed=4", "--out", "planned.toml")
    assert code == 0, output
    assert (advice := ADVICE.search(output)), output
    assert advice[1] == "scalar:bits=3"  # topk:bits=2 is far behind, and bytes are dear
    values = tomllib.loads(Path("planned.toml").read_text())
    assert values["compressor"] == advice[1]
    assert (values["local_iterations"], values["epochs"]) == (int(advice[2]), int(advice[3]))
    assert (values["seed"], values["data"]) == (4, {"name": "digits", "parties": 4})
    sent = trained("planned.toml")
    assert float(advice[5]) == pytest.approx(sent["total"] / 1e6, abs=0.006)
    assert "next: cvfl train planned.toml" in output


def test_a_plan_for_own_tables(folder: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(600, 3)), random.integers(0, 2, 600)
    for name, columns in (("bank", [0]), ("shop", [1, 2])):
        head = ["ID", *(f"x{i}" for i in columns), *(["y"] if name == "bank" else [])]
        rows = [[i, *(x[i, columns] + y[i]).round(3), *([y[i]] if name == "bank" else [])] for i in range(600)]
        Path(f"{name}.csv").write_text("\n".join(",".join(map(str, row)) for row in [head, *rows]))
    parties = ("--party", "bank=bank.csv", "--party", "shop=shop.csv")
    assert cvfl("init", "fed.toml", *parties, "--id", "ID", "--label", "bank.y")[0] == 0
    options = ("--set", "data.validation_share=0.2", "--set", "epochs=4", "--set", "step_size.eta=0.01")
    slow = ("--bandwidth", "0.05")  # bytes decide, whatever this machine's seconds are
    code, output = cvfl("plan", "fed.toml", *FEW, *options, *slow, "--tolerance", "0.1", "--out", "sub/planned.toml")
    assert code == 0, output
    assert "600 rows are shared by bank and shop" in output
    assert "roc_auc" in output  # by which validation rows are compared
    assert (advice := ADVICE.search(output)), output
    before, after = (Path(name).read_text().splitlines() for name in ("fed.toml", "sub/planned.toml"))
    assert after[0].startswith("# By cvfl plan for 0.05 Mbit/s and 20 ms: ")
    kept = re.compile(r"^\[.*|(^|  )# .*|^\w+ = ")  # sections, comments, keys
    assert [found[0] for line in before for found in kept.finditer(line)] == [
        found[0] for line in after[1:] for found in kept.finditer(line)
    ]
    sent = trained("sub/planned.toml")
    assert float(advice[5]) == pytest.approx(sent["total"] / 1e6, abs=0.006)


def test_without_out_nothing_is_written(folder: Path) -> None:
    code, output = cvfl("plan", "digits.toml", *FEW, "--local", "4")
    assert code == 0, output
    assert "recommended" in output
    assert "next:" not in output
    assert [path.name for path in folder.iterdir()] == ["digits.toml"]


def test_a_file_is_replaced_only_when_asked_for(folder: Path) -> None:
    Path("planned.toml").write_text("precious")
    code, output = cvfl("plan", "digits.toml", *FEW, "--out", "planned.toml")
    assert code == 2
    assert "planned.toml exists already" in output
    assert Path("planned.toml").read_text() == "precious"
    assert cvfl("plan", "digits.toml", *FEW, "--out", "planned.toml", "--force")[0] == 0
    assert tomllib.loads(Path("planned.toml").read_text())["batch_size"] == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compressor", "skalar:bits=2"], "unknown compressor 'skalar'; did you mean 'scalar'?"),
        (["--set", "bach_size=3"], "did you mean 'batch_size'?"),
        (["--seconds", "0.01"], "--seconds 0.01: 10 rounds of each of"),
        (["--bandwidth", "0"], "bandwidth"),
        (["--tolerance", "2"], "tolerance"),
        (["--set", "step_size.eta=1e-30"], "nothing to compare: in 10 rounds"),
    ],
)
def test_bad_input_is_said_and_nothing_is_written(folder: Path, arguments: list[str], message: str) -> None:
    code, output = cvfl("plan", "digits.toml", *arguments, "--epochs", "1", "--out", "planned.toml")
    assert code == 2
    assert message in output
    assert not Path("planned.toml").exists()


@pytest.mark.parametrize(("at", "said"), [(0, "stopped"), (3, "stopped; the best of 3 tried: ")])
def test_ctrl_c_shows_what_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch, at: int, said: str) -> None:
    started = []

    def interrupted(*arguments, **options):  # type: ignore[no-untyped-def]
        started.append(arguments)
        for report in inprocess.rounds(*arguments, **options):
            if len(started) > at:
                raise KeyboardInterrupt
            yield report

    monkeypatch.setattr(trials, "rounds", interrupted)
    code, output = cvfl("plan", "digits.toml", *FEW, "--out", "planned.toml")
    assert code == 130
    assert said in output
    assert ("compressor" in output) == (at > 0)
    assert not Path("planned.toml").exists()


def test_what_is_fixed_and_what_failed_is_said(folder: Path) -> None:
    narrow = ("--compressor", "scalar:bits=2,low=-0.01,high=0.01")
    sqrt = ("--set", "step_size.schedule=sqrt", "--set", "step_size.eta=2", "--set", "party.bank.compressor=identity")
    code, output = cvfl("plan", "digits.toml", *FEW, *narrow, *sqrt)
    assert code == 0, output
    assert "Q stays 4: step_size.schedule = 'sqrt' goes by rounds" in output
    assert "one compressor for all: the one of party.bank is not kept" in output
    assert "scalar:bits=2,low=-0.01,high=0.01, Q = 4: hospital, round 0: the embedding spans" in output


def test_a_budget_is_no_part_of_the_trials(folder: Path) -> None:
    """What is needed without one is what is asked; a recommendation that could not keep it is written without it."""
    (folder / "digits.toml").write_text('budget = "0.5 MB"\n' + DIGITS.replace("lattice:bits=2", "auto"))
    few = ("--local", "4", "--epochs", "1", "--bandwidth", 1)
    code, said = cvfl("plan", "digits.toml", "--compressor", "auto", *few, "--out", "auto.toml")
    assert code == 0
    assert "budget 0.50 MB: tried without it; a run with auto keeps it, others cannot" in said
    assert tomllib.loads((folder / "auto.toml").read_text())["budget"] == "0.5 MB"
    code, said = cvfl("plan", "digits.toml", "--compressor", "scalar:bits=4", *few, "--out", "scalar.toml")
    assert code == 0
    assert "budget" not in tomllib.loads((folder / "scalar.toml").read_text())
