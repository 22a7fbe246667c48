"""Consent to predictions and to answers online: an owner is shown who will see what, in every mode."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from typer.testing import CliRunner

from conformance.cases import write_config
from conformance.network import free_port
from cvfl.cli import app
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.consent import FILE, Consent, approve, check_consent
from cvfl.federation.nvflare import SITE_FILE, JobRoles
from cvfl.federation.roles import PartyRun
from cvfl.federation.train import train
from cvfl.runs.actions import NAME, read_actions
from cvfl.runs.bundle import read_bundle
from cvfl.runs.directory import PARAMETERS
from cvfl.runtime.nvflare.place import Place
from cvfl.serving.apart import PartyPrediction
from cvfl.serving.bundles import read_bundles
from cvfl.serving.consent import serving_consent
from cvfl.serving.nvflare import PredictRoles, write_prediction_job
from cvfl.serving.online import service
from cvfl.serving.online.roles import serving_terms
from cvfl.serving.online.stock import PartyStock
from serving import tables

AUTO = {"compressor": "auto", "server_compressor": "auto"}
MODES: dict[str, dict[str, Any]] = {
    "shared": {},
    "bank": {"privacy": {"labels": "bank"}},
    "secure": {"privacy": {"aggregation": "secure"}, "server_model": {"name": "sum"}, "compressor": "auto"},
    "outer": {"data": {"id": "person", "test_share": 0.2, "alignment": "outer"}, "privacy": {"labels": "bank"}},
    "own model": {"privacy": {"labels": "bank", "label_epsilon": 3.0, "private_model": True}},
}
SEALED = "only sizes and times: what it passes on is sealed"
PREDICTED = {
    ("shared", "shop"): {
        "who takes part": "the server, and bank, shop",
        "your columns": "3: spent, branch, channel",
        "what leaves you": "4 numbers a row, coded by identity; never columns",
        "the server sees": "your embedding of every new row that is scored",
        "every other party sees": "how many rows are scored, and nothing else of yours",
        "scores": "the server computes them without ids, and the party that had the label alone hears them",
    },
    ("shared", "bank"): {"scores": "the server computes them without ids, and you alone hear them"},
    ("bank", "shop"): {
        "the server sees": SEALED,
        "bank sees": "your embedding of every new row that is scored",
        "scores": "bank computes them, and nobody else hears one",
    },
    ("bank", "bank"): {"the server sees": SEALED, "scores": "you compute them, and nobody else hears one"},
    ("secure", "shop"): {
        "the server sees": "the sum of all parties' embeddings of every new row that is scored; not yours alone",
    },
    ("outer", "shop"): {"your people": "the party that had the label learns which of its own people you hold; nobody"},
    ("outer", "bank"): {"your people": "each other party learns which of its own people are among them; you learn who"},
    ("own model", "shop"): {"bank sees": "your embedding of every new row that is scored"},
}
SERVED = {
    ("shared", "shop"): {
        "use": "answers online: whoever may ask at the door of the party that had the label gets scores",
        "the server sees": "your embedding of each person who is asked for, if you know them",
        "who is asked for": "the server hears it by a pseudonym, and which parties know them",
        "every other party sees": "nothing of yours",
        "not protected": "nothing counts how often somebody is asked for",
    },
    ("shared", "bank"): {
        "use": "answers online: whoever may ask at your door gets scores",
        "every other party sees": "which of its own people you ask for, and when",
    },
    ("bank", "shop"): {"the server sees": SEALED, "bank sees": "your embedding of each person"},
    ("secure", "shop"): {"the server sees": "of somebody whom you alone know, that is yours"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, RunConfig]]:
    found = {}
    for mode, changes in MODES.items():
        folder = tmp_path_factory.mktemp("trained")
        config = tables.config(tables.write(tables.frames(), folder / "in"), **changes)
        train(config, out=folder / "run", workers=1)
        found[mode] = folder / "run", config
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def prediction(config: RunConfig, run: Path, name: str, folder: Path, stack: ExitStack) -> PartyPrediction:
    return PartyPrediction(config, name, run / PARAMETERS, folder / name, stack)


@pytest.mark.parametrize(("mode", "name"), PREDICTED)
def test_what_owners_are_shown_of_predictions(
    mode: str, name: str, trained: dict[str, tuple[Path, RunConfig]], tmp_path: Path, stack: ExitStack
) -> None:
    run, config = trained[mode]
    shown = prediction(config, run, name, tmp_path, stack).consent.shown
    for key, said in PREDICTED[mode, name].items():
        assert said in shown[key], shown


@pytest.mark.parametrize(("mode", "name"), SERVED)
def test_what_owners_are_shown_of_answers_online(
    mode: str, name: str, trained: dict[str, tuple[Path, RunConfig]]
) -> None:
    shown = online(*trained[mode], name).shown
    for key, said in SERVED[mode, name].items():
        assert said in shown[key], shown


def online(run: Path, config: RunConfig, name: str) -> Consent:
    bundle = read_bundle(run / PARAMETERS / f"{name}.model.json")
    return serving_consent(config, read_bundles([run]).parties[bundle.role], serving_terms(config))


def test_a_new_run_needs_no_new_approval_and_other_terms_do(
    trained: dict[str, tuple[Path, RunConfig]], tmp_path: Path, stack: ExitStack
) -> None:
    run, config = trained["shared"]
    again = tables.config(tables.write(tables.frames(first=500), tmp_path / "in"))
    train(again, out=tmp_path / "run", workers=1)
    first = prediction(config, run, "shop", tmp_path / "a", stack)
    second = prediction(again, tmp_path / "run", "shop", tmp_path / "b", stack)
    assert first.consent == second.consent
    assert online(run, config, "shop") == online(tmp_path / "run", again, "shop")
    lines = [next(iter(read_actions(tmp_path / place / "shop" / NAME))) for place in ("a", "b")]
    assert {line["use"] for line in lines} == {"predict"}
    assert len({line["run"] for line in lines}) == 2  # which the log names
    approve(tmp_path / FILE, "shop", first.consent)
    sealed_run, sealed = trained["bank"]
    other = prediction(sealed, sealed_run, "shop", tmp_path / "c", stack).consent
    with pytest.raises(ConfigError, match=r"the server sees: was your embedding of every new row"):
        check_consent(tmp_path / FILE, "shop", other, required=False)


@pytest.mark.parametrize("name", ["shop", "bank"])
def test_a_model_of_other_columns_is_not_taken_up_before_its_owner_has_approved_it(
    name: str, trained: dict[str, tuple[Path, RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roles agree on it, since columns are no term: the command that serves holds it against approved.toml."""
    run, _ = trained["shared"]
    frames = tables.frames()
    more = {
        one: table.append_column("diagnosis", table.column("spent" if one == "shop" else "income"))
        for one, table in frames.items()
    }
    wide = tables.config(tables.write(more, tmp_path / "more"))
    same, other = tmp_path / "same", tmp_path / "other"
    train(tables.config(tables.write(tables.frames(first=500), tmp_path / "in")), out=same, workers=1)
    train(wide, out=other, workers=1)
    place, file = tmp_path / "models", write_config(tmp_path / "fed.toml", wide)  # the table has all that may be needed
    found: list[str] = []

    def serves(stock: PartyStock, *_: Any) -> None:
        for after in (other, same):
            bring(after)
            found.extend(stock.look())
        found.append(stock.bundle.run)
        raise ConfigError("enough was seen")

    def bring(run: Path) -> None:
        for path in sorted((run / PARAMETERS).glob(f"{name}.*"), key=lambda path: path.name.endswith(".model.json")):
            shutil.copy(path, place)

    def serve(answer: str, *more: str) -> str:
        found.clear()
        bring(run)
        start = ["serve", "--http", f"127.0.0.1:{free_port()}"] if name == "bank" else ["party", "--serve"]
        words = [*start, str(file), "--name", name, "--model", str(place), "--insecure", *more]
        return CliRunner().invoke(app, [*words, "--state", str(tmp_path / "state")], input=answer).output

    place.mkdir()
    monkeypatch.setattr(service, "serve_party", serves)
    runs = {read_bundle(one / PARAMETERS / f"{name}.model.json").run: one for one in (same, other)}
    numbers = {one: run for run, one in runs.items()}
    assert "enough was seen" in serve("")  # nobody was asked
    assert [f"run {numbers[one]} is loaded" for one in (other, same)] == found[:2]
    assert "enough was seen" in serve("y\n", "--approve")
    refused, taken, now = found
    assert refused.startswith(f"not taken, and tried again: {place}: run {numbers[other]}: {name}: not as approved on ")
    assert ": your columns: was 3: " in refused
    assert refused.endswith(", diagnosis; see it all with --approve")
    assert (taken, now) == (f"run {numbers[same]} is loaded", numbers[same])


