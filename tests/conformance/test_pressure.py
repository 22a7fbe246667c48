"""Peers that use up descriptors, memory or time: the others finish in the right bits, or hear whose doing it was."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conformance.cases import SERVER, settings, table_settings, write_tables
from conformance.outcome import Outcome, in_process, same
from conformance.peers import CONFIG, Puppet, finishes, hello, signed, until
from conformance.processes import Processes
from conformance.threads import Threads, threads
from cvfl.errors import ExhaustedError, RemoteProtocolError
from cvfl.federation.roles import PartyRun
from cvfl.privacy import alignment
from cvfl.runtime import bytequeue, watch
from cvfl.runtime.bytequeue import PEER
from cvfl.runtime.grpc import server as carrier
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc
from cvfl.runtime.grpc.party import attend
from cvfl.wire import Embedding, Evaluation, Matched, encode
from cvfl.wire.control import Recall, Refusal, Settle, encode_control
from cvfl.wire.read import read_frame

pytestmark = pytest.mark.usefixtures("tidy")
MB = 1 << 20


class Flood:
    """Connections that say nothing, ever again; `closed` counts those that the other end did not keep."""

    def __init__(self, address: str, count: int, again: bool) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._count, self._again = (host, int(port)), count, again
        self._sockets: dict[int, socket.socket] = {}
        self._poll, self._over = select.poll(), threading.Event()
        self.closed = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        for _ in range(self._count):
            self._add()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._sockets.values():
            one.close()

    def _add(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self._target)
        self._sockets[one.fileno()] = one
        self._poll.register(one, select.POLLIN)

    def _run(self) -> None:
        while not self._over.is_set():
            for handle, _ in self._poll.poll(100):
                one = self._sockets[handle]
                data = b""
                with contextlib.suppress(OSError):
                    data = one.recv(100)
                if not data:
                    self._poll.unregister(handle)
                    self._sockets.pop(handle).close()
                    self.closed += 1
                    if self._again:
                        self._add()


def limited(roles: Processes, descriptors: int) -> None:
    """Start the server with so many descriptors at most, and wait until it listens."""
    resource = pytest.importorskip("resource")
    roles.start(SERVER)
    resource.prlimit(roles.children[SERVER].pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    until(lambda: bool(roles.events(SERVER)), 120)


def opened(roles: Processes) -> int:
    return len(os.listdir(f"/proc/{roles.children[SERVER].pid}/fd"))


@pytest.mark.slow
def test_idle_connections_before_the_parties_come(tmp_path: Path) -> None:
    """The server has no descriptor left, and lets the parties in when the handshakes of the others have timed out."""
    config = settings(every=1)
    with Processes(config, tmp_path) as roles:
        limited(roles, 256)
        with Flood(roles.address, 400, again=False) as flood:
            until(lambda: opened(roles) >= 220)
            for name in roles.names:
                roles.start(name)
            same(roles.outcome(120), in_process(config))
        assert flood.closed > 200


@pytest.mark.slow
def test_parties_come_in_beside_idle_connections_without_end(tmp_path: Path) -> None:
    """Four times as many as the server has descriptors, each of which comes again: a party waits for its turn."""
    config = settings(every=1)
    with Processes(config, tmp_path) as roles:
        limited(roles, 256)
        with Flood(roles.address, 900, again=True) as flood:
            until(lambda: opened(roles) >= 220)
            for name in roles.names:
                roles.start(name)
            same(roles.outcome(240), in_process(config))
        assert flood.closed > 900


@pytest.mark.slow
def test_idle_connections_without_end_while_rounds_are_kept(tmp_path: Path) -> None:
    """Whoever is closed comes again: no descriptor is ever free for long, and every round is written down."""
    config = settings(every=1, rounds=400, evaluate_every=50)
    with Processes(config, tmp_path) as roles:
        limited(roles, 256)
        for name in roles.names:
            roles.start(name)
        at = roles.until_round(5)
        with Flood(roles.address, 400, again=True):
            until(lambda: opened(roles) >= 220)
            assert not any(event["event"] == "finished" for event in roles.events(SERVER, at))
            same(roles.outcome(300), in_process(config))


def test_a_server_without_descriptors_tells_nobody_to_stop(federation: Threads) -> None:
    """It ends, is started again and goes on; parties wait for it as for one that has crashed."""

    def exhausted(*_: Any, **__: Any) -> None:
        raise ExhaustedError("state: cannot be written: Too many open files")

    federation.server.role.rounds.save = exhausted
    for name in federation.names:
        federation.start(name)
    federation._threads[SERVER].join(30)
    assert isinstance(federation.errors[SERVER], ExhaustedError)
    until(lambda: all(federation.waits[name] for name in federation.names))
    assert federation.errors.keys() == {SERVER}


def test_a_party_without_descriptors_ends_nobody_elses_run(federation: Threads, expected: Outcome) -> None:
    federation.start("hospital")
    federation.start("bank")
    role = federation.parties["bank"].role

    def exhausted(*_: Any, **__: Any) -> None:
        raise ExhaustedError("state: cannot be written: Too many open files")

    role.rounds._checkpoints.save = exhausted
    federation._threads["bank"].join(30)
    assert isinstance(federation.errors.pop("bank"), ExhaustedError)
    federation.start("bank")
    same(federation.outcome(), expected)


class Seen:
    """The lines that an operator sees."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, int]] = []

    def __call__(self, event: str, **values: Any) -> None:
        self.lines.append((event, values["peer"], values["why"], values["times"]))


