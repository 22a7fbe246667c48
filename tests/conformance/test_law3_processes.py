"""Law 3 for real connections and processes: networks that fail, kill -9, Ctrl-C, and thousands of rounds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cases import SERVER, settings, table_settings, write_config, write_tables
from conformance.network import Proxy
from conformance.outcome import in_process, same
from conformance.peers import Puppet, until
from conformance.processes import Processes
from conformance.threads import Threads, threads
from cvfl.cli import app
from cvfl.config.schema import RunConfig
from cvfl.federation.roles import PartyRun
from cvfl.wire.control import CONTROL, End, decode_control
from cvfl.wire.frame import kind_of

pytestmark = pytest.mark.usefixtures("tidy")


def test_a_party_killed_when_it_should_hear_the_end(tmp_path: Path) -> None:
    """By gRPC: the connection breaks without a word after the last round; the server stays until the party is back."""
    config = settings()
    with threads(config, tmp_path) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        with federation.stack:
            bank = PartyRun(config, "bank", tmp_path / "state" / "bank", federation.stack)
            puppet = Puppet(federation.address, federation.identity("bank"))
            puppet.say(bank.role.hello())
            while True:
                frame = puppet.hear()
                assert frame is not None
                if kind_of(frame) == CONTROL and isinstance(decode_control(frame)[1], End):
                    break
                for reply in bank.role.receive(frame):
                    puppet.say(reply)
            puppet.vanish()
            time.sleep(0.7)
            assert federation._threads[SERVER].is_alive()
            bank.close()
            federation.start("bank")
            same(federation.outcome(), in_process(config))


def test_a_server_killed_while_it_writes_what_a_run_leaves(tmp_path: Path) -> None:
    """Started again it writes the rest, in the same folder, although the parties have gone and its last checkpoint is
    damaged; one of another configuration it does not touch."""
    config, left = settings(), tmp_path / "run"
    with Processes(config, tmp_path) as roles:
        roles.start_all()
        until((left / "summary.json").exists, 120)
        assert not (left / "report.html").exists()
        roles.kill(SERVER)
        (left / "parameters" / "server.safetensors").unlink()
        kept = [path for path in (tmp_path / "state" / SERVER).glob("*/checkpoints/*") if ".again" not in path.name]
        max(kept).write_bytes(max(kept).read_bytes()[:-9])
        roles.start(SERVER)
        same(roles.outcome(), in_process(config))
        assert (left / "report.html").exists()
    (left / "state").mkdir()
    write_config(tmp_path / "other.toml", settings(seed=4))
    command = [SERVER, str(tmp_path / "other.toml"), "--insecure", "--out", str(left), "--state", str(tmp_path / "new")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "was begun with another configuration: seed differs" in " ".join(refused.output.split())


@contextmanager
def through_proxy(config: RunConfig, folder: Path, pause: float, **options: float) -> Iterator[tuple[Threads, Proxy]]:
    """A federation whose parties reach the server through a proxy and take their time for every frame."""
    with threads(config, folder) as federation:
        proxy = Proxy(federation.address)
        federation.address = proxy.address
        federation.start(SERVER)
        for name in federation.names:
            federation.start(name, on_round=lambda: time.sleep(pause), **options)
        yield federation, proxy
        proxy.close()


def until_round(federation: Threads, t0: int) -> None:
    until(lambda: len(federation.server._journal.lines) >= t0, 30.0)


def test_a_cut_and_a_stall_of_the_network(tmp_path: Path) -> None:
    config = settings(rounds=30, evaluate_every=10, every=5)
    with through_proxy(config, tmp_path, 0.02) as (federation, proxy):
        until_round(federation, 4)
        proxy.cut(0.5)
        until_round(federation, 10)
        proxy.stall(3.0)
        until_round(federation, 20)
        proxy.cut()
        same(federation.outcome(), in_process(config))
    assert federation.waits["bank"]


@pytest.mark.slow
@pytest.mark.parametrize("drop", [False, True])
def test_half_a_minute_without_network(drop: bool, tmp_path: Path) -> None:
    config = settings(rounds=60, evaluate_every=20)
    with through_proxy(config, tmp_path, 0.05) as (federation, proxy):
        until_round(federation, 10)
        proxy.cut(35.0) if drop else proxy.stall(35.0)
        federation.join(120)
        same(federation.outcome(), in_process(config))


def test_patience_is_counted_from_the_last_word_of_the_server(tmp_path: Path) -> None:
    """A cut after a long session is no reason to give up at once."""
    config = settings(rounds=34)
    with through_proxy(config, tmp_path, 0.15, wait_limit=4.0) as (federation, proxy):
        time.sleep(4.5)
        until_round(federation, 8)
        proxy.cut()
        same(federation.outcome(), in_process(config))


@pytest.mark.slow
def test_processes_that_are_killed_and_interrupted(tmp_path: Path) -> None:
    """Real processes with certificates: kill -9 of a party, of the server, of all, and Ctrl-C; and what logs say."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=120, every=5, evaluate_every=40)
    with Processes(config, tmp_path, ("bank", "shop")) as roles:
        roles.environment = {"GRPC_VERBOSITY": "debug", "PYTHONPATH": str(debugging(tmp_path))}
        roles.start_all()
        at = roles.until_round(10)
        roles.kill("shop")
        roles.start("shop")
        at = roles.until_round(20, at)
        roles.kill(SERVER)
        roles.start(SERVER)
        at = roles.until_round(30, at)
        roles.kill(SERVER, "bank", "shop")
        roles.start_all()
        roles.until_round(40, at)
        assert roles.interrupt("bank") == 130
        assert roles.interrupt(SERVER) == 130
        for role in ("bank", SERVER):
            assert [line for line in roles.errors(role).splitlines() if line == "stopped"] == ["stopped"]
            assert list((tmp_path / "state" / role).glob("*/checkpoints"))
            roles.start(role)
        same(roles.outcome(120), in_process(config))
    left = [path for folder in ("run", "models") for path in (tmp_path / folder).rglob("*")]
    assert len(left) > 8
    assert [path for path in left if path.stat().st_mode & 0o077] == []  # for the user alone
    said = b"".join(path.read_bytes() for path in tmp_path.glob("*.out"))
    said += b"".join(path.read_bytes() for path in tmp_path.glob("*.err"))
    assert b"debugging is on" in said
    assert [value for value in secrets(tmp_path) if value in said] == []
    assert "Traceback" not in said.decode(errors="replace")


