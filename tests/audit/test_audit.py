"""Audits of recorded runs, from `cvfl train` to the tables: what is found, what is written, what is refused."""

import json
import math
import re
import shutil
from html import unescape
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cvfl.audit.audit import audit_run, audit_told, privacy_mode
from cvfl.audit.subject import Subject
from cvfl.audit.told import _attack, calibrated
from cvfl.cli import app
from cvfl.config.files import parse_config
from cvfl.errors import DataError
from cvfl.privacy.label_draw import tell_classes
from cvfl.protocol import Loss
from cvfl.protocol.learning.randomised import Randomised
from cvfl.report import report
from cvfl.report.leakage import COLUMNS, HEADLINES, run_tables
from cvfl.runs.audit import FEW_KNOWN, WEIGHTS, read_audit, write_audit
from cvfl.runs.compact import compact
from cvfl.runs.read import read_run
from cvfl.runtime import Meter, rounds

server_features, party_features, party_labels = (COLUMNS[name] for name in HEADLINES)
server_labels, held_out_features = COLUMNS["Server: labels"], COLUMNS["Held-out columns R²"]
DIGITS = """
epochs = 3
batch_size = 128
local_iterations = 5
[data]
name = "digits"
parties = 2
limit = 300
[step_size]
eta = 0.1
[party_model]
width = 8
"""
WINE = """
epochs = 2
batch_size = 64
compressor = "identity"
server_compressor = "identity"
[data]
name = "wine"
parties = 3
[step_size]
eta = 0.1
"""


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def train(folder: Path, text: str, name: str, *changes: str) -> Path:
    (folder / "config.toml").write_text(text)
    options = [part for change in changes for part in ("--set", change)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", lambda *_: None)  # an audit writes the page anew
        code, output = call("train", folder / "config.toml", "--out", folder / name, *options)
    assert code == 0, output
    return folder / name


SECURE = ("privacy.aggregation=secure", "server_model.name=sum", "compressor=auto")


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """Some ways to run one federation."""
    folder = tmp_path_factory.mktemp("wine")
    return {
        "open": train(folder, WINE, "open"),
        "server": train(folder, WINE, "server", "privacy.labels=server", "local_iterations=3"),
        "secure": train(folder, WINE, "secure", *SECURE),
        "folded": train(folder, WINE, "folded", "server_compressor=auto", "compressor=auto"),
        "noise": train(folder, WINE, "noise", "privacy.clip=1.0", "privacy.noise=2.0"),
        "holder": train(folder, WINE, "holder", "privacy.labels=bank"),
        "told": train(folder, WINE, "told", "privacy.labels=bank", "privacy.label_epsilon=1.5", "folding=true"),
    }


@pytest.fixture(scope="module")
def audits(wine):
    return {name: audit_run(run) for name, run in wine.items()}


@pytest.fixture
def run(wine, tmp_path):
    """A copy of a run to be changed."""
    return Path(shutil.copytree(wine["open"], tmp_path / "run"))


def test_digits_from_end_to_end(tmp_path):
    run = train(tmp_path, DIGITS, "run", "compressor=identity")
    code, output = call("audit", run)
    assert code == 0, output
    audit, summary = read_audit(run), json.loads((run / "summary.json").read_text())
    assert (audit.looks, audit.rows, audit.parties_get) == (3, 300, "sums")
    assert audit.bits == pytest.approx(8 * summary["bytes"]["up"] / (3 * 300 * 16))  # eight numbers, two parties
    assert audit.task == summary["metrics"]["test"]["roc_auc"]
    assert 0.8 < audit.own["hospital"] < 1
    assert audit.features[0].psnr is None  # two parties have columns, not pictures
    assert f"{audit.features[0].r2:.3f}" in output
    page = (run / "report.html").read_text(encoding="utf-8")
    assert cells(page, "Leakage")[1][:5] == ["identity", "identity", f"{audit.bits:.1f}", "open", "sums"]


def test_many_runs_are_compared_and_published(wine, tmp_path):
    runs = [Path(shutil.copytree(wine[name], tmp_path / name)) for name in ("open", "folded")]
    code, output = call("audit", *runs, "--out", tmp_path / "privacy")
    assert code == 0, output
    found = [read_audit(run) for run in runs]
    assert server_features(found[0]) > server_features(found[1]) > 0.1
    markdown = (tmp_path / "privacy" / "tables.md").read_text(encoding="utf-8")
    assert "**wine**" in markdown
    for run, audit in zip(runs, found, strict=True):
        told = f"{server_features(audit):.3f}"
        assert told in output
        assert f"{run}: audit.json, report.html" in output.replace("\n", "")
        assert re.search(rf"\| {audit.compressor} \| .* \| {audit.parties_get} \| .*\| {told} \|", markdown)


def test_the_same_run_gives_the_same_audit(wine, audits):
    assert audit_run(wine["open"]) == audits["open"]
    assert audit_run(wine["secure"]) == audits["secure"]  # masks differ, sums do not
    assert audit_run(wine["noise"]) == audits["noise"]


def test_who_sees_what(audits):
    seen = {name: {(found.observers, found.sees) for found in audit.features} for name, audit in audits.items()}
    parties = [(name,) for name in ("hospital", "bank", "insurer")]
    embeddings = {(("server",), "embedding"), (("server",), "held-out embedding")}
    assert seen["open"] == {(("server", "parties"), "embedding"), (("server",), "held-out embedding")}
    assert seen["server"] == embeddings | {(party, "gradient") for party in parties}
    assert seen["folded"] == embeddings | {(party, "sum over the others") for party in parties}
    sums = {(("server",), "sum of all"), (("server",), "held-out sum of all")}
    assert seen["secure"] == sums | {(party, "sum over the others") for party in parties}
    assert {name: audit.parties_get for name, audit in audits.items()} == {
        "open": "embeddings",
        "server": "gradients",
        "secure": "sums",
        "folded": "sums",
        "noise": "embeddings",
        "holder": "gradients",
        "told": "sums",
    }


def test_both_ends_of_training_are_looked_at(audits):
    for audit in audits.values():
        assert {found.stage for found in audit.features if not found.held_out} == {"start", "end"}
        assert {found.stage for found in audit.features if found.held_out} == {"end"}
        assert {found.looks for found in audit.features if found.stage == "start"} == {1}
    features = audits["open"].features
    first, last = ([found.r2 for found in features if found.stage == stage] for stage in ("start", "end"))
    assert first[:3] != last[:3]
    dithered = {found.looks for found in audits["secure"].features if found.stage == "end" and not found.held_out}
    assert dithered == {1, 2}


def test_labels_that_everybody_has_are_not_inferred(audits):
    assert audits["open"].has_labels == ("server", "hospital", "bank", "insurer")
    assert party_labels(audits["open"]) == 1.0
    assert audits["server"].has_labels == ("server",)


def test_gradients_of_a_classifier_give_labels_away(audits):
    """A linear server model without compression: g = (p - y) W, which a few known labels, or none, sort by class."""
    assert party_labels(audits["server"]) > 0.99
    assert not any(each.attack == WEIGHTS for audit in audits.values() for each in audit.labels)


def test_figures_have_their_baselines(audits):
    audit = audits["open"]
    assert (audit.known, audit.rows) == (67, 134)
    for found in audit.features:
        assert found.r2 == pytest.approx(1 - found.mse / found.baseline_mse)
        assert found.best >= found.r2
        assert re.fullmatch(r"column \d+", found.best_column)
    assert all(0 <= r2 < 0.9 for r2 in audit.by_labels.values())
    assert server_features(audit) > max(audit.by_labels.values())
    few = [found.score for found in audit.labels if found.attack == FEW_KNOWN]
    assert server_labels(audit) == max(few) <= 1


def test_a_sum_gives_less_away_than_its_parts(audits):
    assert server_features(audits["secure"]) < server_features(audits["open"]) - 0.1
    assert audits["secure"].privacy == "secure aggregation"
    assert audits["secure"].compressor == "scalar:bits=4,low=-1,high=1"


def test_roles_do_not_move(wine):
    subject = Subject.of(wine["open"], lambda *_: None)
    models = [subject.federation.server.model, *(party.model for party in subject.federation.parties)]
    before = [value.detach().clone() for model in models for value in model.parameters()]
    for _ in rounds(subject.federation.server, subject.federation.parties, Meter(), 1):
        pass
    after = [value for model in models for value in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("privacy", "told"),
    [
        ({}, "open"),
        ({"labels": "server"}, "labels at the server"),
        ({"labels": "bank", "clip": 1.0, "noise": 0.5}, "labels at bank, noise 0.5"),
        ({"clip": 2.0}, "clip 2"),
        (
            {"aggregation": "secure", "clip": 1.0, "noise": 2.0, "noise_shared": True},
            "secure aggregation, shared noise 2",
        ),
    ],
)
def test_privacy_modes_have_names(privacy, told):
    values = {"data": {"name": "digits"}, "step_size": {"eta": 0.1}, "rounds": 1, "privacy": privacy}
    values["server_model"] = {"name": "sum"}
    assert privacy_mode(parse_config(values)) == told


def test_a_relay_sees_nothing_and_the_label_holder_what_a_server_sees(audits):
    audit = audits["holder"]
    assert (audit.blind, audit.has_labels, audit.privacy) == (("server",), ("bank",), "labels at bank")
    assert server_features(audit) is audit.bits is None
    features = [found.r2 for found in audit.features if not found.held_out]
    assert party_features(audit) == max(features)
    assert party_labels(audit) == max(found.score for found in audit.labels if found.observers != ("bank",))
    seen = {(found.observers, found.sees, found.party) for found in audit.features}
    for kind in ("embedding", "held-out embedding"):
        assert {(found[0], found[2]) for found in seen if found[1] == kind} == {
            (("bank",), "hospital"),
            (("bank",), "insurer"),
        }
    assert {found[0] for found in seen if found[1] == "gradient"} == {("hospital",), ("insurer",)}
    columns, labels = run_tables(audit)
    assert columns.rows[0][:4] == ("server", "sealed messages", "–", "nothing")
    assert labels.rows[0][3:] == ("nothing", "nothing", "nothing", "no")
    assert {row[0] for row in columns.rows} == {"server", "label holder", "a party", "anybody"}


def test_noise_hides_columns_and_takes_more_looks_at_held_out_rows(audits):
    assert server_features(audits["noise"]) < server_features(audits["open"]) - 0.3
    assert held_out_features(audits["noise"]) < held_out_features(audits["open"]) - 0.3
    assert {found.looks for found in audits["noise"].features if found.held_out} == {1, 2}


def cells(page: str, label: str) -> list[list[str]]:
    found = re.search(rf'aria-label="{label}">(.*?)</table>', page, re.DOTALL)
    assert found, label
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in found[1].split("</tr>")]
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in rows if row]


