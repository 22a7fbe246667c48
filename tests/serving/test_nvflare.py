"""Jobs of FLARE that use models which sites have: predictions and starts, in the simulator and provisioned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import tomlkit
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, CvflError, DataError
from cvfl.federation.nvflare import CLASSES, PREDICT_ROLES, SITE_FILE, START_ROLES, write_job
from cvfl.federation.nvflare_simulator import JOB, simulate
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.train import train
from cvfl.runs.directory import PARAMETERS
from cvfl.runtime.nvflare.place import Place
from cvfl.runtime.nvflare.provisioned import LocalFederation
from cvfl.serving.bundles import read_bundles, start_from
from cvfl.serving.nvflare import PREDICTION_FILE, PredictRoles, StartRoles, write_prediction_job
from cvfl.serving.predict import Predictor
from serving import tables

needs_flare = pytest.mark.skipif(find_spec("nvflare") is None, reason="needs: pip install 'cvfl[nvflare]'")
NAMES = ("bank", "shop")


def new_rows(folder: Path) -> dict[str, Path]:
    """New people, some of whom only one party holds; there is no label."""
    found = tables.frames(first=1000, rows=70)
    return tables.write({"bank": found["bank"].drop_columns("target").slice(4), "shop": found["shop"].slice(3)}, folder)


def expected(run: Path, paths: Mapping[str, Path]) -> dict[str, list[Any]]:
    return pa.Table.from_batches(Predictor(read_bundles([run])).of_tables(paths)).to_pydict()


def config_of(folder: Path, first: int = 0, **changes: Any) -> RunConfig:
    return tables.config(tables.write(tables.frames(first=first), folder / f"from-{first}"), **changes)


@pytest.fixture(scope="module")
def april(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig]:
    folder = tmp_path_factory.mktemp("april")
    config = config_of(folder)
    train(config, out=folder / "april", workers=1)
    return folder / "april", config


@needs_flare
@pytest.mark.slow
@pytest.mark.parametrize("labels", ["shared", "bank"])
def test_the_simulator_predicts_as_one_process(tmp_path: Path, labels: str) -> None:
    config = config_of(tmp_path, privacy={"labels": labels})
    run, new = train(config, out=tmp_path / "run", workers=1).path, new_rows(tmp_path / "new")
    assert run is not None
    names = write_prediction_job(config, "scores", tmp_path / "all" / JOB)
    sections = {name: {"model": str(run), "table": str(new[name]), "scores": f"{name}.csv"} for name in NAMES}
    values = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    values |= {"predict": sections | {"server": {"model": str(run)}}}
    (tmp_path / "all" / SITE_FILE).write_text(tomlkit.dumps(values))
    results = simulate(tmp_path / "all", names, "scores", PREDICTION_FILE)
    assert pyarrow.csv.read_csv(tmp_path / "all" / "bank.csv").to_pydict() == expected(run, new)
    assert not (tmp_path / "all" / "shop.csv").exists()
    counted = json.loads((results / PREDICTION_FILE).read_text())
    assert counted["rows"] == 63
    assert counted["prediction_bytes"] > 63 * 32
    assert not list((tmp_path / "all" / "workspace" / "server").rglob("*.csv"))


@needs_flare
@pytest.mark.slow
def test_a_site_without_its_section_ends_the_simulation_with_its_line(
    april: tuple[Path, RunConfig], tmp_path: Path
) -> None:
    run, config = april
    names = write_prediction_job(config, "scores", tmp_path / JOB)
    (tmp_path / SITE_FILE).write_text(f'[predict.server]\nmodel = "{run}"\n')
    with pytest.raises(CvflError, match=r"has no section \[predict\.bank\]; say there which model of this site may"):
        simulate(tmp_path, names, "scores", PREDICTION_FILE)


@needs_flare
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_provisioned_federation_trains_predicts_and_trains_on(tmp_path: Path) -> None:
    """Three jobs: April, scores with its models, May from its models. Each site has files of its own alone."""
    april, may = config_of(tmp_path), config_of(tmp_path, 500)
    secret, new = tmp_path / "row_secret", new_rows(tmp_path / "new")
    secret.write_bytes(b"what the parties agreed on")
    made = LocalFederation(tmp_path / "federation", NAMES, CLASSES)

    def tell(name: str, config: RunConfig, more: dict[str, Any]) -> None:
        party = {} if name == "localhost" else {name: _section(config, name) | {"row_secret": str(secret)}}
        own = {"compressor": "identity", "party_model": {"width": 4, "hidden": [8]}, "data": {"id": "person"}}
        (made.site(name) / "local" / SITE_FILE).write_text(tomlkit.dumps(own | {"party": party} | more))

    for name in ("localhost", *NAMES):
        tell(name, april, {})
    write_job(april, "april", tmp_path / "april")
    write_prediction_job(april, "scores", tmp_path / "scores")
    write_job(may, "may", tmp_path / "may", START_ROLES)
    with made:
        _, status = made.run(tmp_path / "april")
        assert status == "FINISHED:COMPLETED"
        for name in NAMES:
            predict = {name: {"model": "../cvfl/april", "table": str(new[name]), "scores": f"../{name}-scores.csv"}}
            tell(name, may, {"predict": predict, "start": {name: {"model": "../cvfl/april"}}})
        server = {"server": {"model": "../cvfl/april/run"}}
        tell("localhost", may, {"predict": server, "start": server})
        identifier, status = made.run(tmp_path / "scores")
        assert status == "FINISHED:COMPLETED"
        counted = json.loads((made.results(identifier) / "cvfl" / PREDICTION_FILE).read_text())
        identifier, status = made.run(tmp_path / "may")
        assert status == "FINISHED:COMPLETED"
        warm = json.loads((made.results(identifier) / "cvfl" / "summary.json").read_text())
    known = train(april.model_copy(update={"party": _parties(april, secret)}), out=tmp_path / "here", workers=1).path
    assert known is not None
    assert counted["rows"] == 63
    scores = pyarrow.csv.read_csv(made.site("bank") / "bank-scores.csv").to_pydict()
    assert scores == expected(known, new)
    assert not list(made.site("shop").glob("*scores*"))
    assert not list(made.site("localhost").rglob("*scores.csv"))
    again = train(may.model_copy(update={"party": _parties(may, secret)}), start=start_from(known), workers=1).summary
    assert warm["parameters"] == again["parameters"]


def _section(config: RunConfig, name: str) -> dict[str, Any]:
    return config.party[name].model_dump(mode="json", exclude_defaults=True, exclude_none=True)


def _parties(config: RunConfig, secret: Path) -> dict[str, Any]:
    return config.party | {"bank": config.party["bank"].model_copy(update={"row_secret": secret})}


def site(folder: Path, config: RunConfig, own: Mapping[str, Any], name: str = "bank") -> Place:
    """A job process of a site with this file of its own."""
    write_prediction_job(config, "scores", folder / JOB)
    for place in ("local", "root", "results"):
        (folder / place).mkdir(parents=True)
    values = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    (folder / "local" / SITE_FILE).write_text(tomlkit.dumps(values | own))
    return Place(name, folder / JOB / "app" / "config", folder / "local", folder / "root", folder / "results")


def test_a_site_predicts_with_what_its_own_file_names(april: tuple[Path, RunConfig], tmp_path: Path) -> None:
    run, config = april
    new = new_rows(tmp_path / "new")
    sections = {
        "bank": {"model": str(run), "table": str(new["bank"]), "scores": "scores.csv"},
        "shop": {"model": str(run), "table": str(new["shop"])},
    }
    for name in NAMES:
        duty = PredictRoles().party(site(tmp_path / name, config, {"predict": {name: sections[name]}}, name))
        role = duty.role._role  # type: ignore[attr-defined]
        assert isinstance(role, PartyRole)
        assert role.name == name
        assert len(role.rows.ids()) in (66, 67)
        duty.close()  # type: ignore[attr-defined]


def test_a_job_cannot_name_a_model(april: tuple[Path, RunConfig], tmp_path: Path) -> None:
    run, config = april
    place = site(tmp_path, config, {})
    path = place.config / "cvfl.json"
    job = json.loads(path.read_text())
    wish = {"predict": {"bank": {"model": str(run), "scores": "s.csv"}, "server": {"model": str(run)}}}
    path.write_text(json.dumps(job | wish))
    for make in (PredictRoles().party, PredictRoles().server):
        with pytest.raises(ConfigError, match=r"cvfl.toml has no section \[predict\.(bank|server)\]; say there which"):
            make(place)
    with pytest.raises(ConfigError, match=r"has no section \[start\.bank\]"):
        StartRoles().party(place)


@pytest.mark.parametrize(
    ("own", "error", "line"),
    [
        ({"scores": None}, ConfigError, r"predict\.bank\.scores: the scores are for this site, which had the label"),
        ({"scores": "scores.txt"}, ConfigError, r"scores are written as \.csv"),
        ({"table": None}, ConfigError, r"party\.bank has no table; give table, or url and query, of the new rows"),
        ({"tabel": "new.csv"}, ConfigError, r"predict\.bank\.tabel: "),
        ({"model": "nowhere"}, DataError, r"nowhere: no bundle is there"),
    ],
)
def test_what_a_site_must_say(
    april: tuple[Path, RunConfig], tmp_path: Path, own: dict[str, Any], error: type[CvflError], line: str
) -> None:
    run, config = april
    new = new_rows(tmp_path / "new")
    values: dict[str, Any] = {"model": str(run), "table": str(new["bank"]), "scores": "scores.csv"} | own
    given = {key: value for key, value in values.items() if value is not None}
    with pytest.raises(error, match=line):
        PredictRoles().party(site(tmp_path / "site", config, {"predict": {"bank": given}}))


def test_what_a_site_starts_from_is_one_thing_and_apart_from_what_it_leaves(
    april: tuple[Path, RunConfig], tmp_path: Path
) -> None:
    run, config = april
    number = start_from(run).run
    both = site(tmp_path / "both", config, {"start": {"bank": {"model": str(run), "joins": number}}})
    with pytest.raises(ConfigError, match=r"start\.bank: .*say either model or joins"):
        StartRoles().party(both)
    here = site(tmp_path / "here", config, {"start": {"bank": {"model": "../root/cvfl/scores"}}})
    shutil.copytree(run / PARAMETERS, here.root / "cvfl" / "scores")
    with pytest.raises(ConfigError, match=r"the models of this run go to .*, too; give the job another name"):
        StartRoles().party(here)
    joins = site(tmp_path / "joins", config, {"start": {"shop": {"joins": number}}}, "shop")
    duty = StartRoles().party(joins)
    role = duty.role._role  # type: ignore[attr-defined]
    assert isinstance(role, PartyRole)
    assert role.terms["from"] == number
    assert role.offer.new
    duty.close()
    with pytest.raises(ConfigError, match=r"start\.server: name the run directory as model"):
        StartRoles().server(site(tmp_path / "server", config, {"start": {"server": {"joins": number}}}))


def test_jobs_tell_nothing_of_models_and_tables(tmp_path: Path) -> None:
    text = tomlkit.dumps(config_of(tmp_path).model_dump(mode="json", exclude_unset=True, exclude_none=True))
    (tmp_path / "fed.toml").write_text(text)
    for option, roles, name in (("--predict", PREDICT_ROLES, "fed-predict"), ("--start", START_ROLES, "fed")):
        folder = tmp_path / option
        done = CliRunner().invoke(app, ["nvflare-job", str(tmp_path / "fed.toml"), str(folder), option])
        assert done.exit_code == 0, done.output
        assert f"[{option[2:]}.NAME]" in done.output.replace("\n", " ")
        said = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
        assert ".csv" not in said
        assert "target" not in said
        assert roles in said
        assert json.loads((folder / "app" / "config" / "cvfl.json").read_text())["name"] == name
    assert load_config(tmp_path / "fed.toml").party["bank"].label == "target"
    both = CliRunner().invoke(app, ["nvflare-job", str(tmp_path / "fed.toml"), "job", "--predict", "--start"])
    assert both.exit_code == 2
    assert "--predict trains nothing" in both.output
    noisy = ["--set", "privacy.noise=1.0", "--set", "privacy.clip=1.0"]
    refused = CliRunner().invoke(app, ["nvflare-job", str(tmp_path / "fed.toml"), "job", "--predict", *noisy])
    assert refused.exit_code == 2
