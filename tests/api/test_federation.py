"""The public API, as a notebook uses it."""

from __future__ import annotations

import doctest
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import cvfl
from cvfl.api import federation as federation_module
from cvfl.api import run as run_module
from cvfl.board.known import Known
from cvfl.board.places import Place
from cvfl.config.files import load_config
from cvfl.errors import ConfigError, DataError
from cvfl.federation import processes
from cvfl.federation.train import train
from cvfl.runs.audit import read_audit
from cvfl.runs.progress import progress_values
from cvfl.runs.status import NAME as STATUS
from cvfl.runs.status import read_status

pytestmark = pytest.mark.usefixtures("no_pages")
ROWS = 300


def tables() -> dict[str, dict[str, Any]]:
    """Two organisations with 300 people each, of whom they share 250."""
    draw = np.random.default_rng(7)
    people = [f"p{n:04d}" for n in range(350)]
    age, income, spent = draw.normal(50, 12, 350), draw.normal(0, 1, 350), draw.normal(0, 1, 350)
    y = (0.05 * (age - 50) + income + spent + draw.normal(0, 0.3, 350) > 0).astype(int)
    return {
        "bank": {"ID": people[:ROWS], "age": age[:ROWS], "income": income[:ROWS], "y": y[:ROWS]},
        "shop": {"ID": people[50:], "spent": spent[50:], "city": [["Ulm", "Bonn"][n % 2] for n in range(ROWS)]},
    }


KINDS: dict[str, Any] = {
    "pandas": pd.DataFrame,
    "pandas, category": lambda columns: pd.DataFrame(columns).astype({"city": "category"} if "city" in columns else {}),
    "polars": pl.DataFrame,
    "arrow": pa.table,
}
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 50, "step_size": {"eta": 0.05}, "seed": 3}


@pytest.fixture(scope="module")
def expected() -> cvfl.Run:
    frames = {name: pa.table(columns) for name, columns in tables().items()}
    return cvfl.Federation.from_frames(frames, id="ID", label="bank.y").fit(**SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_every_kind_give_the_same_run(kind: str, expected: cvfl.Run) -> None:
    frames = {name: KINDS[kind](columns) for name, columns in tables().items()}
    fed = cvfl.Federation.from_frames(frames, id="ID", label="bank.y")
    assert fed.parties == ("bank", "shop")
    run = fed.fit(**SETTINGS)
    assert run.metrics.test.roc_auc > 0.7
    assert run.parameters == expected.parameters


def test_an_index_without_a_name_is_no_column(expected: cvfl.Run) -> None:
    frames = {name: pd.DataFrame(columns) for name, columns in tables().items()}
    frames["bank"].index = pd.Index(np.random.default_rng(1).permutation(ROWS))
    run = cvfl.Federation.from_frames(frames, id="ID", label="bank.y").fit(**SETTINGS)
    assert run.parameters == expected.parameters


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"label": "y"}, "label: say whose it is, as 'party.column', not 'y'"),
        ({"label": "bonk.y"}, "there is no party 'bonk'; did you mean 'bank'?"),
        ({"label": "bank.z"}, "bank.parquet has no column 'z'"),
        ({"id": "id"}, "id: bank: bank.parquet has no column 'id'"),
    ],
)
def test_wrong_words_are_one_line(change: dict[str, str], line: str) -> None:
    frames = {name: pa.table(columns) for name, columns in tables().items()}
    with pytest.raises(ConfigError, match=line.replace("?", r"\?")) as caught:
        cvfl.Federation.from_frames(frames, **({"id": "ID", "label": "bank.y"} | change))
    assert "\n" not in str(caught.value)


def test_what_is_no_frame() -> None:
    with pytest.raises(DataError, match="bank: a frame is a pandas, polars or Arrow table"):
        cvfl.Federation.from_frames({"bank": [1, 2]}, id="ID", label="bank.y")


def tensors(loss: str = "binary") -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = {name: torch.randn(200, 3, generator=draw) for name in ("bank", "shop")}
    score = x["bank"][:, 0] + x["shop"][:, 1]
    match loss:
        case "binary":
            return x, (score > 0).long()
        case "multiclass":
            return x, (score > -0.5).long() + (score > 0.5).long()
    return x, score