def debugging(folder: Path) -> Path:
    """A start-up file that makes every logger of a process speak."""
    place = folder / "startup"
    place.mkdir()
    text = "import logging\nlogging.basicConfig(level=logging.DEBUG)\nlogging.debug('debugging is on')\n"
    (place / "sitecustomize.py").write_text(text)
    return place


def secrets(folder: Path) -> list[bytes]:
    """Ids, labels and values of the tables that cannot occur by chance."""
    rows = [line.split(",") for name in ("bank", "shop") for line in (folder / f"{name}.csv").read_text().splitlines()]
    texts = {text for row in rows for text in row if len(text) > 7}
    assert len(texts) > 200
    return [b"person-", b"overdue", b"Trier", b"cvfl\x01", *(text.encode() for text in texts)]


@pytest.mark.slow
def test_ten_thousand_rounds_with_fifty_kills(tmp_path: Path) -> None:
    """And the memory of the server does not grow; each restart goes on from a checkpoint."""
    config = settings(rounds=10_000, every=20, evaluate_every=500)
    draw = random.Random(0)
    with Processes(config, tmp_path) as roles:
        roles.start_all()
        at = roles.until_round(20)
        for kill in range(50):
            at = roles.until_round(190 * kill + draw.randrange(150), at, 120)
            time.sleep(draw.random() / 5)
            roles_hit = draw.choice([[SERVER], ["bank"], ["hospital"], ["bank", "hospital"], [SERVER, *roles.names]])
            roles.kill(*roles_hit)
            for role in roles_hit:
                roles.start(role)
        same(roles.outcome(600), in_process(config))


@pytest.mark.slow
def test_the_memory_of_the_server_does_not_grow(tmp_path: Path) -> None:
    config = settings(rounds=10_000, every=100, evaluate_every=1000)
    with Processes(config, tmp_path) as roles:
        roles.start_all()
        used = []
        for t0 in (1000, 9900):
            roles.until_round(t0, seconds=600)
            status = Path(f"/proc/{roles.children[SERVER].pid}/status").read_text()
            used.append(int(status.split("VmRSS:")[1].split()[0]))
        roles.outcome(120)
    assert used[1] - used[0] < 10_000
