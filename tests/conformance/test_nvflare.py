"""The FLARE runtime: its simulator, and a provisioned federation with mutual TLS, end where the in-process run ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from conformance.cases import settings
from cvfl.cli.nvflare_job import nvflare_job, nvflare_site
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.config.sections import PrivacyConfig, ServerModelConfig
from cvfl.errors import ConfigError, CvflError
from cvfl.federation.nvflare import CLASSES, PROGRESS_FILE, ROLES, job_settings, write_job
from cvfl.federation.nvflare_simulator import train_nvflare
from cvfl.federation.roles import PartyRun
from cvfl.federation.train import train
from cvfl.rng import stream
from cvfl.runs.analysis import read_analysis
from cvfl.runs.bundle import PRIVATE
from cvfl.runs.directory import PARAMETERS
from cvfl.runs.progress import Progress
from cvfl.runtime.nvflare.place import Place
from cvfl.runtime.nvflare.provisioned import LocalFederation

needs_flare = pytest.mark.skipif(find_spec("nvflare") is None, reason="needs: pip install 'cvfl[nvflare]'")
# FLARE's own session uses what its libraries call deprecated; as an error that would stop it.
its_own_warnings = pytest.mark.filterwarnings("ignore")
PARTIES = ("hospital", "bank", "shop", "city")
WINE = settings(data={"name": "wine", "parties": 2}, rounds=12, compressor="topk:bits=4", evaluate_every=5)
SHARED = """
rounds = {rounds}
batch_size = 16
local_iterations = 3
evaluate_every = 7
step_size = {{ eta = 0.1 }}
network = {{ checkpoint_every = 5 }}
data.validation_share = 0.1
"""
OWN = """
compressor = "lattice:bits=3"
party_model = { width = 4, hidden = [8] }
data.id = "person"
"""


def own_tables(folder: Path, rounds: int, names: Sequence[str] = PARTIES) -> Path:
    """Parties with tables that overlap in part; the bank has the label and a compressor of its own."""
    folder.mkdir(parents=True)
    luck, text = stream(5, "tables"), [SHARED.format(rounds=rounds) + OWN]
    for at, name in enumerate(names):
        header = ["person", "a", "b", *(["secret_label"] if name == "bank" else [])]
        lines = [",".join(header)]
        for person in range(5 * at, 150 + 5 * at):
            a, b, noise = luck.uniform(3)
            values = [f"p{person:04d}", f"{a:.4f}", f"{b + person % 2:.4f}"]
            lines.append(
                ",".join([*values, *(["yes" if person % 2 > noise * 0.2 else "no"] if name == "bank" else [])])
            )
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text.append(f'[party.{name}]\ntable = "{name}.csv"' + ('\nrow_secret = "row_secret"' if at == 0 else ""))
        if name == "bank":
            text.append('label = "secret_label"\ncompressor = "scalar:bits=4"')
    (folder / "row_secret").write_bytes(b"what the parties agreed on")
    (folder / "run.toml").write_text("\n".join(text), encoding="utf-8")
    return folder / "run.toml"


def outcome(summary: dict[str, Any], certified: bool = False) -> tuple[Any, ...]:
    """What law 2 says is equal; of set-up only where no certificates are part of it, and nothing was repeated."""
    sent = {key: value for key, value in summary["bytes"].items() if key != "by_party"}
    if certified:
        assert sent.pop("setup") > 0
        del sent["total"]
    return summary["parameters"], sent, summary["metrics"], summary["rounds"], summary["completed"]


def commands() -> typer.Typer:
    app = typer.Typer()
    app.command("nvflare-job")(nvflare_job)
    app.command("nvflare-site")(nvflare_site)
    return app


def test_without_flare_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(ConfigError, match=r"^the nvflare runtime needs: pip install 'cvfl\[nvflare\]'$"):
        train_nvflare(WINE)


def test_a_job_tells_terms_and_names_but_no_table_label_or_path(tmp_path):
    config = own_tables(tmp_path / "tables", 20)
    done = CliRunner().invoke(commands(), ["nvflare-job", str(config), str(tmp_path / "job"), "--set", "seed=4"])
    assert done.exit_code == 0, done.output
    said = "".join(path.read_text() for path in (tmp_path / "job").rglob("*") if path.is_file())
    for private in ("secret_label", ".csv", str(tmp_path), "table"):
        assert private not in said
    values = json.loads((tmp_path / "job" / "app" / "config" / "cvfl.json").read_text())
    assert list(values["config"]["party"]) == list(PARTIES)
    assert values["config"]["seed"] == 4
    assert values["config"]["party"]["bank"] == {}
    assert "compressor" not in values["config"]
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert meta["mandatory_clients"] == list(PARTIES)
    assert meta["min_clients"] == len(PARTIES)


def test_a_job_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for name, folder, said in (("run", "used", "exists already"), ("../run", "new", "letters, digits")):
        with pytest.raises(ConfigError, match=said):
            write_job(WINE, name, tmp_path / folder)
    done = CliRunner().invoke(commands(), ["nvflare-site", str(tmp_path)])
    assert done.exit_code == 2


@needs_flare
@pytest.mark.parametrize(
    "changes",
    [
        {"compressor": "auto", "server_compressor": "auto"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"algorithm": 2, "privacy": PrivacyConfig(labels="bank")}, marks=pytest.mark.slow),
    ],
    ids=["auto", "topk", "labels at a party"],
)
def test_the_simulator_ends_in_the_same_bits_and_bytes(changes, tmp_path):
    seen: list[Progress] = []
    config = WINE.model_copy(update=changes)
    result = train_nvflare(config, tmp_path / "out", "wine", seen.append)
    expected = train(config, out=tmp_path / "one process")
    assert outcome(result.summary) == outcome(expected.summary)
    assert read_analysis(tmp_path / "out") == read_analysis(tmp_path / "one process") is not None
    assert [line["loss"] for line in result.history] == [line["loss"] for line in expected.history]
    found, known = ([line.get("certificate") for line in one.history] for one in (result, expected))
    assert found == known
    assert any(known) == (config.compressor == "auto")
    assert [progress.report.t0 for progress in seen] == list(range(12))
    assert seen[-1].rounds == 12
    counted, total = seen[-1].sent, expected.summary["bytes"]
    assert (counted.up, counted.down, counted.evaluation) == (total["up"], total["down"], total["evaluation"])
    assert 0 < counted.setup <= total["setup"]  # the end is still to be said
    parameters = {path.stem for path in (tmp_path / "out" / "parameters").glob("*.safetensors")}
    assert parameters == set(expected.summary["parameters"])
    assert (tmp_path / "out" / "report.html").exists()


@needs_flare
@pytest.mark.slow
def test_a_simulation_with_shared_noise_sends_the_same_bytes_and_has_the_same_account(tmp_path):
    """Parties draw secrets of their own, so the bits are others by design."""
    privacy = PrivacyConfig(aggregation="secure", clip=1.0, noise=2.0, noise_shared=True)
    changes = {"compressor": "auto", "server_model": ServerModelConfig(name="sum"), "privacy": privacy}
    config = WINE.model_copy(update=changes)
    found, expected = train_nvflare(config).summary, train(config).summary
    assert found["privacy"] == expected["privacy"]
    assert found["privacy"]["shared"]["parties"] == 2
    assert {key: found["bytes"][key] for key in ("up", "down", "evaluation")} == {
        key: expected["bytes"][key] for key in ("up", "down", "evaluation")
    }
    assert found["parameters"] != expected["parameters"]


@needs_flare
@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True], ids=["public model", "private model"])
def test_a_simulation_with_told_labels_ends_in_the_same_bits_and_keeps_true_metrics_at_their_holder(private, tmp_path):
    privacy = ["privacy.labels=bank", "privacy.label_epsilon=2", f"privacy.private_model={str(private).lower()}"]
    config = load_config(own_tables(tmp_path / "tables", 20, PARTIES[:2]), privacy)
    result, expected = train_nvflare(config, tmp_path / "out"), train(config, out=tmp_path / "one")
    assert outcome(result.summary) == outcome(expected.summary)
    assert expected.summary["label_privacy"]["scores"]["test"]
    assert result.summary["label_privacy"].get("scores") is None
    assert read_analysis(tmp_path / "out") is None
    layers = [tmp_path / run / PARAMETERS / PRIVATE / "server.safetensors" for run in ("out", "one")]
    assert [layer.exists() for layer in layers] == [private, private]
    if private:
        assert layers[0].read_bytes() == layers[1].read_bytes()


@needs_flare
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ["rounds=60", "stopping.patience=2", "step_size.eta=0.3", "evaluate_every=2"],
        ["data.split_by=a", "data.test_share=0.2"],
        ["data.split_groups=b", "data.test_share=0.2"],
    ],
    ids=["stopping", "by time", "by groups"],
)
def test_a_simulation_of_own_tables_stops_and_splits_as_in_one_process(tmp_path, changes):
    config = load_config(own_tables(tmp_path / "tables", 20, PARTIES[:2]), changes)
    result, expected = train_nvflare(config, tmp_path / "out"), train(config, out=tmp_path / "one")
    assert outcome(result.summary) == outcome(expected.summary)
    for key in ("kept", "split", "classes"):
        assert result.summary.get(key) == expected.summary.get(key)
    assert expected.summary["classes"] == ["no", "yes"]
    assert read_analysis(tmp_path / "out") == read_analysis(tmp_path / "one")
    if "stopping.patience=2" in changes:
        assert expected.summary["kept"] + 1 < expected.summary["rounds"] < 60


@pytest.fixture
def federation(tmp_path) -> Iterator[Callable[..., tuple[LocalFederation, Path, RunConfig]]]:
    """Makes a federation whose sites have their sections, a job for it, and the configuration that knows all."""
    entered: list[LocalFederation] = []

    def make(rounds: int, names: Sequence[str] = PARTIES) -> tuple[LocalFederation, Path, RunConfig]:
        path = own_tables(tmp_path / "tables", rounds, names)
        config = load_config(path)
        write_job(config, "people", tmp_path / "job")
        made = LocalFederation(tmp_path / "federation", names, CLASSES)
        for name in names:
            section = path.read_text().split(f"[party.{name}]")[1].split("[party.")[0]
            table = (path.parent / f"{name}.csv").replace(made.site(name) / "local" / f"{name}.csv")
            assert table.exists()
            (made.site(name) / "local" / "cvfl.toml").write_text(f"{OWN}[party.{name}]{section}")
        shutil.copy(path.parent / "row_secret", made.site(names[0]) / "local")
        entered.append(made.__enter__())
        return made, tmp_path / "job", config

    yield make
    for made in entered:
        made.__exit__()


def gathered(federation: LocalFederation, identifier: str) -> dict[str, Any]:
    """The summary that the server left; its hashes are those of the models that the sites have kept."""
    summary = json.loads((federation.results(identifier) / "cvfl" / "summary.json").read_text())
    assert list(summary["parameters"]) == ["server", *federation.names]
    for name in federation.names:
        kept = json.loads((federation.site(name) / "cvfl" / "people" / f"{name}.json").read_text())
        assert summary["parameters"][name] == kept["parameters"]
    return summary


def reference(tmp_path: Path, rounds: int, names: Sequence[str] = PARTIES) -> dict[str, Any]:
    return train(load_config(own_tables(tmp_path / "again", rounds, names))).summary


def refused_without_certificate(port: int) -> bool:
    """Whether the server ends a TLS connection of somebody who shows no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
            secure.settimeout(10)
            return secure.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@needs_flare