def test_a_report_shows_audits_beside_accuracy_and_bytes(wine, audits, tmp_path):
    runs = [Path(shutil.copytree(wine[name], tmp_path / name)) for name in ("open", "server", "folded")]
    for run in runs[:2]:
        write_audit(audits[run.name], run)
    assert call("report", tmp_path, "--out", tmp_path / "report.html")[0] == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    head, *rows = cells(page, "Results")
    at = head.index("Party: labels")
    assert [row[at] for row in rows] == ["–", "has them", "1.000"]  # auto comes first, and was not audited
    assert [row[head.index("Server: columns R²")] for row in rows[1:]] == [
        f"{server_features(audits[name]):.3f}" for name in ("open", "server")
    ]
    assert len(cells(page, "Leakage")) == 3
    assert len(cells(page, "Columns from what is seen: .*?")) > 4


def test_a_published_record_keeps_the_audit(run, audits, tmp_path):
    write_audit(audits["open"], run)
    compact(run, tmp_path / "small", "accuracy")
    assert read_run(tmp_path / "small").audit == audits["open"]


def test_columns_of_tables_have_their_names(tmp_path):
    rng = np.random.default_rng(1)
    income, age = rng.normal(size=200), rng.integers(20, 80, size=200)
    town = rng.choice(["Rome", "Oslo", "Lima"], size=200)
    late = (income + rng.normal(size=200) / 2 < 0).astype(int)
    bank = [f"{n},{income[n]:.4f},{'' if n % 9 == 0 else age[n]},{late[n]}" for n in range(200)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,income,age,late", *bank]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,town", *(f"{n},{town[n]}" for n in range(200))]))
    party = '[party.{0}]\ntable = "{0}.csv"\n'
    tables = party.format("bank") + 'label = "late"\n' + party.format("shop")
    data = '[data]\nid = "id"\nalignment = "aligned"\n'
    text = f'epochs = 2\ncompressor = "identity"\n{data}[step_size]\neta = 0.1\n{tables}'
    run = train(tmp_path, text, "run")
    subject = Subject.of(run, lambda *_: None)
    assert subject.columns(1, 10).names == ("income", "age", "age")  # the third says whether it was missing
    assert subject.columns(2, 10).names == ("town",) * 3
    found = audit_run(run).features
    assert {each.best_column for each in found if each.party == "bank"} <= {"income", "age"}
    assert {each.best_column for each in found if each.party == "shop"} == {"town"}


