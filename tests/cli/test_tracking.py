"""A run in MLflow, in a real database file: parameters, metrics by round, and what the run leaves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.runs.bundle import MODEL

pytest.importorskip("mlflow", reason="the extra cvfl[mlflow] is not installed")
pytestmark = [
    # Of MLflow's own store, by the newest SQLAlchemy.
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow, which takes it seconds to make."""
    from mlflow import MlflowClient  # noqa: PLC0415

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(store, tmp_path)
    path = tmp_path / "wine.toml"
    path.write_text('rounds = 4\nbatch_size = 32\nevaluate_every = 2\n[data]\nname = "wine"\n[step_size]\neta = 0.1\n')
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, os.environ.get(name, {"MLFLOW_DISABLE_TELEMETRY": "true"}.get(name, "1")))
    return tmp_path


def train(folder: Path, uri: str, *more: str) -> Any:
    return CliRunner().invoke(app, ["train", "wine.toml", "--out", "run", "--log-json", "--mlflow", uri, *more])


def runs(uri: str, experiment: str = "cvfl") -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient  # noqa: PLC0415

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return client, list(client.search_runs([found.experiment_id])) if found else []


def test_a_run_is_there_as_mlflow_users_expect(folder: Path) -> None:
    uri = f"sqlite:///{folder}/mlflow.db"
    result = train(folder, uri, "--set", "party_model.width=4")
    assert result.exit_code == 0, result.output
    client, (run,) = runs(uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    params = run.data.params
    assert (params["rounds"], params["data.name"], params["party_model.width"]) == ("4", "wine", "4")
    assert not any(key.startswith("network") for key in params)
    history = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "loss")}
    assert losses == pytest.approx({line["round"]: line["loss"] for line in history})
    tested = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "test/accuracy")}
    assert tested == pytest.approx({line["round"]: line["test"]["accuracy"] for line in history if "test" in line})
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert run.data.tags["cvfl.run"] == summary["run"]
    assert run.data.metrics["MB/total"] <= summary["bytes"]["total"] / 1e6
    names = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert {"summary.json", "metrics.jsonl", "config.json", "report.html", "parameters"} <= names
    assert "state" not in names
    bundle = {one.path for one in client.list_artifacts(run.info.run_id, "parameters")}
    assert {f"parameters/server{MODEL}", "parameters/server.safetensors"} <= bundle
    got = Path(client.download_artifacts(run.info.run_id, "summary.json"))
    assert json.loads(got.read_text()) == summary


def test_the_bits_are_those_without_it(folder: Path) -> None:
    assert train(folder, f"sqlite:///{folder}/mlflow.db").exit_code == 0
    plain = CliRunner().invoke(app, ["train", "wine.toml", "--out", "plain", "--log-json"])
    assert plain.exit_code == 0
    one, other = (json.loads((folder / name / "summary.json").read_text()) for name in ("run", "plain"))
    assert one["parameters"] == other["parameters"]
    assert one["bytes"] == other["bytes"]


def test_the_experiment_that_mlflow_s_variable_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "credit")
    uri = f"sqlite:///{folder}/mlflow.db"
    assert train(folder, uri).exit_code == 0
    assert len(runs(uri, "credit")[1]) == 1
    assert runs(uri)[1] == []


def test_a_run_that_fails_says_so(folder: Path) -> None:
    uri = f"sqlite:///{folder}/mlflow.db"
    assert train(folder, uri, "--set", "step_size.eta=1e30").exit_code == 2
    _, (run,) = runs(uri)
    assert run.info.status == "FAILED"


def test_a_server_that_is_not_there_is_one_line_before_the_run(folder: Path) -> None:
    result = train(folder, "http://somebody:secret@127.0.0.1:9")
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: --mlflow http://somebody:***@127.0.0.1:9: ")
    assert "secret" not in result.output
    assert not (folder / "run" / "summary.json").exists()


def test_a_store_that_fails_on_the_way_does_not_end_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415

    def broken(*_: Any, **named: Any) -> None:
        if "metrics" in named:
            raise OSError("the store is gone\nand more")

    monkeypatch.setattr(MlflowClient, "log_batch", broken)
    result = train(folder, f"sqlite:///{folder}/mlflow.db")
    assert result.exit_code == 0, result.output
    said = [json.loads(line)["event"] for line in result.stdout.splitlines()]
    (line,) = [text for text in said if "MLflow" in text]
    assert line == "MLflow has failed, and the run goes on without it: the store is gone"