@its_own_warnings
@pytest.mark.slow
@pytest.mark.parametrize("names", [PARTIES[:2], PARTIES], ids=["two", "four"])
def test_a_provisioned_federation_ends_in_the_same_bits_and_bytes(tmp_path, federation, names):
    made, job, _ = federation(20, names)
    assert refused_without_certificate(made.port)
    identifier, status = made.run(job)
    assert status == "FINISHED:COMPLETED"
    expected = reference(tmp_path, 20, names)
    assert outcome(gathered(made, identifier), certified=True) == outcome(expected, certified=True)
    logs = "".join(path.read_text() for path in made.site("localhost").rglob("*log*.txt"))
    assert "p0020" not in logs
    assert "secret_label" not in logs


@needs_flare
@its_own_warnings
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["shop", "localhost"])
def test_a_killed_job_process_ends_the_job_and_the_next_submission_goes_on(tmp_path, federation, victim):
    """Law 3 on FLARE: kill -9 of a site's or the server's job process, submit again, same bits."""
    rounds = 400
    made, job, _ = federation(rounds)
    first = made.submit(job)
    progress = made.site("localhost") / "cvfl" / "people" / PROGRESS_FILE
    assert wait_until(lambda: progress.exists() and progress.read_bytes().count(b"\n") >= 30)
    for pid in made.job_processes(victim):
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    assert made.wait(first) != "FINISHED:COMPLETED"
    print(f"the job was over {time.monotonic() - killed:.1f} s after {victim}'s process was killed")
    second, status = made.run(job)
    assert status == "FINISHED:COMPLETED"
    began = json.loads(progress.read_text().splitlines()[0])["round"]
    assert 25 <= began < rounds
    assert outcome(gathered(made, second), certified=True) == outcome(reference(tmp_path, rounds), certified=True)