def changed(run: Path, name: str, **values: object) -> None:
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def no_config(run: Path) -> None:
    (run / "config.json").unlink()


def no_parameters(run: Path) -> None:
    (run / "parameters" / "bank.safetensors").unlink()


def other_parameters(run: Path) -> None:
    shutil.copy(run / "parameters" / "hospital.safetensors", run / "parameters" / "insurer.safetensors")


def damaged_parameters(run: Path) -> None:
    (run / "parameters" / "server.safetensors").write_bytes(b"no tensors")


def other_hash(run: Path) -> None:
    changed(run, "summary.json", parameters={"server": "0" * 64})


def data_elsewhere(run: Path) -> None:
    changed(run, "config.json", data={"name": "credit_default", "path": "nowhere"})


def tables_elsewhere(run: Path) -> None:
    changed(run, "config.json", data={"id": "id"}, party={"hospital": {}, "bank": {"table": "bank.csv"}})


def other_rows(run: Path) -> None:
    changed(run, "config.json", data={"name": "wine", "parties": 3, "test_share": 0.5})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, "no run directory to audit, it has no config.json"),
        (no_parameters, "bank.safetensors: not there; an audit needs the final parameters of every role"),
        (other_parameters, "insurer.safetensors: does not hold the parameters|not the parameters that summary.json"),
        (damaged_parameters, "server.safetensors: does not hold the parameters of the configured model"),
        (other_hash, "server.safetensors: not the parameters that summary.json has the hash of"),
        (data_elsewhere, "an audit needs the data of all parties, as in training: data.path: there is no folder"),
        (tables_elsewhere, "an audit needs the data of all parties, as in training: party.hospital has no table"),
        (other_rows, "the data here has 89 training rows, the run had 134"),
    ],
)
def test_what_cannot_be_audited_is_one_line(run, damage, message):
    damage(run)
    code, output = call("audit", run)
    assert code == 2
    assert re.search(message, " ".join(output.split()))
    assert "Traceback" not in output
    assert not (run / "audit.json").exists()


