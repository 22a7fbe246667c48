"""`cvfl terms` and `cvfl init` at one party alone: every role has the same signed terms and its own section."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conformance.network import free_port
from conformance.processes import Processes
from cvfl import Federation
from cvfl.cli import app
from cvfl.config.files import load_config, write_changed
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.agreement.labels import TableLabels
from cvfl.federation.agreement.terms import terms_of
from cvfl.federation.train import train
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.wire.control import Offer

pytestmark = pytest.mark.usefixtures("no_pages")
ROWS = 200
TERMS = ("--party", "bank", "--party", "shop", "--label", "bank", "--rows", 100)
SHORT = ("--set", "epochs=2", "--set", "stopping.patience=1")


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables of a bank, with the label, and of a shop, and certificates of all roles."""
    draw = np.random.default_rng(0)
    y, spent = draw.integers(0, 2, ROWS), draw.normal(size=ROWS)
    columns = {
        "bank": {"ID": range(ROWS), "income": (draw.normal(size=ROWS) + y).round(3), "y": y},
        "shop": {"ID": range(ROWS), "spent": (spent + y).round(3), "club": draw.choice(["gold", "none"], ROWS)},
    }
    for name, table in columns.items():
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    make_certificates(tmp_path / "certs", ["127.0.0.1"], ["bank", "shop"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path


@pytest.fixture
def agreed(folder: Path) -> Path:
    """Files of all roles as the commands write them."""
    said = call("init", "bank.toml", "--party", "bank=bank.csv", "--id", "ID", "--label", "y")
    assert "bank.toml: what bank alone decides, label y (binary); the other parties are elsewhere" in said
    assert "next: terms.toml, one file for all roles, which `cvfl terms` makes" in said
    said = call("terms", "terms.toml", *TERMS, *SHORT, "--as", "bank")
    assert "terms.toml: bank, shop; the label is at bank" in said
    assert "signed by bank" in said
    said = call("init", "shop.toml", "--party", "shop=shop.csv", "--id", "ID")
    assert "next: cvfl party shop.toml --name shop" in said
    Path("server.toml").write_text('terms = "terms.toml"\n[network]\ncertificates = "certs"\n')
    return folder


def change(old: str, new: str, path: str = "terms.toml") -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def join() -> None:
    """The file of a machine that has both tables."""
    section = Path("shop.toml").read_text().split("[party.shop]", 1)[1]
    Path("all.toml").write_text(f"{Path('bank.toml').read_text()}\n[party.shop]{section}")


def test_a_party_s_file_has_its_own_section_alone(agreed: Path) -> None:
    bank, shop, server = (load_config(agreed / f"{role}.toml") for role in ("bank", "shop", "server"))
    assert terms_of(bank) == terms_of(shop) == terms_of(server)
    assert bank.epochs == 2
    assert bank.terms_sha256 == shop.terms_sha256
    assert bank.party["bank"].label == "y"
    assert not bank.party["shop"].has_table
    assert shop.model_of("shop").name == "tabular"
    assert "[party.shop]" not in Path("bank.toml").read_text()
    assert "epochs" not in Path("bank.toml").read_text()


@pytest.mark.slow
def test_roles_with_such_files_train_over_a_network(agreed: Path) -> None:
    with Processes(agreed / "server.toml", agreed, ["bank", "shop"]) as roles:
        call("terms", "terms.toml", "--as", "shop")  # with the certificates that these roles have
        roles.address = f"127.0.0.1:{free_port()}"
        for role in ("server", "bank", "shop"):
            roles.path = agreed / f"{role}.toml"
            roles.start(role)
        assert set(roles.outcome().models) == {"server", "bank", "shop"}
        assert {event.get("sha256") for event in roles.events("bank") if event["event"] == "terms"} == {
            load_config(agreed / "shop.toml").terms_sha256
        }


def test_all_sections_on_one_machine_train_as_one_file(agreed: Path) -> None:
    join()
    write_changed(Path("all.toml"), [], {"local_iterations": 3}, agreed / "deep" / "one.toml", "one file")
    text = Path("deep/one.toml").read_text()
    assert "[signature]" not in text
    assert "\nterms =" not in text
    assert "# passes over the training rows" in text
    apart = train(load_config(Path("all.toml"), ["local_iterations=3"])).summary
    whole = train(load_config(Path("deep/one.toml"))).summary
    assert apart["parameters"] == whole["parameters"]
    found = Federation.from_config("all.toml").fit(local_iterations=3)
    assert found.metrics.test.roc_auc == whole["metrics"]["test"]["roc_auc"]


@pytest.mark.slow
def test_the_same_over_grpc_in_one_command(agreed: Path) -> None:
    join()
    call("train", "all.toml", "--runtime", "grpc", "--out", "out")
    assert (agreed / "out" / "summary.json").exists()


def test_comments_may_change_and_values_may_not(agreed: Path) -> None:
    change("# passes over", "# rounds over")
    load_config(Path("bank.toml"))
    change("epochs = 2", "epochs = 3")
    assert "terms.toml: was changed after bank signed it; get it again" in refused("server", "server.toml")
    assert "was changed after bank signed it" in refused("terms", "terms.toml")
    call("terms", "terms.toml", "--as", "shop")
    assert load_config(Path("bank.toml")).epochs == 3


def test_a_hash_that_was_made_to_fit_is_no_signature(agreed: Path) -> None:
    before = load_config(Path("terms.toml"))
    call("terms", "other.toml", *TERMS, *SHORT, "--set", "seed=9", "--as", "shop")
    other = Path("other.toml").read_text().split('sha256 = "')[1][:64]
    change("seed = 0", "seed = 9")
    change(Path("terms.toml").read_text().split('sha256 = "')[1][:64], other)
    assert before.seed == 0
    assert "its signature is not one of bank by the authority" in refused("party", "bank.toml", "--name", "bank")


def test_terms_are_of_this_authority_and_of_a_role(agreed: Path) -> None:
    shutil.move("certs", "mine")
    make_certificates(agreed / "certs", ["127.0.0.1"], ["bank", "shop"])
    assert "its signature is not one of bank by the authority" in refused("server", "server.toml")
    assert "its signature is not one of bank by the authority" in refused("terms", "terms.toml")
    assert "signed by bank\n" in call("terms", "terms.toml", "--certificates", "mine")
    assert "signed by bank, which cannot be checked without none/ca.crt" in call(
        "terms", "terms.toml", "--certificates", "none"
    )
    make_certificates(agreed / "mine", [], ["town"])
    said = refused("terms", "terms.toml", "--as", "town", "--certificates", "mine")
    assert said == "'town' is no role of these terms (known: bank, server, shop)"
    call("terms", "terms.toml", "--set", "seed=1")
    assert "terms.toml: is not signed; get it again, or have it signed" in refused("server", "server.toml")


def test_a_fingerprint_that_was_noted_binds_the_signature(agreed: Path) -> None:
    Path("shop.toml").write_text(Path("shop.toml").read_text() + f'\n[party.bank]\nfingerprint = "{"ab" * 32}"\n')
    assert "its signature is not one of bank" in refused("party", "shop.toml", "--name", "shop")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("epochs = 3\n", "epochs is a term: terms.toml alone says it, for all roles"),
        ("[data]\ntest_share = 0.3\n", "data.test_share is a term"),
        ("[party.shp]\n", "party.shp is not in terms.toml; did you mean 'shop'?"),
        (f'terms_sha256 = "{"0" * 64}"\n', "terms_sha256 names other terms than terms.toml, which has "),
        ('[party.shop]\ntable = "shop.csv"\nlabel = "club"\n', "party.shop has the label 'club'; by data.label_holder"),
        ('[party.bank]\ntable = "bank.csv"\n', "party.bank has no label; by data.label_holder bank alone holds it"),
    ],
)
def test_what_a_role_s_own_file_may_not_say(agreed: Path, text: str, line: str) -> None:
    Path("own.toml").write_text(f'terms = "terms.toml"\n{text}')
    assert line in refused("server", "own.toml", "--insecure")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("terms.toml", *TERMS), "terms.toml exists already"),
        (("new.toml", "--party", "bank"), "--party: name two parties or more, each once"),
        (("new.toml", *TERMS[:4]), "--label is missing"),
        (("new.toml", *TERMS[:4], "--label", "bank.y"), "--label takes the name of a party, not 'bank.y'"),
        (("new.toml", "--label", "bank"), "--label is of new terms"),
        (("new.toml",), "new.toml: no such file"),
        (("new.toml", *TERMS, "--set", "network.address=x:1"), "new.toml: network is no term"),
        (("new.toml", *TERMS, "--set", "party.bank.table=bank.csv"), "party.bank.table is no term"),
        (("new.toml", *TERMS, "--set", "epoch=1"), "unknown key 'epoch'; did you mean 'epochs'?"),
        (("new.toml", *TERMS, "--as", "town"), "certs/town.crt"),
    ],
)
def test_what_cannot_be_terms(agreed: Path, arguments: tuple[object, ...], line: str) -> None:
    assert line in refused("terms", *arguments)
    assert not Path("new.toml").exists()


def test_the_server_holds_parties_to_who_has_the_label(agreed: Path) -> None:
    rows = TableLabels(load_config(Path("server.toml")), ["bank", "shop"])
    rows.check({m: Offer(width=4, compressor="identity", label=m == 1) for m in (1, 2)})
    with pytest.raises(RemoteProtocolError, match=r"data.label_holder names bank, but the table of shop has the label"):
        rows.check({m: Offer(width=4, compressor="identity", label=m == 2) for m in (1, 2)})


def test_damaged_signatures_are_one_line(agreed: Path) -> None:
    text = Path("terms.toml").read_text()
    Path("terms.toml").write_text(text.replace("by = ", "who = "))
    with pytest.raises(ConfigError, match=r"\[signature\] is damaged"):
        load_config(Path("bank.toml"))
    at = text.index('signature = "') + len('signature = "')
    Path("terms.toml").write_text(text[:at] + "zz" + text[at + 2 :])
    with pytest.raises(ConfigError, match="its signature is not one of bank"):
        load_config(Path("bank.toml"))