@needs_flare
@pytest.mark.slow
def test_a_party_whose_table_cannot_be_used_ends_the_simulation_with_its_line(tmp_path):
    path = own_tables(tmp_path / "tables", 20)
    path.write_text(path.read_text().replace("secret_label", "no_such_column"))
    with pytest.raises(CvflError, match="no_such_column") as caught:
        train_nvflare(load_config(path))
    assert "\n" not in str(caught.value)


@needs_flare
@its_own_warnings
@pytest.mark.slow
def test_a_site_that_has_not_listed_the_classes_runs_no_job(tmp_path):
    write_job(WINE, "wine", tmp_path / "job")
    names = ("hospital", "bank")
    allowed = tuple(name for name in CLASSES if name != ROLES)
    with LocalFederation(tmp_path / "federation", names, allowed) as made:
        _, status = made.run(tmp_path / "job")
    assert status != "FINISHED:COMPLETED"


def wait_until(true: Callable[[], bool], patience: float = 120.0) -> bool:
    until = time.monotonic() + patience
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    return true()


def site(tmp_path: Path, job: dict[str, Any], own: str | None) -> Place:
    """A job process at the hospital, which has this file of its own."""
    folders = {name: tmp_path / name for name in ("config", "local", "root", "results")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["config"] / "cvfl.json").write_text(json.dumps({"name": "people", "config": job}))
    if own is not None:
        (folders["local"] / "cvfl.toml").write_text(own)
    return Place("hospital", **folders)


