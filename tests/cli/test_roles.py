"""`cvfl certs`, `cvfl server` and `cvfl party` as an operator meets them: help, mistakes, exit codes."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cases import settings, write_config
from conformance.processes import Processes
from cvfl.cli import app
from cvfl.config.files import load_config
from cvfl.federation.train import train
from cvfl.runtime.grpc.certificates import make_certificates

pytestmark = pytest.mark.usefixtures("no_pages")


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*arguments: object) -> str:
    """The one line of an error; the exit code is 2."""
    code, output = call(*arguments)
    assert code == 2, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration for wine with two parties, and certificates."""
    write_config(tmp_path / "fed.toml", settings(rounds=3))
    make_certificates(tmp_path / "certs", ["127.0.0.1"], ["hospital", "bank"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


CERTS = ("--set", "network.certificates=certs")


@pytest.mark.parametrize("command", ["certs", "server", "party"])
def test_help_shows_an_example(command: str) -> None:
    code, output = call(command, "--help")
    assert code == 0
    assert f"cvfl {command} " in output.split("Example:")[1]


@pytest.mark.parametrize("arguments", [("certs",), ("server",), ("party", "fed.toml"), ("party",)])
def test_what_must_be_given(arguments: tuple[str, ...], folder: Path) -> None:
    code, output = call(*arguments)
    assert code == 2
    assert "Missing" in output


def test_certificates_are_made(folder: Path) -> None:
    code, output = call("certs", "new", "--server", "example.org", "--party", "bank", "--days", 2)
    assert code == 0
    assert sorted(path.name for path in (folder / "new").iterdir()) == [
        "bank.crt",
        "bank.key",
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
    ]
    assert "new/bank.key" in output


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("certs", "new"), "say for whom: --server HOST, --party NAME, or both"),
        (("certs", "new", "--server", "x", "--party", "server"), "'server' is no name for a party"),
        (("certs", "certs", "--party", "bank"), "certs/bank.crt or its key is there already; --force replaces both"),
        (("certs", "fed.toml", "--server", "x", "--party", "bank"), "fed.toml: cannot be written: File exists"),
        (("certs", "new", "--server", "a b", "--party", "bank"), "'a b' is no name"),
        (("server", "fed.tml"), "fed.tml: no such file"),
        (("server", "fed.toml"), "network.certificates: say where the certificates are; `cvfl certs request`"),
        (("party", "fed.toml", "--name", "bank"), "network.certificates: say where"),
        (
            ("server", "fed.toml", "--set", "network.certificates=nowhere"),
            "nowhere/ca.crt: No such file or directory; ask the authority for it: cvfl certs request",
        ),
        (
            ("server", "fed.toml", "--insecure", "--set", "network.address=0.0.0.0:0"),
            "--insecure is for this machine only, not for 0.0.0.0:0",
        ),
        (
            ("party", "fed.toml", "--name", "bank", "--insecure", "--set", "network.address=example.org:8443"),
            "--insecure is for this machine only, not for example.org:8443",
        ),
        (
            ("party", "fed.toml", "--name", "shop", *CERTS),
            "'shop' is no party of this federation (hospital, bank)",
        ),
        (("server", "fed.toml", "--set", "network.on_missing=perhaps"), "network.on_missing"),
        (("server", "fed.toml", "--set", "network.wait_limit=0"), "network.wait_limit"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], line: str, folder: Path) -> None:
    assert line in refused(*arguments)


def test_a_party_of_tables(folder: Path) -> None:
    (folder / "own.toml").write_text(
        'rounds = 1\n[data]\nid = "ID"\n[step_size]\neta = 0.1\n[party.bank]\nlabel = "y"\n[party.shop]\n'
    )
    assert "there is no section party.shopp; did you mean 'shop'?" in refused("party", "own.toml", "--name", "shopp")
    assert "party.shop has no table; give table, or url and query" in refused("party", "own.toml", "--name", "shop")