def test_a_folder_without_a_run_is_one_line(tmp_path):
    code, output = call("audit", tmp_path / "nothing")
    assert code == 2
    assert "there is no run directory" in output


def test_ctrl_c_leaves_the_run_as_it_was(run, monkeypatch):
    def interrupted(path, on_step):
        on_step("attacking", 1, 2)
        raise KeyboardInterrupt

    before = sorted(path.name for path in run.iterdir())
    monkeypatch.setattr(import_module("cvfl.cli.audit"), "audit_run", interrupted)
    code, output = call("audit", run)
    assert (code, output.split()[-1]) == (130, "stopped")
    assert sorted(path.name for path in run.iterdir()) == before


def test_resume_audits_what_is_not_audited_yet(run, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    assert call("audit", run)[0] == 0
    before, audited, audit_run = (run / "audit.json").stat().st_mtime_ns, [], import_module("cvfl.cli.audit").audit_run

    def noted(path, on_step):
        audited.append(path)
        return audit_run(path, on_step)

    monkeypatch.setattr(import_module("cvfl.cli.audit"), "audit_run", noted)
    code, output = call("audit", run, other, "--resume")
    assert code == 0, output
    assert audited == [other]
    assert (run / "audit.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", '{"bits": "many"}'])
def test_an_audit_that_is_not_as_written_is_refused_by_name(run, text):
    (run / "audit.json").write_text(text)
    with pytest.raises(DataError, match=r"audit\.json: "):
        read_run(run)


