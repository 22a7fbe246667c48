"""Consent: the owner of a party sees who will see what, and nothing goes on that they have not approved."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from rich.console import Console
from typer.testing import CliRunner, Result

from conformance.cases import SERVER, settings, write_config
from conformance.outcome import in_process, same
from conformance.threads import Threads, threads
from cvfl.cli import app
from cvfl.cli.consent import agree
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.consent import FILE, Consent, Use, approvals, approve, check_consent, consent_of
from cvfl.privacy.seen import MODES
from cvfl.runs.actions import NAME, ActionLog, read_actions
from cvfl.runtime.grpc.certificates import make_certificates

pytestmark = pytest.mark.usefixtures("no_pages")
CONFIG = settings(rounds=3)
NAMES = ("hospital", "bank", "shop")


def consent(columns: tuple[str, ...] = ("income", "age"), name: str = "bank", **changes: Any) -> Consent:
    config = settings(**changes)
    return consent_of(config, name, NAMES, columns, terms_of(config))


def party(folder: Path, address: str, *more: str, answer: str = "") -> Result:
    certificates = f"network.certificates={folder / 'certs'}"
    sets = ("--set", f"network.address={address}", "--set", certificates, "--set", "network.wait_limit=5")
    places = ("--out", str(folder / "models"), "--state", str(folder / "state" / "bank"))
    command = ["party", str(folder / "fed.toml"), "--name", "bank", *sets, *places, "--log-json", *more]
    return CliRunner().invoke(app, command, input=answer)


def others(federation: Threads) -> None:
    federation.start(SERVER)
    federation.start("hospital")


def test_a_no_sends_nothing_and_a_yes_ends_in_the_same_bits(tmp_path: Path) -> None:
    write_config(tmp_path / "fed.toml", CONFIG)
    with threads(CONFIG, tmp_path) as federation:
        others(federation)
        for answer in ("n\n", "\n", ""):
            refused = party(tmp_path, federation.address, "--approve", answer=answer)
            assert refused.exit_code == 2
            assert "error: bank: its owner has not approved the terms; nothing was sent" in refused.output
        assert not (tmp_path / FILE).exists()
        assert all(line["event"] in ("started", "stopped") for line in read_actions(tmp_path / "state" / "bank" / NAME))
        taken = party(tmp_path, federation.address, "--approve", answer="y\n")
        assert taken.exit_code == 0, taken.output
        assert "the server sees: your embedding of every training row" in " ".join(taken.output.split())
        same(federation.outcome(), in_process(CONFIG))
    kept = tomllib.loads((tmp_path / FILE).read_text())["party"]["bank"][-1]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (line,) = [line for line in read_actions(tmp_path / "state" / "bank" / NAME) if line["event"] == "approved"]
    assert line["consent"] == kept["sha256"]


def test_a_no_leaves_the_run_so_far_and_the_alignment_as_they_are(tmp_path: Path) -> None:
    write_config(tmp_path / "fed.toml", CONFIG)
    state = tmp_path / "state" / "bank"
    make_certificates(tmp_path / "certs", ["127.0.0.1"], NAMES)

    def begin_anew(answer: str) -> None:
        options = ("--restart", "--align-again", "--approve", "--set", "network.wait_limit=1")
        assert party(tmp_path, "127.0.0.1:1", *options, answer=answer).exit_code == 2

    begin_anew("n\n")
    (so_far,) = (path for path in state.iterdir() if (path / "terms.json").exists())
    (state / "alignment").mkdir()
    kept = (so_far / "round", state / "alignment" / "round-00000000.safetensors")
    for path in kept:
        path.touch()
    begin_anew("n\n")
    assert [path.exists() for path in kept] == [True, True]
    begin_anew("y\n")  # there is no server, but this is no longer about consent
    assert [path.exists() for path in kept] == [False, False]
    assert so_far.with_name(f"{so_far.name}.old-1").joinpath("round").exists()


def test_what_was_approved_goes_on_unasked_and_what_has_changed_does_not(tmp_path: Path) -> None:
    path = write_config(tmp_path / "fed.toml", CONFIG)
    with threads(CONFIG, tmp_path) as federation:
        needed = party(tmp_path, federation.address, "--set", "consent.required=true")
        assert "nobody has approved the terms of this run, which consent.required asks for" in needed.output
        others(federation)
        assert party(tmp_path, federation.address, "--approve", answer="y\n").exit_code == 0
        federation.join()
    write_config(path, settings(rounds=4))
    stopped = party(tmp_path, "127.0.0.1:1")
    assert stopped.exit_code == 2
    (line,) = [line for line in stopped.output.splitlines() if line.startswith("error: ")]
    assert "length: was at most 3 rounds" in line
    assert "is at most 4 rounds" in line
    again = party(tmp_path, "127.0.0.1:1", "--approve", answer="n\n")
    assert "* length: at most 4 rounds" in " ".join(again.output.split())
    write_config(path, CONFIG)
    with threads(CONFIG, tmp_path / "again") as federation:
        (tmp_path / "certs").rename(tmp_path / "old")
        (tmp_path / "again" / "certs").rename(tmp_path / "certs")
        federation.certs = tmp_path / "certs"
        others(federation)
        unasked = party(tmp_path, federation.address, "--set", "consent.required=true", "--approve")
        assert unasked.exit_code == 0, unasked.output
        assert "take part by these terms" not in unasked.output
        federation.join()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rounds": 9}, "length: was at most 6 rounds"),
        ({"columns": ("income", "age", "debts")}, "your columns: was 2: income, age, is 3: income, age, debts"),
        ({"privacy": {"labels": "server"}}, "every other party sees: was"),
        ({"compressor": "identity"}, "what leaves you: was"),
        ({"evaluate_every": 1}, "evaluate_every: was 2, is 1"),
        ({"seed": 4}, "seed: was 3, is 4"),
    ],
)
def test_every_change_is_named(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    approve(path, "bank", consent())
    assert check_consent(path, "bank", consent(), required=True)
    with pytest.raises(ConfigError) as caught:
        check_consent(path, "bank", consent(**changes), required=False)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_approvals_that_there_are_stay_valid() -> None:
    """A frozen hash: a change of it asks every owner anew, and is to be said in the changelog."""
    assert consent().sha256 == "a3add7a11d5346a12d8a3de7e5b18651081d7d0ec7c3f75db8a92ebe3e852df1"


def test_each_use_has_an_approval_of_its_own(tmp_path: Path) -> None:
    path, uses = tmp_path / FILE, {use: Consent({"use": str(use)}, {}, use) for use in Use}
    approve(path, "bank", uses[Use.TRAINING])
    for use, what in ((Use.PREDICTION, "predictions of new rows"), (Use.SERVING, "answers online")):
        assert not check_consent(path, "bank", uses[use], required=False)
        with pytest.raises(ConfigError, match=f"^bank: nobody has approved the terms of {what}, which consent.requi"):
            check_consent(path, "bank", uses[use], required=True)
        approve(path, "bank", uses[use])
        assert check_consent(path, "bank", uses[use], required=True)
        with pytest.raises(ConfigError, match=f"^bank: not as approved on .*: use: was {use}, is another"):
            check_consent(path, "bank", Consent({"use": "another"}, {}, use), required=False)
    assert [*tomllib.loads(path.read_text())] == ["party", "predict", "serve"]
    assert check_consent(path, "bank", uses[Use.TRAINING], required=True)
    path.write_text(path.read_text().replace("[[predict.bank]]", "[[predict.bank]]\nmore = 1"))
    with pytest.raises(ConfigError, match=r"\[predict.bank\] is damaged; approve anew with --approve"):
        check_consent(path, "bank", uses[Use.PREDICTION], required=False)
    assert check_consent(path, "bank", uses[Use.SERVING], required=True)


def test_one_file_for_the_parties_of_a_machine(tmp_path: Path) -> None:
    path = tmp_path / FILE
    approve(path, "bank", consent())
    approve(path, "shop", consent(name="shop"))
    approve(path, "bank", consent(rounds=9))
    assert check_consent(path, "shop", consent(name="shop"), required=True)
    for rounds in (9, 6):
        assert check_consent(path, "bank", consent(rounds=rounds), required=True)
    assert not check_consent(path, "hospital", consent(), required=False)
    assert path.read_text().startswith("# What owners of parties have approved")


def test_a_file_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / FILE
    approve(path, "bank", consent())
    kept = path.read_text()
    path.write_text(kept.replace(consent().sha256, "0" * 64))
    with pytest.raises(ConfigError, match="the file itself was changed"):
        check_consent(path, "bank", consent(), required=False)
    path.write_text(kept.replace("sha256", "sha255"))
    with pytest.raises(ConfigError, match=r"approved.toml: \[party.bank\] is damaged; approve anew with --approve"):
        check_consent(path, "bank", consent(), required=False)
    path.write_text("[")
    with pytest.raises(ConfigError, match=r"approved\.toml: "):
        check_consent(path, "bank", consent(), required=False)


def test_approvals_of_several_configurations_stand_side_by_side(tmp_path: Path) -> None:
    """April's and May's in one folder, or two jobs at one site; what has changed is said of the newest."""
    path = tmp_path / FILE
    april, may = consent(), consent(rounds=9)
    for one in (april, may, april):
        approve(path, "bank", one)
        approve(path, "shop", one)
    assert [entry.sha256 for entry in approvals(path, "bank").entries] == [may.sha256, april.sha256]
    for one in (april, may):
        assert check_consent(path, "bank", one, required=True)
    with pytest.raises(ConfigError, match=r"length: was at most 6 rounds, .* is at most 12 rounds"):
        check_consent(path, "bank", consent(rounds=12), required=False)
    path.write_text(path.read_text().replace(f'"{may.sha256}"', "1"))
    assert check_consent(path, "bank", april, required=True)  # whatever else is damaged
    approve(path, "bank", may)
    assert all(check_consent(path, "bank", one, required=True) for one in (april, may))


def test_an_approval_of_a_table_of_its_own_is_one_of_the_list(tmp_path: Path) -> None:
    """As version 0.1 wrote them."""
    path, (old, new) = tmp_path / FILE, (consent(), consent(rounds=9))
    entry = {"sha256": old.sha256, "approved": "2026-11-17T10:00:00Z", "shown": old.shown, "terms": old.terms}
    path.write_text("# mine\n" + tomlkit.dumps({"party": {"bank": entry, "shop": entry}}))
    assert check_consent(path, "bank", old, required=True)
    approve(path, "bank", new)
    for name, consents in (("bank", (old, new)), ("shop", (old,))):
        assert all(check_consent(path, name, one, required=True) for one in consents)
    assert path.read_text().startswith("# mine\n")
    assert tomllib.loads(path.read_text())["party"]["bank"][0]["approved"] == entry["approved"]


@pytest.mark.parametrize("damage", ["sha255", "section"])
def test_who_is_asked_mends_a_damaged_approval(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, log = tmp_path / FILE, ActionLog(tmp_path / "state")
    approve(path, "shop", consent(("branch",), "shop"))
    if damage == "section":
        path.write_text("party = 1\n")
    else:
        approve(path, "bank", consent())
        path.write_text(path.read_text().replace(f'sha256 = "{consent().sha256}"', 'sha255 = ""'))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    agree(consent(), log, "bank", tmp_path / "fed.toml", True, True, Console(file=io.StringIO()))
    assert check_consent(path, "bank", consent(), required=True)
    assert check_consent(path, "shop", consent(("branch",), "shop"), required=False) == (damage != "section")
    assert [line["event"] for line in read_actions(log.path)] == ["approved"]


SHOWN: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "open": ({}, "shop", {"the server sees": "your embedding of every training row", "noise": "none"}),
    "secure": (
        {"privacy": {"aggregation": "secure"}, "server_model": {"name": "sum"}, "compressor": "auto"},
        "shop",
        {"the server sees": "not yours alone", "every other party sees": "the same sum"},
    ),
    "relayed": (
        {"privacy": {"labels": "bank"}},
        "shop",
        {
            "the server sees": "only sizes and times",
            "bank sees": "your embedding of every training row",
            "every other party sees": "nothing of yours",
        },
    ),
    "holder": ({"privacy": {"labels": "bank"}}, "bank", {"every other party sees": "how the loss changes"}),
    "noise": ({"privacy": {"clip": 1, "noise": 4}, "compressor": "identity"}, "shop", {"noise": "at most epsilon"}),
    "shared noise": (
        {
            "privacy": {"clip": 1, "noise": 4, "aggregation": "secure", "noise_shared": True},
            "server_model": {"name": "sum"},
            "compressor": "auto",
        },
        "shop",
        {"noise": "noise of 4 times the norm in the sum of 3, of which each adds its part, delta 1e-05: for a"},
    ),
}


@pytest.mark.parametrize("mode", SHOWN)
def test_owners_are_shown_what_their_mode_shows(mode: str) -> None:
    changes, name, lines = SHOWN[mode]
    shown = consent(name=name, **changes).shown
    for key, said in lines.items():
        assert said in shown[key]


TOLD = {"labels": "bank", "label_epsilon": 2.0, "private_model": True}
MASKED: dict[str, Any] = {"server_model": {"name": "sum"}, "compressor": "auto"}
SEALED = "only sizes and times: what it passes on is sealed"


@pytest.mark.parametrize("labels", [TOLD, {"labels": "bank"}], ids=["private model", "labels at a party"])
def test_of_two_parties_one_that_gets_the_sum_has_the_embedding_of_the_other(labels: dict[str, Any]) -> None:
    config = settings(**MASKED | {"privacy": labels | {"aggregation": "secure"}})
    of_two, of_three = (consent_of(config, "shop", NAMES[-M:], (), terms_of(config)).shown for M in (2, 3))
    assert of_two["bank sees"].startswith("your embedding of every")
    assert of_three["bank sees"].startswith("the sum of all parties' embeddings of every")


@pytest.mark.parametrize("changes", [{}, {"folding": True}, MASKED | {"privacy": TOLD | {"aggregation": "secure"}}])
def test_what_the_server_passes_on_for_a_private_model_is_shown(changes: dict[str, Any]) -> None:
    shown = consent(name="shop", **{"privacy": TOLD} | changes).shown["the server sees"]
    assert shown.startswith(("your embedding of every", "the sum of all"))
    assert shown.endswith(SEALED)
    without = {key: value for key, value in TOLD.items() if key != "private_model"}
    assert SEALED not in consent(name="shop", privacy=without).shown["the server sees"]


def with_label(**changes: Any) -> RunConfig:
    values = {"rounds": 1, "step_size": {"eta": 0.1}, "party": {"bank": {"table": "b.csv", "label": "y"}, "shop": {}}}
    return parse_config({"data": {"id": "ID"}} | values | changes)


def test_where_labels_go() -> None:
    for changes, said in (
        ({}, "y: the server gets all, and the others those of training rows"),
        ({"algorithm": 2}, "y: the server gets all, and nobody else"),
        ({"privacy": {"labels": "bank"}}, "y: it stays here; gradients"),
    ):
        config = with_label(**changes)
        assert said in consent_of(config, "bank", NAMES, ("a",), terms_of(config)).shown["your label"]
        assert "another role" in consent_of(config, "shop", NAMES, ("a",), terms_of(config)).shown["your label"]


@pytest.mark.parametrize("privacy", [{}, {"labels": "bank", "label_epsilon": 2.0}, {"labels": "bank"}])
def test_what_classes_are_called_leaves_with_consent(privacy: dict[str, Any], tmp_path: Path) -> None:
    """Names of label values, such as diagnoses: whoever approved without them has not approved them."""

    def of(**section: Any) -> tuple[Consent, list[str]]:
        party = {"bank": {"table": "b.csv", "label": "y"} | section, "shop": {"table": "s.csv"}}
        config = with_label(party=party, privacy=privacy)
        offered = offer_of(config, "bank", ("ill", "well")).classes
        return consent_of(config, "bank", NAMES, ("a",), terms_of(config)), offered

    (quiet, none), (told, classes) = of(), of(tell_classes=True)
    approve(tmp_path / FILE, "bank", quiet)
    assert none == []
    if not classes:  # a label that stays has no names that leave
        assert told == quiet
        return
    assert told.shown["your label"] == f"{quiet.shown['your label']}; the server hears what its classes are called"
    with pytest.raises(ConfigError, match=r"your label: was y: .*, is y: .*; the server hears what its classes are"):
        check_consent(tmp_path / FILE, "bank", told, required=False)


def test_consent_is_no_term() -> None:
    assert terms_of(settings(consent={"required": True})) == terms_of(settings())


def test_every_mode_can_be_said() -> None:
    assert json.dumps([*MODES])
    many = consent(columns=tuple(f"c{n}" for n in range(99))).shown["your columns"]
    other = consent(columns=(*(f"c{n}" for n in range(98)), "z")).shown["your columns"]
    assert "and 59 more" in many
    assert many != other


@pytest.mark.parametrize(
    ("alignment", "name", "said"),
    [
        ("private", "shop", "every other party learns which of its own people all of you hold"),
        ("aligned", "shop", "row i is the same person at every party"),
        ("outer", "shop", "the party with the label learns which of its own people you hold"),
        ("outer", "bank", "you learn who holds which of yours"),
    ],
)
def test_who_learns_whom_a_party_holds_is_said(alignment: str, name: str, said: str) -> None:
    table = {"bank": {"table": "bank.csv", "label": "default"}, "shop": {"table": "shop.csv"}}
    config = settings(data={"id": "id", "alignment": alignment}, party=table)
    shown = consent_of(config, name, ("bank", "shop"), ("a",), terms_of(config))
    assert said in shown.shown["your people"]
    assert "wine" in consent().shown["your people"]
    assert "nobody else" in consent_of(config, name, (name,), ("a",), terms_of(config)).shown["your people"]


def test_another_alignment_is_shown_and_asks_anew(tmp_path: Path) -> None:
    table = {"bank": {"table": "bank.csv", "label": "default"}, "shop": {"table": "shop.csv"}}
    private, outer = (
        consent_of(config, "shop", ("bank", "shop"), ("a",), terms_of(config))
        for config in (settings(data={"id": "id", "alignment": way}, party=table) for way in ("private", "outer"))
    )
    approve(tmp_path / FILE, "shop", private)
    with pytest.raises(ConfigError, match=r"your people: was every other party learns .*, is the party with the label"):
        check_consent(tmp_path / FILE, "shop", outer, required=True)


def test_labels_that_are_told_randomised_are_said_so() -> None:
    table = {"bank": {"table": "bank.csv", "label": "default"}, "shop": {"table": "shop.csv"}}
    told = consent(data={"id": "id"}, party=table, privacy={"labels": "bank", "label_epsilon": 2.0}).shown
    assert told["your label"] == (
        "default: randomised with epsilon 2 (of two classes 12% are changed); the others get no more of it"
    )
    assert told["the server sees"].startswith("your embedding of every training row")
    kept = consent(data={"id": "id"}, party=table, privacy={"labels": "bank"}).shown
    assert kept["your label"].startswith("default: it stays here")