JOB: dict[str, Any] = {"rounds": 3, "step_size": {"eta": 0.1}, "data": {}, "party": {"hospital": {}, "bank": {}}}
GREEDY: dict[str, dict[str, Any]] = {
    "a column as label": {"party": {"hospital": {"label": "diagnosis", "features": ["*"]}, "bank": {}}},
    "a table": {"party": {"hospital": {"table": "/etc/passwd", "label": "x"}, "bank": {}}},
    "a query": {"party": {"hospital": {"url": "sqlite:////etc/secrets.db", "query": "select 1"}, "bank": {}}},
    "code as its model": {"party": {"hospital": {"model": {"name": "os:abort", "width": 4}}, "bank": {}}},
    "code as everyone's model": {"party_model": {"name": "os:abort", "width": 4}},
    "no compression": {"compressor": "identity"},
    "how columns are prepared": {"data": {"prepare": {"missing": "median"}, "id": "name"}},
    "certificates": {"network": {"certificates": "/somewhere", "address": "10.0.0.1:1"}},
}


@pytest.mark.parametrize("wish", GREEDY)
def test_from_a_job_a_site_takes_terms_and_names_alone(wish: str, tmp_path: Path) -> None:
    own = '[data]\nid = "person"\n[party.hospital]\ntable = "own.csv"\n'
    name, config = job_settings(site(tmp_path, JOB | GREEDY[wish], own))
    _, expected = job_settings(replace(site(tmp_path / "other", JOB, own), local=tmp_path / "local"))
    assert name == "people"
    assert config == expected
    assert config.party["hospital"].table == tmp_path / "local" / "own.csv"
    assert config.party["hospital"].label is None
    assert config.compressor == "auto"


@pytest.mark.parametrize("code", ["os:abort", "http.server:test"])
def test_a_job_names_no_code(code: str, tmp_path: Path) -> None:
    job = JOB | {"server_model": {"name": code}}
    with pytest.raises(ConfigError, match=r"server_model.name: a job cannot name code"):
        job_settings(site(tmp_path / "without", job, None))
    with pytest.raises(ConfigError, match=r"server_model.name: a job cannot name code"):
        job_settings(site(tmp_path / "another", job, '[server_model]\nname = "own:model"\n'))
    _, config = job_settings(site(tmp_path / "agreed", job, f'[server_model]\nname = "{code}"\n'))
    assert config.server_model.name == code


def test_a_job_opens_no_files_of_a_site(tmp_path: Path) -> None:
    job = JOB | {"data": {"name": "mimic3"}, "party": {}}
    with pytest.raises(ConfigError, match=r"data.name: a job cannot open files of a site; to use 'mimic3', say so in"):
        job_settings(site(tmp_path / "other", job, '[data]\nname = "adult"\npath = "here"\n'))
    _, config = job_settings(site(tmp_path / "agreed", job, '[data]\nname = "mimic3"\npath = "here"\n'))
    assert config.data.path == tmp_path / "agreed" / "local" / "here"
    _, config = job_settings(site(tmp_path / "public", job | {"data": {"name": "wine"}}, None))
    assert config.data.name == "wine"


def test_a_site_without_a_file_has_no_table_whatever_the_job_says(tmp_path: Path) -> None:
    _, config = job_settings(site(tmp_path, JOB | GREEDY["a query"], None))
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"party.hospital has no table"):
        PartyRun(config, "hospital", tmp_path / "state", stack)