@pytest.mark.parametrize(("loss", "metric", "reached"), [("binary", "roc_auc", 0.9), ("multiclass", "accuracy", 0.75)])
def test_tensors_need_no_data_section(loss: str, metric: str, reached: float) -> None:
    x, y = tensors(loss)
    fed = cvfl.Federation.from_tensors(
        {name: rows[:150] for name, rows in x.items()},
        y[:150],
        {name: rows[150:] for name, rows in x.items()},
        y[150:],
    )
    run = fed.fit(epochs=15, step_size={"eta": 0.02}, batch_size=50)
    assert run.metrics.test[metric] > reached
    assert fed.parties == ("bank", "shop")


def test_a_quantity_is_told_from_classes() -> None:
    x, y = tensors("squared")
    run = cvfl.Federation.from_tensors(x, y, x, y).fit(epochs=30, step_size={"eta": 0.02})
    assert run.metrics.test.rmse < float(y.std())
    with pytest.raises(AttributeError, match=r"no metric 'roc_auc' here; there are: loss, rmse"):
        _ = run.metrics.test.roc_auc


def test_test_rows_and_labels_belong_together() -> None:
    x, y = tensors()
    with pytest.raises(DataError, match="belong together"):
        cvfl.Federation.from_tensors(x, y, x)
    with pytest.raises(DataError, match="test rows of bank; training rows of bank, shop"):
        cvfl.Federation.from_tensors(x, y, {"bank": x["bank"]}, y)


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh())


def test_own_modules_as_instances_and_as_factories() -> None:
    x, y = tensors()
    fed = cvfl.Federation.from_tensors(x, y, x, y)
    bank, shop = module(1), module(2)
    before = [p.clone() for p in bank.parameters()]
    run = fed.fit(epochs=10, step_size={"eta": 0.05}, models={"bank": bank, "shop": shop})
    assert all(torch.equal(old, new) for old, new in zip(before, bank.parameters(), strict=True))  # it is copied
    trained = run.models["bank"].model  # and after it the bank's part of the server model's first layer
    assert not torch.equal(trained[0].weight, bank[0].weight)  # type: ignore[index]
    again = fed.fit(epochs=10, step_size={"eta": 0.05}, models={"shop": lambda: module(2), "bank": lambda: module(1)})
    assert again.parameters["server"] == run.parameters["server"]
    with pytest.raises(ConfigError, match="models of bank; the parties are bank, shop"):
        fed.fit(models={"bank": bank})


def test_a_callback_sees_rounds_and_can_stop(tmp_path: Path) -> None:
    x, y = tensors()
    seen: list[cvfl.Round] = []

    def stop(round: cvfl.Round) -> bool:
        seen.append(round)
        return round.number == 5

    fed = cvfl.Federation.from_tensors(x, y, x, y)
    run = fed.fit(rounds=20, evaluate_every=2, callbacks=[lambda round: None, stop], out=tmp_path / "run")
    assert [round.number for round in seen] == [1, 2, 3, 4, 5]
    assert {round.of for round in seen} == {20}
    assert seen[0].metrics is None
    assert seen[1].metrics is not None
    assert 0 <= seen[1].metrics.test.accuracy <= 1
    assert seen[4].bytes.total == run.bytes.total
    assert (run.completed, run.rounds) == (False, 5)
    whole = fed.fit(rounds=20, evaluate_every=2, out=tmp_path / "run", resume=True)
    assert whole.completed
    assert whole.parameters == fed.fit(rounds=20, evaluate_every=2).parameters


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["grpc", "nvflare"])
def test_every_runtime_gives_the_same_run(runtime: Any) -> None:
    frames = {name: pl.DataFrame(columns) for name, columns in tables().items()}
    fed = cvfl.Federation.from_frames(frames, id="ID", label="bank.y")
    run, there = fed.fit(rounds=4), fed.fit(rounds=4, runtime=runtime)
    assert there.parameters == run.parameters
    assert replace(there.bytes, setup=run.bytes.setup) == run.bytes
    certificates = (there.bytes.setup or 0) - (run.bytes.setup or 0)
    assert 3_000 < certificates < 5_000 if runtime == "grpc" else certificates == 0
    assert run.parameters.keys() == {"server", "bank", "shop"}


