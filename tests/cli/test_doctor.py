"""`cvfl doctor`: each thing that may be wrong at a role is one line with what to do, and a run is never disturbed."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.cases import SERVER, settings, write_config
from conformance.network import free_port
from conformance.outcome import in_process, same
from conformance.peers import signed
from conformance.threads import Threads, threads
from cvfl.cli import app
from cvfl.runtime.grpc.certificates import make_certificates

CONFIG = settings(rounds=3)
TABLE = """\
rounds = 1
data.id = "ID"
step_size.eta = 0.1
[party.bank]
table = "bank.csv"
label = "y"
[party.shop]
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threads]:
    """A server that waits for its parties."""
    with threads(CONFIG, tmp_path_factory.mktemp("server")) as waiting:
        waiting.start(SERVER)
        yield waiting


@pytest.fixture
def folder(federation: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a party, its certificates, and the server to go to."""
    write_config(tmp_path / "fed.toml", CONFIG)
    shutil.copytree(federation.certs, tmp_path / "certs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    free = namedtuple("free", "free")(10**12)
    monkeypatch.setattr("cvfl.doctor.machine.shutil.disk_usage", lambda path: free)
    monkeypatch.setattr("cvfl.doctor.machine.psutil.virtual_memory", lambda: SimpleNamespace(available=10**12))
    return tmp_path


def asked(
    address: str, *more: str, name: str = "bank", file: str = "fed.toml"
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by what they are about; of several the worst."""
    sets = ("--set", f"network.address={address}", "--set", "network.certificates=certs")
    result = CliRunner().invoke(app, ["doctor", file, "--name", name, *sets, "--json", *more])
    assert result.exit_code in (0, 1), result.output
    told = json.loads(result.stdout)
    assert told["fine"] == (result.exit_code == 0)
    assert told["role"] == name
    order = ["fine", "look", "wrong"]
    findings = sorted(told["findings"], key=lambda one: order.index(one["health"]))
    for one in findings:
        assert "\n" not in one["found"] + one["remedy"]
        assert bool(one["remedy"]) == (one["health"] != "fine")
    return result.exit_code, {one["what"]: one for one in findings}


def test_a_party_that_has_all_it_needs(federation: Threads, folder: Path) -> None:
    code, found = asked(federation.address)
    assert (code, {one["health"] for one in found.values()}) == (0, {"fine"}), found
    assert list(found)[:6] == ["versions", "configuration", "clock", "certificate", "key", "server"]
    assert {"TLS", "protocol", "table", "state", "disk", "memory", "threads"} <= set(found)
    assert "bank is let in" in found["protocol"]["found"]


def test_people_read_a_table(federation: Threads, folder: Path) -> None:
    sets = ["--set", f"network.address={federation.address}", "--set", "network.certificates=certs"]
    result = CliRunner().invoke(app, ["doctor", "fed.toml", "--name", "bank", *sets])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "bank can take part"
    (folder / "certs" / "bank.key").chmod(0o644)
    result = CliRunner().invoke(app, ["doctor", "fed.toml", "--name", "bank", *sets])
    assert result.exit_code == 1
    assert "what to do" in result.stdout
    assert result.stdout.splitlines()[-1] == "bank cannot take part yet"


def test_a_run_that_goes_on_is_not_disturbed(folder: Path) -> None:
    """The doctor of a party that trains, and of one that is awaited: the run ends in the same bits."""
    config = settings(rounds=30)
    with threads(config, folder / "run") as federation:
        shutil.rmtree(folder / "certs")
        shutil.copytree(federation.certs, folder / "certs")
        federation.start(SERVER)
        federation.start("hospital")
        assert asked(federation.address)[0] == 0
        assert "takes part there now" in asked(federation.address, name="hospital")[1]["server"]["found"]
        federation.start("bank")
        asked(federation.address)
        same(federation.outcome(), in_process(config))


def test_a_server_that_listens_and_one_that_could(federation: Threads, folder: Path) -> None:
    code, found = asked(federation.address, name=SERVER)
    assert code == 1
    assert "cannot be listened on: Address already in use" in found["address"]["found"]
    code, found = asked(f"127.0.0.1:{free_port()}", name=SERVER)
    assert (code, found["address"]["health"]) == (0, "fine")
    assert "at 127.0.0.1, localhost" in found["certificate"]["found"]
    assert "table" not in found


Break = Callable[[Path], Any]


def other_authority(folder: Path) -> None:
    shutil.rmtree(folder / "certs")
    make_certificates(folder / "certs", ["127.0.0.1"], ["hospital", "bank"])


def mixed_authority(folder: Path) -> None:
    make_certificates(folder / "other", ["127.0.0.1"], ["bank"])
    shutil.copy(folder / "other" / "ca.crt", folder / "certs")


def of_the_hospital(folder: Path) -> None:
    for end in ("crt", "key"):
        shutil.copy(folder / "certs" / f"hospital.{end}", folder / "certs" / f"bank.{end}")


def dated(begins: float, ends: float) -> Break:
    def put(folder: Path) -> None:
        own = signed(folder / "certs", "bank", begins, ends)
        (folder / "certs" / "bank.crt").write_bytes(own.certificate)
        (folder / "certs" / "bank.key").write_bytes(own.key)

    return put


BROKEN: dict[str, tuple[Break, str, str, str]] = {
    "no certificate": (
        lambda at: (at / "certs/bank.crt").unlink(),
        "certificate",
        "wrong",
        "No such file or directory",
    ),
    "no authority": (lambda at: (at / "certs/ca.crt").unlink(), "certificate", "wrong", "ca.crt: No such file"),
    "garbage": (lambda at: (at / "certs/bank.crt").write_text("x"), "certificate", "wrong", "is not what it should"),
    "a key of others": (
        lambda at: shutil.copy(at / "certs/hospital.key", at / "certs/bank.key"),
        "certificate",
        "wrong",
        "do not belong together",
    ),
    "a key that all read": (lambda at: (at / "certs/bank.key").chmod(0o640), "key", "wrong", "others than its user"),
    "another role's": (of_the_hospital, "certificate", "wrong", "is for ['hospital'], not 'bank'"),
    "another authority": (other_authority, "server", "wrong", "is not of the authority of your ca.crt"),
    "two authorities": (mixed_authority, "certificate", "wrong", "is not of the authority of"),
    "out of date": (dated(-9, -1), "certificate", "wrong", "not today"),
    "soon out of date": (dated(-9, 9), "certificate", "look", "for bank, until"),
    "a certificate of tomorrow": (dated(1, 9), "clock", "wrong", "and a certificate here begins at"),
    "a state that others read": (
        lambda at: (at / "state" / "fed" / "bank").mkdir(parents=True, mode=0o755),
        "state",
        "wrong",
        "others than its user can open",
    ),
    "a state that is a file": (lambda at: (at / "state").write_text("x"), "state", "wrong", "cannot be written"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_may_be_wrong_at_a_party(what: str, federation: Threads, folder: Path) -> None:
    breaks, line, health, said = BROKEN[what]
    breaks(folder)
    code, found = asked(federation.address)
    assert found[line]["health"] == health, found
    assert said in found[line]["found"]
    assert code == (health == "wrong")


def test_nobody_is_there(folder: Path) -> None:
    _, found = asked(f"127.0.0.1:{free_port()}")
    assert "connection refused" in found["server"]["found"]
    _, found = asked("no-such-machine.invalid:8443")
    assert "no machine has that name" in found["server"]["found"]
    _, found = asked("here")
    assert "is no HOST:PORT" in found["server"]["found"]


def test_who_answers_is_no_server(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cvfl.runtime.grpc.probe.SECONDS", 0.2)
            patch.setattr("cvfl.runtime.grpc.probe.server_certificate.__defaults__", (0.2,))
            _, found = asked(f"127.0.0.1:{silent.getsockname()[1]}")
    assert "no TLS handshake" in found["server"]["found"]


def test_a_name_that_the_server_s_certificate_does_not_have(folder: Path) -> None:
    shutil.rmtree(folder / "certs")
    make_certificates(folder / "certs", ["localhost"], ["hospital", "bank"])
    with threads(CONFIG, folder) as federation:
        federation.start(SERVER)
        _, found = asked(federation.address)
    assert "its certificate is not for 127.0.0.1" in found["server"]["found"]


def test_a_party_that_the_server_does_not_know(federation: Threads, folder: Path) -> None:
    make_certificates(folder / "certs", [], ["stranger"])
    _, found = asked(federation.address, name="stranger")
    assert "'stranger' is no party of this federation" in found["server"]["found"]
    assert "is no party of wine" in found["table"]["found"]


def test_another_version(federation: Threads, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cvfl.doctor.network.PROTOCOL", 99)
    code, found = asked(federation.address)
    assert code == 1
    assert found["protocol"]["found"].endswith("this is version 99")


def test_the_table(federation: Threads, folder: Path) -> None:
    (folder / "own.toml").write_text(TABLE)
    own = ("--set", "data.alignment=private")

    def found() -> dict[str, Any]:
        return asked(federation.address, *own, file="own.toml")[1]

    assert "bank.csv" in found()["table"]["found"]
    assert found()["table"]["health"] == "wrong"
    rows = "".join(f"p{n},{n % 7},{'yes' if n % 2 else 'no'}\n" for n in range(20))
    (folder / "bank.csv").write_text("ID,income,y\n" + rows)
    seen = found()
    assert "20 rows, 1 columns are used" in seen["table"]["found"]
    assert (seen["ids"]["found"], seen["label"]["found"]) == ("ID: 20 different ones", "y: no, yes")
    (folder / "bank.csv").write_text("ID,income,y\n" + rows + "p1,3,no\n")
    assert found()["ids"]["health"] == "wrong"
    (folder / "bank.csv").write_text("person,income,y\n" + rows)
    assert "'ID'" in found()["table"]["found"]
    _, seen = asked(federation.address, name="shop", file="own.toml")
    assert "party.shop has no table" in seen["table"]["found"]


def test_a_full_disk_and_little_memory(federation: Threads, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cvfl.doctor.machine.shutil.disk_usage", lambda path: SimpleNamespace(free=5e6))
    monkeypatch.setattr("cvfl.doctor.machine.psutil.virtual_memory", lambda: SimpleNamespace(available=5e6))
    code, found = asked(federation.address)
    assert (code, found["disk"]["health"], found["memory"]["health"]) == (1, "wrong", "look")
    assert found["disk"]["found"].startswith("5.0 MB free")


def test_a_configuration_that_cannot_be_read(folder: Path) -> None:
    (folder / "fed.toml").write_text((folder / "fed.toml").read_text().replace("batch_size", "batch_sice"))
    code, found = asked("127.0.0.1:1")
    assert code == 1
    assert "unknown key 'batch_sice'" in found["configuration"]["found"] + found["configuration"]["remedy"]


def test_without_certificates(federation: Threads, folder: Path) -> None:
    _, found = asked(federation.address, "--set", "network.certificates=nowhere")
    assert "nowhere/ca.crt: No such file or directory" in found["certificate"]["found"]
    told = found["certificate"]["remedy"]
    assert told == "ask the authority for it: cvfl certs request nowhere --party bank"
    assert CliRunner().invoke(app, told.partition("cvfl ")[2].split()).exit_code == 0  # it can be typed as it stands
    assert (folder / "nowhere" / "bank.key").exists()
    sets = ["--set", f"network.address={federation.address}", "--json"]
    result = CliRunner().invoke(app, ["doctor", "fed.toml", "--name", "bank", *sets])
    assert "network.certificates is not set" in result.stdout
    assert datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d") in result.stdout
