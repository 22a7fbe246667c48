"""The commands as a user types them, in this process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

import cvfl
import cvfl.cli as commands
from cvfl.cli import COMMANDS, FILES, app, loaded
from cvfl.cli.demo import RUNS
from cvfl.federation import train as run_module
from cvfl.runtime import inprocess

CONFIG = """
seed = 5
rounds = 6
batch_size = 100
local_iterations = 2
compressor = "scalar:bits=3"
server_compressor = "scalar:bits=8"
[data]
name = "breast_cancer"
parties = 3
[step_size]
eta = 0.1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def helps() -> Iterator[tuple[str, str]]:
    """Every help text of every command, with where it is."""
    waiting = [(f"cvfl {name}", loaded(name)) for commands in COMMANDS.values() for name in commands]
    while waiting:
        where, command = waiting.pop()
        waiting += [(f"{where} {name}", one) for name, one in getattr(command, "commands", {}).items()]
        yield from ((where, text) for text in (command.help, command.epilog) if text)
        yield from ((f"{where} {one.name}", one.help) for one in command.params if getattr(one, "help", None))
    yield from ((name, text) for commands in COMMANDS.values() for name, text in commands.items())


def test_no_help_text_loses_a_word_in_brackets() -> None:
    """They are shown by rich, which takes [word] for a style."""
    texts = list(helps())
    assert len(texts) > 200
    for where, text in texts:
        shown = Text.from_markup(text).plain
        assert shown == text, where


def test_train_leaves_a_complete_run_directory(config: Path, tmp_path: Path) -> None:
    code, output = call("train", config, "--out", tmp_path / "run")
    assert code == 0, output
    assert "report.html" in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["seed"], summary["rounds"], summary["completed"]) == (5, 6, True)
    assert {"accuracy", "f1", "roc_auc", "loss"} <= set(summary["metrics"]["test"]) & set(summary["metrics"]["train"])
    sent = summary["bytes"]
    assert set(sent["by_party"]) == {"hospital", "bank", "insurer"}
    parts = ("up", "down", "evaluation", "alignment", "setup")
    assert list(sent) == [*parts, "total", "by_party"]
    for key in parts:
        assert sent[key] == sum(party[key] for party in sent["by_party"].values())
        assert (sent[key] > 0) == (key != "alignment")  # the rows of a data set by name are aligned
    assert sent["total"] == sum(sent[key] for key in parts)
    assert summary["formula_bytes"] == round(6 * 3 * (2 * 16 * 100 * 9 + (48 + 1) * 3) / 8)
    error = summary["compression_error"]
    assert 0 < error["measured"] <= error["bound"]
    assert error["measured"] == pytest.approx(error["expected"], rel=0.1)
    assert set(summary["parameters"]) == {"server", "hospital", "bank", "insurer"}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in summary["parameters"].values())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(6))
    assert list(lines[-1]["bytes"]) == list(parts)
    assert all(lines[-1]["bytes"][key] == sent[key] for key in parts[:-1])
    assert 0 < lines[0]["bytes"]["setup"] == lines[-1]["bytes"]["setup"] < sent["setup"]  # which has the end, too
    assert lines[-1]["test"] == summary["metrics"]["test"]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert len(list((tmp_path / "run" / "parameters").glob("*.safetensors"))) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "small.toml"]


def test_a_run_with_a_budget_says_how_much_of_it_was_sent(config: Path, tmp_path: Path) -> None:
    auto = ("--set", "compressor=auto", "--set", "server_compressor=auto")
    code, output = call("train", config, *auto, "--set", "budget=1 MB", "--out", tmp_path / "run")
    assert code == 0, output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["config"]["budget"] == 1_000_000
    share = f"{summary['bytes']['total'] / 1e6:.0%}"
    assert f"budget 1.00 MB: {share} of it sent, more was not needed" in output
    code, output = call("train", config, *auto, "--set", "budget=2kB", "--out", tmp_path / "other")
    assert (code, output.count("\n")) == (2, 1)
    assert "budget: 2,000 bytes, but 6 rounds" in output