def test_help_has_an_example():
    assert "Example: cvfl audit" in " ".join(call("audit", "--help")[1].split())


def test_what_told_labels_add_is_within_their_bound(wine, audits):
    audit = audits["told"]
    alone = audit_told(wine["told"])
    assert [(one.observer, one.own) for one in alone] == [(one.observer, one.own) for one in audit.told]
    assert all(one.within for one in alone)
    assert audit.privacy == "labels told with epsilon 1.5"
    assert audit.has_labels == ("bank",)
    assert [one.observer for one in audit.told] == ["server", "hospital", "insurer"]
    for one in audit.told:
        assert one.within
        assert one.kept == pytest.approx(1 / (1 + 2 * math.exp(-1.5)))
        assert one.bound >= max(one.kept - 1e-9, one.chance - 3 * one.error)
        assert one.joint > 0.5
    assert not any(found.told for name, found in audits.items() if name != "told")


@pytest.mark.parametrize(
    ("changes", "sees", "of"),
    [
        (("folding=true",), ("embedding", "held-out embedding"), {"hospital", "insurer"}),
        (SECURE, ("sum of all", "held-out sum of all"), {"hospital", "insurer"}),
    ],
    ids=["open", "secure"],
)
def test_the_holder_of_a_private_model_is_told_all_rows_once_more(changes, sees, of, tmp_path):
    told = ("privacy.labels=bank", "privacy.label_epsilon=1.5", *changes)
    audit = audit_run(train(tmp_path, WINE, "private", *told, "privacy.private_model=true"))
    plain = audit_run(train(tmp_path, WINE, "told", *told))
    more = [found for found in audit.features if found not in plain.features]
    told_of = {(found.observers, found.sees, found.party) for found in more}
    assert told_of == {(("bank",), kind, name) for kind in sees for name in of}
    assert {(found.stage, found.looks, found.held_out) for found in more} == {("end", 1, False), ("end", 1, True)}
    assert all(found.held_out == (found.sees == sees[1]) for found in more)
    assert all(found.r2 > 0.05 for found in more if not found.held_out)
    assert [found for found in audit.features if found not in more] == list(plain.features)
    assert audit.told == plain.told  # the others hear nothing of it


def test_an_attacker_that_knows_more_than_was_told_is_beyond_the_bound():
    """The check can fail: by true labels in the place of told ones guesses are right more often than epsilon allows."""
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 2, 4000))
    own = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (4000, 3)))
    noise = Randomised(1.0)
    drawn = tell_classes(bytes(32), noise, "y", map(str, range(4000)), y.numpy(), ["0", "1"])
    fine, leaking = (_attack("a", noise, own, [], y, torch.as_tensor(told), Loss.BINARY) for told in (drawn, y))
    assert fine.within
    unsure = torch.full((4000, 2), 0.5, dtype=torch.float64)
    unsure[:, 1] += 0.01 * (2 * y - 1)  # right in every row, and not sure of any
    assert calibrated(unsure, y)[y == 1, 1].min() > 0.99
    assert fine.right_joint == pytest.approx(noise.keep(2), abs=4 * fine.error)
    assert not leaking.within