@pytest.fixture
def seen() -> Seen:
    return Seen()


def goes_along(federation: Threads, name: str, ends: Callable[[Any], bool]) -> Puppet:
    """A puppet that does as the party would until it hears the message after which it is silent."""
    puppet = Puppet(federation.address, federation.identity(name))
    folder, identity = federation.folder / "puppet", federation.identity(name)
    party = PartyRun(federation.config, name, folder, federation.stack, identity=identity)
    puppet.say(party.role.hello())
    while (frame := puppet.hear(30)) is not None and not ends(read_frame(frame)):
        for reply in party.role.receive(frame):
            puppet.say(reply)
    return puppet


STAGES: dict[str, Callable[[Any], bool]] = {
    "recalled": lambda message: isinstance(message, Recall),
    "settling": lambda message: isinstance(message, Settle),
    "labels": lambda message: isinstance(message, Matched),
    "training": lambda message: getattr(message, "t0", None) == 2,
}


@pytest.mark.parametrize(
    "stage", [pytest.param(one, marks=[pytest.mark.slow] * (one in ("recalled", "labels"))) for one in STAGES]
)
def test_a_silent_party_is_named_and_counts_as_gone(stage: str, tmp_path: Path, seen: Seen) -> None:
    """It is connected, and answers every ping; the shop, which has done its part, is not blamed."""
    write_tables(tmp_path)
    config = table_settings(tmp_path)
    with threads(config, tmp_path, round_limit=1.0, wait_limit=2.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("shop")
        puppet = goes_along(federation, "bank", STAGES[stage])
        puppet.rest()
        federation.join(30)
        assert seen.lines == [("cut", "bank", "nothing came from it for 1 s, and it is awaited", 1)]
        assert str(federation.errors[SERVER]) == "bank did not come back within 2 s"
        assert str(federation.errors["shop"]) == "shop: the server stopped: bank did not come back within 2 s"


HELD = {"privacy": {"labels": "hospital"}, "local_iterations": 1}


@pytest.mark.parametrize("silent", ["bank", "hospital"])
def test_a_label_holder_is_not_blamed_for_another_nor_another_for_it(silent: str, tmp_path: Path, seen: Seen) -> None:
    """The holder cannot answer before it has the others' embeddings, and they hear nothing before it answers."""
    (other,) = {"bank", "hospital"} - {silent}
    with threads(settings(**HELD), tmp_path, wait_limit=2.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start(other)
        puppet = goes_along(federation, silent, STAGES["training"])
        federation.carrier.round_limit = 2.0
        puppet.rest(30)
        federation.join(60)
    assert [line[:2] for line in seen.lines] == [("cut", silent)]


def test_one_that_stops_within_an_answer_is_named(tmp_path: Path, seen: Seen) -> None:
    """It was heard of after it was spoken to; what it still owes is the second half."""
    with threads(CONFIG, tmp_path, wait_limit=2.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        puppet = Puppet(federation.address, federation.identity("bank"))
        party = PartyRun(CONFIG, "bank", tmp_path / "puppet", federation.stack, identity=federation.identity("bank"))
        puppet.say(party.role.hello())
        half = False
        while not half:
            replies = list(party.role.receive(puppet.hear(30) or b""))
            half = any(isinstance(read_frame(reply), Evaluation) for reply in replies)
            for reply in replies[:1] if half else replies:
                puppet.say(reply)
        federation.carrier.round_limit = 2.0
        puppet.rest(30)
        federation.join(60)
    assert [line[:2] for line in seen.lines] == [("cut", "bank")]


def test_one_that_says_nothing_that_counts_is_silent(tmp_path: Path, seen: Seen) -> None:
    """Frames of a session that is over are left unread: they do not buy time."""
    with threads(CONFIG, tmp_path, round_limit=1.0, wait_limit=1.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        puppet = Puppet(federation.address, federation.identity("bank"))
        puppet.say(hello("bank"))
        assert isinstance(read_frame(puppet.hear()), Recall)
        while puppet.received.empty():
            puppet.say(encode(Embedding(0, 2, b"")))
            time.sleep(0.01)
        federation.join(30)
        assert [line[:2] for line in seen.lines] == [("cut", "bank")]


def test_the_party_itself_may_come_after_a_silent_one(tmp_path: Path, expected: Outcome, seen: Seen) -> None:
    with threads(CONFIG, tmp_path, round_limit=1.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        assert goes_along(federation, "bank", STAGES["training"]).rest() == []
        federation.start("bank")
        same(federation.outcome(), expected)
        assert [line[:2] for line in seen.lines] == [("cut", "bank")]


def test_a_slow_alignment_is_not_cut(tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes much longer than the limit, but parts arrive all the time."""
    monkeypatch.setattr(alignment, "PART", 2)
    write_tables(tmp_path)
    config = table_settings(tmp_path)
    with threads(config, tmp_path, round_limit=1.5, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("bank")
        federation.start("shop", on_round=lambda: time.sleep(0.1))
        began = time.monotonic()
        outcome = federation.outcome()
        assert time.monotonic() - began > 3.0
        same(outcome, in_process(config))
    assert seen.lines == []


def test_the_servers_own_work_is_nobodys_silence(tmp_path: Path, seen: Seen, expected: Outcome) -> None:
    with threads(CONFIG, tmp_path, round_limit=1.5, on_event=seen) as federation:
        work, pauses = federation.server.role.work, iter([2.5])

        def slow() -> Any:
            time.sleep(next(pauses, 0))
            return work()

        federation.server.role.work = slow
        federation.start(SERVER)
        finishes(federation, expected)
    assert seen.lines == []


def test_garbage_again_and_again_ends_the_run_with_a_name(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves a line, not one for every time."""
    monkeypatch.setattr(watch, "MOST_RESTARTS", 5)
    with threads(CONFIG, tmp_path, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        tries = 0
        while federation._threads[SERVER].is_alive() and tries < 30:
            tries += 1
            puppet = Puppet(federation.address, federation.identity("bank"))
            puppet.say(hello("bank"))
            if puppet.hear() is not None:  # else the one before is not gone yet
                puppet.say(b"garbage")
                puppet.rest()
            puppet.vanish()
        federation.join(20)
        said = "bank left 6 times without a new round in between"
        assert str(federation.errors[SERVER]) == said
        assert str(federation.errors["hospital"]) == f"hospital: the server stopped: {said}"
        lines = [line for line in seen.lines if line[0] == "cut"]
        assert lines == [("cut", "bank", lines[0][2], 1)]
        assert "frame" in lines[0][2]


def test_who_comes_and_goes_while_another_is_missing_breaks_nothing_off(
    federation: Threads, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_RESTARTS", 2)
    for _ in range(5):
        puppet = Puppet(federation.address, federation.identity("bank"))
        puppet.say(hello("bank"))
        until(lambda: federation.server.role.missing == ["hospital"])
        puppet.vanish()
        until(lambda: federation.server.role.missing == ["hospital", "bank"])
    finishes(federation, expected)


def test_a_stream_without_a_hello_does_not_keep_its_place(
    federation: Threads, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_HELLO", 0.5)
    puppet = Puppet(federation.address, federation.identity("bank"))
    assert puppet.rest() == []
    finishes(federation, expected)


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Bytes that Python has taken since."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_frames_that_nobody_works_on_are_bounded_in_bytes(federation: Threads, expected: Outcome) -> None:
    """A party with a certificate sends 150 MB while the server is busy; nearly all of it stays with the sender."""
    role, busy, free = federation.server.role, threading.Event(), threading.Event()
    receive = role.receive

    def slow(m: int, frame: bytes) -> Any:
        busy.set()
        free.wait(60)
        return receive(m, frame)

    role.receive = slow
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("bank"))
    until(lambda: role.missing == ["hospital"])
    frame = encode(Embedding(0, 2, bytes(MB)))
    with traced() as memory:
        for _ in range(150):
            puppet.say(frame)
        assert busy.wait(10)
        time.sleep(2.0)
        assert memory() < PEER + 8 * MB
    free.set()
    until(puppet._outbox.empty, 30)
    puppet.vanish()
    finishes(federation, expected)


def test_nothing_but_its_hello_is_read_of_a_peer_that_is_not_in(federation: Threads, expected: Outcome) -> None:
    role, asked, free = federation.server.role, threading.Event(), threading.Event()
    join = role.join

    def slow(frame: bytes, name: str | None = None) -> Any:
        asked.set()
        free.wait(60)
        return join(frame, name)

    role.join = slow
    puppet = Puppet(federation.address, federation.identity("bank"))
    with traced() as memory:
        puppet.say(hello("hospital"))  # it will be refused
        frame = encode(Embedding(0, 2, bytes(MB)))
        for _ in range(30):
            puppet.say(frame)
        assert asked.wait(10)
        time.sleep(1.0)
        assert memory() < 8 * MB
    free.set()
    assert isinstance(read_frame(puppet.hear()), Refusal)
    puppet.vanish()
    finishes(federation, expected)


class Chatty:
    """A party that has a megabyte to say to everything it hears."""

    name, done, refused = "bank", False, None

    def __init__(self) -> None:
        self.heard = 0

    def hello(self) -> bytes:
        return b"hello"

    def receive(self, frame: bytes) -> Iterator[bytes]:
        self.heard += 1
        yield bytes(MB)


def test_a_party_does_not_pile_up_what_the_server_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def deaf(frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from [b"more"] * 150
        free.wait(60)

    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.stream_stream_rpc_method_handler(deaf)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    role, ended = Chatty(), list[str]()

    def run() -> None:
        try:
            attend(role, address, None, wait_limit=0.1)
        except RemoteProtocolError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    with traced() as memory:
        thread.start()
        time.sleep(2.0)
        assert 1 < role.heard < 30
        assert memory() < PEER + 8 * MB
        free.set()
        server.stop(grace=0).wait()
        thread.join(20)
    assert ended[0].startswith(f"bank: no server at {address}")


class Talkative:
    """A server that says a megabyte to the bank whenever the hospital says something."""

    names, done, reached, told = ("bank", "hospital"), False, 0, set[int]()
    awaited: ClassVar[dict[int, int]] = {}

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.heard = 0

    @property
    def missing(self) -> list[str]:
        return [name for m, name in enumerate(self.names, start=1) if m not in self.here]

    def join(self, frame: bytes, name: str | None = None) -> tuple[int, list[tuple[int, bytes]]]:
        self.here.add(m := self.names.index(name or "") + 1)
        return m, []

    def leave(self, m: int) -> None:
        self.here.discard(m)

    def receive(self, m: int, frame: bytes) -> list[tuple[int, bytes]]:
        self.heard += 1
        return [(1, bytes(MB))] if m == 2 else []

    def work(self) -> list[tuple[int, bytes]]:
        return []


class Deaf:
    """A peer that connects, says hello and never reads."""

    def __init__(self, address: str, identity: Identity, first: bytes) -> None:
        self._channel, self._over = grpc.secure_channel(address, identity.for_party()), threading.Event()
        frames = itertools.chain([first], iter(lambda: self._over.wait() and None, None))
        self.call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(frames)

    def close(self) -> None:
        self._over.set()
        self._channel.close()


def test_a_party_that_does_not_read_is_cut_by_name(tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it stays within its bound, and its place is free again."""
    for module in (bytequeue, carrier):
        monkeypatch.setattr(module, "UNREAD", 20 * MB)
    make_certificates(tmp_path, ["127.0.0.1"], Talkative.names)
    role: Any = Talkative()
    server = carrier.FederationServer(role, "127.0.0.1:0", Identity.load(tmp_path, SERVER), on_event=seen)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.port}"
    deaf = Deaf(address, Identity.load(tmp_path, "bank"), b"hello")
    hospital = Puppet(address, Identity.load(tmp_path, "hospital"))
    hospital.say(b"hello")
    until(lambda: role.missing == [])
    with traced() as memory:
        for _ in range(100):
            hospital.say(b"more")
        until(lambda: role.missing == ["bank"], 30)
        assert memory() < 40 * MB
    until(lambda: bool(seen.lines))
    assert seen.lines == [("cut", "bank", "it has left more than 20 MB unread", 1)]
    until(lambda: "bank" not in server._present and role.heard == 100)  # or the rest would flood the next one
    bank = Puppet(address, Identity.load(tmp_path, "bank"))
    bank.say(b"hello")
    until(lambda: role.missing == [])
    hospital.say(b"more")
    assert bank.hear() == bytes(MB)
    role.done, role.told = True, {1, 2}
    thread.join(20)
    for peer in (bank, hospital):
        peer.vanish()
    deaf.close()


def test_one_that_neither_reads_nor_answers_leaves_its_place(tmp_path: Path, expected: Outcome, seen: Seen) -> None:
    with threads(CONFIG, tmp_path, round_limit=1.0, on_event=seen) as federation:
        federation.start(SERVER)
        federation.start("hospital")
        deaf = Deaf(federation.address, federation.identity("bank"), hello("bank"))
        until(lambda: bool(seen.lines))
        assert seen.lines[0][:2] == ("cut", "bank")
        federation.start("bank")
        same(federation.outcome(), expected)
        deaf.close()


def test_who_is_refused_leaves_a_line(tmp_path: Path, expected: Outcome, seen: Seen) -> None:
    with threads(CONFIG, tmp_path, on_event=seen) as federation:
        federation.start(SERVER)
        for _ in range(3):
            stranger = Puppet(federation.address, signed(federation.certs, "stran\x1b[2Jger"))
            stranger.say(hello("bank"))
            assert stranger.rest() == []
        false = Puppet(federation.address, federation.identity("bank"))
        false.say(hello("hospital"))
        false.rest()
        until(lambda: len(seen.lines) >= 2)
        finishes(federation, expected)
    assert [line[:2] for line in seen.lines] == [("refused", "stran\\x1b[2Jger"), ("refused", "bank")]
    assert seen.lines[0][2] == "'stran\\x1b[2Jger' is no party of this federation"


def test_what_a_peer_says_cannot_steer_a_terminal(federation: Threads) -> None:
    federation.start("hospital")
    puppet = Puppet(federation.address, federation.identity("bank"))
    puppet.say(hello("bank"))
    puppet.hear()
    puppet.say(encode_control(Refusal(reason="\x1b]0;owned\x07\r\nok"), 2))
    federation.join(20)
    said = str(federation.errors["hospital"])
    assert said.isprintable()
    assert said.endswith(r"bank: \x1b]0;owned\x07\r\nok")