def test_one_seed_gives_one_set_of_parameters(config: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert call("train", config, "--out", tmp_path / name, "--set", f"seed={seed}")[0] == 0
    hashes = [json.loads((tmp_path / name / "summary.json").read_text())["parameters"] for name in "abc"]
    assert hashes[0] == hashes[1]
    assert not set(hashes[0].values()) & set(hashes[2].values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bach_size=3", "did you mean 'batch_size'?"),
        ("compressor=skalar:bits=2", "unknown compressor 'skalar'; did you mean 'scalar'?"),
        ("compressor=scalar:bits=0", "bits must be a whole number from 1 to 16, not 0"),
        ("data.name=iris", "data.name: unknown data set 'iris'"),
        ("data.parties=40", "30 columns cannot be divided among 40 parties"),
        ("batch_size=100000", "batch_size: 100000 is more than the 427 training rows"),
        ("party_model.name=mpl", "unknown party model 'mpl'; did you mean 'mlp'?"),
        ("party_model.name=cnn", "model 'cnn' does not take rows of shape (10,)"),
        ("data.validation_share=0.1", "data.validation_share is for tables of the parties"),
        ("loss=multiclass", "loss: multiclass does not fit labels of a binary task"),
        ("step_size.eta=1e30", "hospital, round"),
        ("compressor=scalar:bits=2,low=-0.01,high=0.01", "hospital, round 0: the embedding spans"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_directory(
    config: Path, tmp_path: Path, change: str, message: str
) -> None:
    extra = ["--set", "party_model.name=linear"] if change.startswith("step_size") else []
    code, output = call("train", config, "--out", tmp_path / "run", "--set", change, *extra)
    assert code == 2
    assert message in output
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]
    assert "Traceback" not in output


def test_a_used_directory_is_left_alone(config: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    code, output = call("train", config, "--out", tmp_path / "run")
    assert code == 2
    assert "exists already" in output
    assert (tmp_path / "run" / "precious").read_text() == "x"


def test_ctrl_c_keeps_the_rounds_that_are_done(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments):  # type: ignore[no-untyped-def]
        for report in inprocess.rounds(*arguments):
            yield report
            if report.t0 == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "rounds", interrupted)
    code, output = call("train", config, "--out", tmp_path / "run")
    assert code == 130
    assert "stopped after 5 rounds" in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["completed"]) == (5, False)
    assert (tmp_path / "run" / "report.html").exists()
    monkeypatch.undo()
    assert call("train", config, "--out", tmp_path / "whole")[0] == 0
    code, output = call("train", config, "--out", tmp_path / "run", "--resume")
    assert code == 0, output
    again, whole = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole"))
    assert again["completed"]
    assert (again["parameters"], again["bytes"]) == (whole["parameters"], whole["bytes"])


def test_resume_without_a_run_that_was_stopped(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call("train", config, "--resume")
    assert code == 2
    assert "--resume: no run" in output
    code, output = call("train", config, "--resume", "--runtime", "grpc")
    assert code == 2
    assert "--resume is for runs in one process" in output


@pytest.mark.parametrize("found", ["/usr/bin/cvfl", None])
def test_demo_shows_the_table_the_plot_and_writes_a_report(
    found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cvfl.cli.demo.shutil.which", lambda name: found)
    monkeypatch.setattr("sys.argv", [".venv/bin/cvfl", "demo"])
    typed = "cvfl" if found else ".venv/bin/cvfl"  # of an environment that nobody activated
    code, output = call("demo", "--out", tmp_path / "demo", "--epochs", 1)
    assert code == 0, output
    for name in ("none", "scalar b=2", "lattice b=2", "top-k b=2", "auto", "in all", "other", "fewer", "only", "1.0x"):
        assert name in output
    runs = [line for line in output.splitlines() if line.split(" loss")[0].endswith(" 11/11")]
    assert [line.split(" 11/11")[0].strip() for line in runs] == list(RUNS)  # without a terminal a line a run
    assert (tmp_path / "demo" / "report.html").exists()
    wanted = ("report: ", f"  {typed} init federation.toml --party", f"  {typed} board ")
    said = [output.index(words) for words in wanted]
    assert said == sorted(said)
    assert len(list((tmp_path / "demo").glob("*/summary.json"))) == 5


@pytest.mark.parametrize("command", [["demo"], ["train"], ["plan"], ["theory"], ["bench", "codec"], ["bench", "round"]])
def test_every_command_has_an_example(command: list[str]) -> None:
    code, output = call(*command, "--help")
    assert code == 0
    assert f"Example: cvfl {' '.join(command)}" in " ".join(output.split())


def test_no_command_says_where_to_begin() -> None:
    code, output = call()
    assert code == 0
    assert [line.split("  ")[0] for line in output.splitlines()] == ["cvfl demo", "cvfl init", "cvfl --help"]


NAMES = [name for commands in COMMANDS.values() for name in commands]


@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command, told = loaded(name), next(commands[name] for commands in COMMANDS.values() if name in commands)
    assert " ".join((command.help or "").split("\n\n")[0].split()) == told
    assert command.name == name


def test_the_list_of_commands_is_whole_and_loads_none() -> None:
    """What takes seconds to load is not there; the files of the folder are all commands or what they share."""
    shared = {
        "__init__",
        "consent",
        "__main__",
        "display",
        "errors",
        "live",
        "observers",
        "plot",
        "tables",
        "tracking",
        "role",
        "nvflare_job",
    }
    files = {file.stem for file in Path(commands.__file__).parent.glob("*.py")}
    assert files - shared == {name for name in NAMES if name not in FILES} - {"nvflare-job"}
    script = "import sys; from cvfl.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
    assert all(f" {name} " in done.stdout for name in NAMES)


def test_a_name_that_is_nearly_right_is_told() -> None:
    code, output = call("tarin")
    assert code == 2
    assert "Did you mean 'train'" in output


def test_the_version_is_that_of_the_newest_release() -> None:
    code, output = call("--version")
    assert (code, output.strip()) == (0, f"cvfl {cvfl.__version__}")
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d.*?)\]", changes, re.MULTILINE)[0] == cvfl.__version__