def test_what_a_runtime_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same configuration in a file, the place of the run, and who hears of rounds; law 2 starts the processes."""

    def here(path: Path, changes: list[str], out: Path, on_event: Callable[[dict[str, Any]], None], **_: Any) -> None:
        told = lambda progress: on_event({"event": "round"} | progress_values(progress))  # noqa: E731
        train(load_config(path, changes), out=out, on_round=told)

    monkeypatch.setattr(processes, "train_grpc", here)
    frames = {name: pl.DataFrame(columns) for name, columns in tables().items()}
    fed = cvfl.Federation.from_frames(frames, id="ID", label="bank.y")
    seen: list[cvfl.Round] = []
    run, there = fed.fit(rounds=4), fed.fit(rounds=4, runtime="grpc", callbacks=[seen.append])
    assert there.parameters == run.parameters
    assert [one.number for one in seen] == [1, 2, 3, 4]


def test_what_cannot_leave_this_process() -> None:
    x, y = tensors()
    fed = cvfl.Federation.from_tensors(x, y)
    with pytest.raises(ConfigError, match=r"tensors are in this process; use Federation.from_frames"):
        fed.fit(runtime="grpc")
    with pytest.raises(ConfigError, match="modules are in this process"):
        cvfl.Federation.from_data_set("wine").fit(runtime="grpc", server_model=nn.Linear(2, 1))
    with pytest.raises(ConfigError, match="runtime: 'inprocess', 'grpc' or 'nvflare', not 'mpi'"):
        fed.fit(runtime="mpi")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown key 'epoch'; did you mean 'epochs'"):
        fed.fit(epoch=3)


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = cvfl.Federation.from_data_set("wine", parties=3).fit("scalar:bits=4", rounds=6, out=tmp_path / "run")
    again = cvfl.load_run(tmp_path / "run")
    assert (again.parameters, again.bytes, again.config) == (run.parameters, run.bytes, run.config)
    assert again.config["compressor"] == "scalar:bits=4"
    assert set(again.bytes_by_party) == {"hospital", "bank", "insurer"}
    assert sum(party.total for party in again.bytes_by_party.values()) == again.bytes.total
    history = again.history.to_pandas()
    assert list(history["round"]) == list(range(6))
    assert history["bytes_up"].is_monotonic_increasing
    assert history["test_accuracy"].iloc[-1] == again.metrics.test.accuracy
    assert pl.from_arrow(again.history).shape[0] == 6
    assert again.report(tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert cvfl.load_run(again.save(tmp_path / "copy").path).parameters == run.parameters
    with pytest.raises(DataError, match=r"no such file; is .* a run directory"):
        cvfl.load_run(tmp_path / "nothing")


def test_a_configuration_file(tmp_path: Path) -> None:
    for name, columns in tables().items():
        pd.DataFrame(columns).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "fed.toml").write_text(
        'epochs = 2\n[data]\nid = "ID"\n[step_size]\neta = 0.01\n'
        '[party.bank]\ntable = "bank.csv"\nlabel = "y"\n[party.shop]\ntable = "shop.csv"\n'
    )
    fed = cvfl.Federation.from_config(tmp_path / "fed.toml")
    assert fed.parties == ("bank", "shop")
    assert fed.config().epochs == 2
    assert fed.fit(rounds=3).rounds == 3
    (tmp_path / "rows").write_bytes(b"another order")
    (tmp_path / "again.toml").write_text(
        (tmp_path / "fed.toml").read_text().replace('label = "y"', 'label = "y"\nrow_secret = "rows"')
    )
    assert cvfl.Federation.from_config(tmp_path / "again.toml").fit(rounds=3).parameters != fed.fit(rounds=3).parameters
    with pytest.raises(ConfigError, match="no such file"):
        cvfl.Federation.from_config(tmp_path / "none.toml")


def test_an_audit_stays_with_its_run(tmp_path: Path) -> None:
    run = cvfl.Federation.from_data_set("wine", parties=2).fit("identity", rounds=3, progress=False)
    found = run.audit()
    assert found == read_audit(run.path)
    assert max(one.r2 for one in found.features if one.by_server) > 0.3
    assert "Leakage" in run.report(tmp_path / "report.html").read_text()
    tensors = {"bank": torch.randn(40, 2), "shop": torch.randn(40, 2)}
    gone = cvfl.Federation.from_tensors(tensors, torch.randn(40)).fit(rounds=2, progress=False)
    with pytest.raises(DataError, match="needs the data of all parties"):
        gone.audit()


def test_how_a_run_looks(tmp_path: Path) -> None:
    run = cvfl.Federation.from_data_set("wine", parties=2).fit(rounds=3)
    assert repr(run).startswith("Run('auto': test accuracy 0.")
    assert "directory temporary" in repr(run)
    page = run._repr_html_()
    assert page.startswith("<table><caption>auto</caption>")
    assert "<th>rounds</th><td>3</td>" in page


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    display = types.ModuleType("IPython.display")
    display.HTML, display.display = str, lambda html, display_id: Handle()  # type: ignore[attr-defined]
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    cvfl.Federation.from_data_set("wine", parties=2).fit(rounds=4)
    assert [line.split("of 4 rounds")[0][-2:] for line in shown] == ["1 ", "2 ", "3 ", "4 "]
    assert '<progress value="4" max="4">' in shown[-1]
    shown.clear()
    cvfl.Federation.from_data_set("wine", parties=2).fit(rounds=2, progress=False)
    assert shown == []


def test_progress_in_a_terminal_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    cvfl.Federation.from_data_set("wine", parties=2).fit(rounds=4, progress=True)
    assert "4/4" in capsys.readouterr().err
    cvfl.Federation.from_data_set("wine", parties=2).fit(rounds=4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("module", [cvfl, federation_module, run_module])
def test_examples_in_docstrings(module: types.ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted or module is not cvfl


def test_told_labels_of_frames_need_a_secret_that_is_kept(tmp_path: Path) -> None:
    frames = {name: pa.table(columns) for name, columns in tables().items()}
    fed = cvfl.Federation.from_frames(frames, id="ID", label="bank.y")
    privacy = {"labels": "bank", "label_epsilon": 2.0}
    with pytest.raises(ConfigError, match=r"party\.bank\.label_secret: name a file that is kept"):
        fed.fit(privacy=privacy, **SETTINGS)
    party = {"bank": {"label_secret": str(tmp_path / "bank.secret")}}
    one, two = (fed.fit(privacy=privacy, party=party, **SETTINGS) for _ in range(2))
    assert one.parameters == two.parameters
    account = one.label_privacy
    assert account is not None
    assert account.released == [2.0]
    assert account.scores is not None
    new = {name: frame.drop_columns(["y"]) if name == "bank" else frame for name, frame in frames.items()}
    with pytest.warns(UserWarning, match="left out"):
        assert len(one.predict(new)) == 250


def test_a_run_that_is_kept_is_on_the_board_as_it_goes_on(tmp_path: Path) -> None:
    fed, out = cvfl.Federation.from_data_set("wine", parties=2), tmp_path / "runs" / "wine"
    seen: list[str] = []

    def look(_: cvfl.Round) -> bool:
        seen.append(Known(Place(out, "wine")).state)
        return len(seen) == 3

    fed.fit(rounds=6, seed=3, out=out, callbacks=[look])
    first = read_status(out / STATUS)
    assert first is not None
    assert (first.phase, first.alive, first.round, first.rounds) == ("stopped", False, 2, 6)
    assert seen == ["training"] * 3
    fed.fit(rounds=6, seed=3, out=out, resume=True)
    over = read_status(out / STATUS)
    assert over is not None
    assert (over.phase, over.starts, over.began) == ("finished", 2, first.began)
    with pytest.raises(ConfigError, match="exists already"):
        fed.fit(rounds=6, seed=3, out=out)
    assert read_status(out / STATUS) == over
    assert [path.name for path in out.parent.iterdir()] == ["wine"]