def test_without_a_party_another_federation_takes_part(tmp_path: Path, stack: ExitStack) -> None:
    config = tables.config(tables.write(tables.frames(), tmp_path / "in"), absence={"rate": 0.3}, **AUTO)
    run = train(config, out=tmp_path / "run", workers=1).path
    assert run is not None
    whole = prediction(config, run, "bank", tmp_path / "whole", stack).consent
    alone = PartyPrediction(config, "bank", run / PARAMETERS, tmp_path / "alone", stack, without=("shop",)).consent
    assert (whole.shown["who takes part"], alone.shown["who takes part"]) == (
        "the server, and bank, shop",
        "the server, and bank",
    )
    assert alone.terms["without"] == '["shop"]'


def test_a_site_of_flare_takes_what_its_owner_has_approved(
    trained: dict[str, tuple[Path, RunConfig]], tmp_path: Path, stack: ExitStack
) -> None:
    """What is approved of the same configuration with `cvfl party --approve` is approved of the job."""
    run, config = trained["shared"]
    paths = tables.write(tables.frames(first=1000), tmp_path / "new")
    write_prediction_job(config, "job", tmp_path / "job")
    (tmp_path / "local").mkdir()
    own = {"predict": {"shop": {"model": str(run), "table": str(paths["shop"])}}, "consent": {"required": True}}
    values = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    (tmp_path / "local" / SITE_FILE).write_text(tomlkit.dumps(values | own))

    def place(root: str) -> Place:
        return Place("shop", tmp_path / "job" / "app" / "config", tmp_path / "local", tmp_path / root, tmp_path)

    for number, (roles, what) in enumerate(((JobRoles(), "this run"), (PredictRoles(), "predictions of new rows"))):
        with pytest.raises(ConfigError, match=f"shop: nobody has approved the terms of {what}") as caught:
            roles.party(place(f"refused-{number}"))
        use = ("", " --predict")[number]  # a site of FLARE has no option --approve
        said = f"see them with `cvfl party CONFIG --name shop{use} --approve --insecure`, where CONFIG has the same"
        assert said in str(caught.value)
        assert f"in {tmp_path / 'local'};" in str(caught.value)
        log = tmp_path / f"refused-{number}" / "cvfl" / "job" / "state" / NAME
        assert [line["event"] for line in read_actions(log)] == ["started", "stopped"]
    training = PartyRun(config, "shop", tmp_path / "own", stack)
    predicting = prediction(config, run, "shop", tmp_path / "own-prediction", stack)
    for roles, consent in ((JobRoles(), training.consent), (PredictRoles(), predicting.consent)):
        approve(tmp_path / "local" / FILE, "shop", consent)
        duty = roles.party(place(f"taken-{consent.use}"))
        log = tmp_path / f"taken-{consent.use}" / "cvfl" / "job" / "state" / NAME
        assert [line["event"] for line in read_actions(log)] == ["started", "approved"]
        duty.role.hello()
        duty.close()
        assert [line["event"] for line in read_actions(log)] == ["started", "approved", "handshake", "stopped"]
    training.close()
    assert [*tomllib.loads((tmp_path / "local" / FILE).read_text())] == ["party", "predict"]