def test_a_run_directory_that_is_taken_is_refused_before_the_run(folder: Path) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "file").write_text("mine")
    assert "taken exists already; choose another --out" in refused("server", "fed.toml", *CERTS, "--out", "taken")


@pytest.mark.parametrize("command", [("server",), ("party", "--name", "bank")])
def test_results_that_cannot_be_written_are_refused_before_the_run(command: tuple[str, ...], folder: Path) -> None:
    (folder / "file").write_text("in the way")
    line = refused(*command, "fed.toml", *CERTS, "--out", "file/there")
    assert line == "file/there: cannot be written: Not a directory"


@pytest.mark.parametrize("command", [("server",), ("party", "--name", "bank")])
def test_a_state_folder_that_holds_other_things(command: tuple[str, ...], folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "file").write_text("mine")
    assert "mine holds other things than the state of a role" in refused(*command, "fed.toml", "--state", "mine")
    assert (folder / "mine" / "file").read_text() == "mine"


def test_a_port_that_is_taken(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("server", "fed.toml", *CERTS, "--set", f"network.address={address}")
    assert line == f"{address} cannot be listened on; is another server there?"


@pytest.mark.parametrize("secure", [CERTS, ("--insecure",)])
def test_nobody_comes(secure: tuple[str, ...], folder: Path) -> None:
    limit = ("--set", "network.wait_limit=0.5", "--set", "network.address=127.0.0.1:0")
    assert refused("server", "fed.toml", *secure, *limit) == "hospital and bank did not come within 1 s"


def test_no_server(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    options = ("--set", "network.wait_limit=0.5", "--set", f"network.address={address}")
    assert f"bank: no server at {address} for" in refused("party", "fed.toml", "--name", "bank", *CERTS, *options)


@pytest.mark.parametrize("arguments", [("server", "fed.toml"), ("party", "fed.toml", "--name", "bank")])
def test_without_the_libraries_of_the_extra(
    arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("grpc.", "cvfl.runtime.grpc."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert refused(*arguments) == "this command needs: pip install 'cvfl[grpc]'"


def test_terms_that_differ_are_named_on_both_sides(folder: Path) -> None:
    with Processes(folder / "fed.toml", folder, ("hospital", "bank")) as roles:
        roles.start("server")
        while not roles.events("server"):
            assert roles.children["server"].poll() is None, roles.errors("server")
            time.sleep(0.05)
        options = ("--set", f"network.address={roles.address}", "--set", "step_size.eta=0.2", "--log-json")
        line = refused("party", "fed.toml", "--name", "bank", *CERTS, *options)
        assert roles.wait() == {"server": 2}
    differs = "step_size differs: bank has {'eta': 0.2, "
    assert line.startswith(f"bank: the server stopped: {differs}")
    assert "the server {'eta': 0.1, " in line
    assert differs in roles.errors("server")
    assert roles.events("server")[0]["event"] == "listening"


def test_what_a_role_starts_from_is_one_thing(folder: Path) -> None:
    started = ("party", "fed.toml", "--name", "bank", *CERTS)
    number = "0123456789abcdef"
    assert refused(*started, "--from", "models", "--joins", number).startswith("--joins is for a party that was not in")
    assert refused(*started, "--predict", "--from", "models").startswith("--predict trains nothing")
    assert refused("server", "fed.toml", *CERTS, "--predict", "--from", "run").startswith("--predict trains nothing")
    assert refused(*started, "--joins", "april") == (
        "--joins: 'april' is no number of a run; the others find it with `cvfl model show`"
    )
    assert refused(*started, "--from", "models") == (
        "models: no bundle is there; name a run directory, or the folder of a role's model"
    )
    train(load_config(folder / "fed.toml"), out=folder / "run", workers=1)
    folders = ("--from", "run/parameters", "--out", "run/parameters")
    assert refused(*started, *folders).startswith("--from: the models of this run go to run/parameters, too")
    assert refused(*started[:3], "shop", *CERTS, "--from", "run") == "run: there is no model of shop; name its folder"
