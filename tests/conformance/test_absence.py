"""Parties and servers that are late, slow, gone or never there: waiting is visible and has a limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cases import SERVER
from conformance.network import free_port
from conformance.outcome import Outcome, same
from conformance.peers import CONFIG, Puppet, hello, until
from conformance.threads import Threads, threads

pytestmark = pytest.mark.usefixtures("tidy")


def test_a_late_party_and_a_slow_one(federation: Threads, expected: Outcome) -> None:
    federation.start("hospital", on_round=lambda: time.sleep(0.05))
    until(lambda: federation.server.role.missing == ["bank"])
    time.sleep(0.6)
    assert federation.waits[SERVER][-1] == "bank"
    federation.start("bank")
    same(federation.outcome(), expected)


def test_a_party_that_leaves_when_nobody_may(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path, on_missing="fail") as federation:
        federation.start(SERVER)
        time.sleep(0.6)  # who is not there yet has not left
        federation.start("hospital")
        puppet = Puppet(federation.address, federation.identity("bank"))
        puppet.say(hello("bank"))
        puppet.hear()
        puppet.vanish()
        federation.join()
        assert str(federation.errors[SERVER]) == "bank did not come back within 0 s"
        assert str(federation.errors["hospital"]) == "hospital: the server stopped: bank did not come back within 0 s"


def test_patience_has_a_limit(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path, wait_limit=1.0) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        federation.join(20)
        assert str(federation.errors[SERVER]) == "bank did not come within 1 s"
        assert "bank did not come within 1 s" in str(federation.errors["hospital"])


def test_a_party_without_a_server_gives_up(tmp_path: Path) -> None:
    with threads(CONFIG, tmp_path) as federation:
        federation.address = f"127.0.0.1:{free_port()}"
        federation.start("hospital", wait_limit=1.0)
        federation.join(20)
        assert str(federation.errors["hospital"]).startswith(f"hospital: no server at {federation.address} for ")
        assert federation.waits["hospital"]


def silent() -> tuple[socket.socket, list[socket.socket]]:
    """Who takes connections and says nothing, so that TLS never comes about."""
    return socket.create_server(("127.0.0.1", 0)), []


def deaf() -> tuple[socket.socket, list[socket.socket]]:
    """Who takes no further connection: its queue is full, and the system leaves new ones unanswered."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(3)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    return listener, waiting


@pytest.mark.parametrize("peer", [silent, deaf])
def test_patience_counts_while_a_connection_does_not_come_about(
    peer: Callable[[], tuple[socket.socket, list[socket.socket]]], tmp_path: Path
) -> None:
    """gRPC alone would try for 20 seconds."""
    listener, waiting = peer()
    with threads(CONFIG, tmp_path) as federation:
        federation.address = f"127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        federation.start("hospital", wait_limit=1.5)
        federation.join(15)
        assert 1.5 < time.monotonic() - began < 10
        assert str(federation.errors["hospital"]).startswith(f"hospital: no server at {federation.address} for ")
    for one in (listener, *waiting):
        one.close()
