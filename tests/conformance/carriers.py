"""Carriers for tests: all roles in one thread with faults at any frame, gRPC in threads, and real processes."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from torch import nn

from cvfl.experiments.config import RunConfig, load_config, parse_config
from cvfl.experiments.record import serialised
from cvfl.experiments.run import RunResult, train
from cvfl.experiments.serve import PartyRun, ServerRun, federation_names
from cvfl.models.image import ResNet
from cvfl.runtime.certificates import make_certificates
from cvfl.runtime.grpc_channel import METHOD, SERVICE, Identity, grpc
from cvfl.runtime.grpc_party import attend
from cvfl.runtime.grpc_server import FederationServer

SERVER = "server"
opened: list[ExitStack] = []
"""Tables of loops, for a test to close whatever happened."""
_DIFFERS = ("seconds", "compression_error")
"""What a line of metrics.jsonl says of the place that it comes from: the time, and errors that only a sender knows."""


def settings(**changes: Any) -> RunConfig:
    """A small federation of two parties; `every` is how many rounds lie between two checkpoints."""
    values: dict[str, Any] = {
        "data": {"name": "wine", "parties": 2},
        "step_size": {"eta": 0.1},
        "rounds": 6,
        "batch_size": 32,
        "local_iterations": 2,
        "compressor": "topk:bits=8",
        "party_model": {"width": 4, "hidden": [4]},
        "evaluate_every": 2,
        "network": {"checkpoint_every": changes.pop("every", 2)},
        "seed": 3,
    }
    return parse_config(values | changes)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What two runs must have alike: every bit of every model, bytes, metrics, and every line of metrics.jsonl."""

    models: dict[str, bytes]
    parameters: dict[str, str]
    bytes: dict[str, Any]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]

    @classmethod
    def of(cls, result: RunResult, **models: bytes) -> Outcome:
        """From a run's result; `models` are those that are not in it."""
        every = {role: serialised(model) for role, model in result.models.items()} | models
        summary = result.summary
        return cls(every, summary["parameters"], summary["bytes"], summary["metrics"], lines(result.history))


def lines(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without what depends on the place."""
    return [{key: value for key, value in line.items() if key not in _DIFFERS} for line in history]


def in_process(config: RunConfig) -> Outcome:
    """The run that all others are compared with."""
    return Outcome.of(train(config))


def same(found: Outcome, expected: Outcome) -> None:
    """Assert that two runs are the same run, the most telling difference first."""
    assert found.models.keys() == expected.models.keys()
    assert {role for role in found.models if found.models[role] != expected.models[role]} == set()
    known = {role: found.parameters[role] for role in expected.parameters if role in found.parameters}
    assert known == {role: expected.parameters[role] for role in known}
    assert found.bytes == expected.bytes
    assert [line["round"] for line in found.history] == list(range(len(expected.history)))
    for one, other in zip(found.history, expected.history, strict=True):
        assert one == other
    assert found.metrics == expected.metrics


def restless(shape: tuple[int, ...], width: int) -> nn.Module:
    """A party model with statistics that move in training and with dropout."""
    inputs = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(8, width),
        nn.Tanh(),
    )


def residual(shape: tuple[int, ...], width: int) -> nn.Module:
    """A small residual network for an image without channels."""
    return nn.Sequential(nn.Unflatten(1, (1, shape[0])), ResNet(1, width, 4, 1, 1))


class Loop:
    """All roles in one thread. A fault may strike before any frame; links between roles are first in, first out.

    A party's events wait in `up` (to the server: hello, frame, left) and `down` (from it). `link` counts a party's
    connections; `present` is who the server believes to be here, by which connection.
    """

    def __init__(self, config: RunConfig, folder: Path, order: random.Random | None = None) -> None:
        self.config, self.folder, self.order = config, folder, order
        self.names = federation_names(config)
        self.stack = ExitStack()
        opened.append(self.stack)
        self.up: dict[str, deque[tuple[str, bytes]]] = {name: deque() for name in self.names}
        self.down: dict[str, deque[bytes]] = {name: deque() for name in self.names}
        self.link = dict.fromkeys(self.names, 0)
        self.present: dict[str, tuple[int, int]] = {}
        self.parties: dict[str, PartyRun] = {}
        self.delivered = 0
        self.start(SERVER)
        for name in self.names:
            self.start(name)

    def start(self, role: str) -> None:
        """Start a role in a fresh memory, with what is in its folder."""
        if role == SERVER:
            self.server = ServerRun(self.config, "test", self.folder / SERVER)
            self.present.clear()
            for name in self.names:
                self.up[name].clear()
                if name in self.parties:
                    self._call(name)
            return
        self.parties[role] = PartyRun(self.config, role, self.folder / role, self.stack)
        self._call(role)

    def _call(self, name: str) -> None:
        self.down[name].clear()
        self.link[name] += 1
        if not self.parties[name].role.done:
            self.up[name].append(("hello", self.parties[name].role.hello()))

    def cut(self, name: str, lost: bool = True) -> None:
        """Break a party's connection: what was on its way is lost; it calls again."""
        if lost:
            while self.up[name] and self.up[name][-1][0] == "frame":
                self.up[name].pop()
        if self.up[name] and self.up[name][-1][0] == "hello":
            self.up[name].pop()
        else:
            self.up[name].append(("left", b""))
        self._call(name)

    def kill(self, role: str) -> None:
        """End a role as kill -9 does, and start it again."""
        if role == SERVER:
            self.start(SERVER)
        else:
            self.cut(role)
            if self.up[role] and self.up[role][-1][0] == "hello":
                self.up[role].pop()  # the call of the one that is no more
            self.start(role)

    @property
    def over(self) -> bool:
        """Whether every role has ended."""
        return self.server.role.done and all(party.role.done for party in self.parties.values())

    def step(self) -> None:
        """Deliver one frame."""
        ready = [(self.down, name) for name in self.names if self.down[name]]
        ready += [(self.up, name) for name in self.names if self.up[name]]
        assert ready, f"nothing is under way after {self.delivered} frames, and the run is not over"
        queues, name = self.order.choice(ready) if self.order else ready[0]
        event = queues[name].popleft()
        self.delivered += 1
        if queues is self.down:
            for reply in self.parties[name].role.receive(event):
                self.up[name].append(("frame", reply))
        else:
            self._serve(name, *event)

    def _serve(self, name: str, kind: str, frame: bytes) -> None:
        role = self.server.role
        match kind:
            case "left":
                if name in self.present:
                    role.leave(self.present.pop(name)[0])
                return
            case "hello":
                m, replies = role.join(frame, name)
                self.present[name] = m, self.link[name]
            case _ if name in self.present:
                replies = role.receive(self.present[name][0], frame)
            case _:
                return
        for m, reply in [*replies, *role.work()]:
            receiver = self.names[m - 1]
            if self.present.get(receiver) == (m, self.link[receiver]):  # else it goes nowhere
                self.down[receiver].append(reply)

    def run(self, faults: Mapping[int, Callable[[Loop], None]] | None = None, at_most: int = 20_000) -> Outcome:
        """Run to the end; `faults` strike before the frames of these numbers."""
        todo = dict(faults or {})
        while not self.over or self.delivered in todo:
            if fault := todo.pop(self.delivered, None):
                fault(self)
                continue
            self.step()
            assert self.delivered < at_most, "the run does not end"
        return self.outcome()

    def outcome(self) -> Outcome:
        """End all roles as the commands do."""
        with self.stack:
            result = self.server.finish(self.folder / "run")
            assert lines(_read(self.folder / "run" / "metrics.jsonl")) == lines(result.history)
            for party in self.parties.values():
                party.finish(self.folder / "models")
            models = {name: (self.folder / "models" / f"{name}.safetensors").read_bytes() for name in self.names}
            return Outcome.of(result, **models)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def threads(config: RunConfig, folder: Path, tls: bool = True, **options: Any) -> Iterator[Threads]:
    """A gRPC server and parties in threads of this process."""
    federation = Threads(config, folder, tls, **options)
    try:
        yield federation
    finally:
        federation.close()


class Threads:
    """The gRPC carriers with mutual TLS; `address` is where parties connect, so that a proxy may stand between."""

    def __init__(self, config: RunConfig, folder: Path, tls: bool = True, **options: Any) -> None:
        self.config, self.folder, self.tls = config, folder, tls
        self.names = federation_names(config)
        self.certs = folder / "certs"
        if not self.certs.exists():
            make_certificates(self.certs, ["127.0.0.1", "localhost"], self.names)
        self.stack, self.errors, self.waits = ExitStack(), dict[str, BaseException](), dict[str, list[str]]()
        self.server = ServerRun(config, "test", folder / "state" / SERVER)
        identity = Identity.load(self.certs, SERVER) if tls else None
        self.carrier = FederationServer(self.server.role, "127.0.0.1:0", identity, **options)
        self.address = f"127.0.0.1:{self.carrier.port}"
        self.parties: dict[str, PartyRun] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, **options: Any) -> None:
        """Start a role in its thread."""
        if name == SERVER:
            waits = self.waits.setdefault(SERVER, [])
            work = lambda: self.carrier.run(lambda missing, seconds: waits.append(", ".join(missing)))  # noqa: E731
        else:
            run = self.parties[name] = PartyRun(self.config, name, self.folder / "state" / name, self.stack)
            work = lambda: attend(run.role, self.address, self.identity(name), self._waiting(name), **options)  # noqa: E731
        self._threads[name] = threading.Thread(target=self._caught, args=(name, work), daemon=True)
        self._threads[name].start()

    def identity(self, name: str) -> Identity | None:
        """The party's certificate."""
        return Identity.load(self.certs, name) if self.tls else None

    def _waiting(self, name: str) -> Callable[[str, float], None]:
        said = self.waits.setdefault(name, [])
        return lambda why, seconds: said.append(why)

    def _caught(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors[name] = error

    def start_all(self) -> None:
        """Start everyone."""
        for name in (SERVER, *self.names):
            self.start(name)

    def join(self, seconds: float = 60.0) -> None:
        """Wait until every role has ended."""
        until = time.monotonic() + seconds
        for name, thread in self._threads.items():
            thread.join(max(0.1, until - time.monotonic()))
            assert not thread.is_alive(), f"{name} has not ended within {seconds:.0f} s; {self.errors} {self.waits}"

    def outcome(self) -> Outcome:
        """Wait for the end and read what is left."""
        self.join()
        assert self.errors == {}
        result = self.server.finish(self.folder / "run")
        for party in self.parties.values():
            party.finish(self.folder / "models")
        models = {name: (self.folder / "models" / f"{name}.safetensors").read_bytes() for name in self.names}
        return Outcome.of(result, **models)

    def close(self) -> None:
        """Let nothing outlive the test."""
        self.carrier._server.stop(grace=0).wait()
        self.stack.close()


class Puppet:
    """A peer that says what it is told to, by a connection of its own."""

    def __init__(self, address: str, identity: Identity | None) -> None:
        credentials = identity.for_party() if identity else None
        self._channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._outbox.get, None))
        self.received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for frame in self._call:
                self.received.put(frame)
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details()
        self.received.put(None)

    def say(self, frame: bytes) -> None:
        """Send bytes as a message."""
        self._outbox.put(frame)

    def hear(self, seconds: float = 10.0) -> bytes | None:
        """The next message; None when the stream has ended."""
        return self.received.get(timeout=seconds)

    def rest(self, seconds: float = 10.0) -> list[bytes]:
        """All messages until the stream ends."""
        return list(iter(lambda: self.hear(seconds), None))

    def vanish(self) -> None:
        """Break the connection without a word."""
        self._channel.close()
        self._outbox.put(None)
        self._reader.join(10)


def signed(
    certs: Path, name: str | None, begins: float = -1.0, ends: float = 1.0, authority: Path | None = None
) -> Identity:
    """A certificate that is not as `cvfl certs` makes it; it is valid between two days from now."""
    ca = (certs / "ca.crt").read_bytes()
    issuer = x509.load_pem_x509_certificate(ca)
    issuer_key = serialization.load_pem_private_key(((authority or certs) / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(issuer.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(ca, certificate.public_bytes(pem), own_key)


def write_config(path: Path, config: RunConfig) -> Path:
    """The configuration as a file that the commands read."""
    values = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    path.write_text("\n".join(_toml(values)) + "\n", encoding="utf-8")
    assert load_config(path).model_dump(exclude={"party"}) == config.model_dump(exclude={"party"})
    return path


def _toml(values: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{key} = {json.dumps(value)}"
    for key, value in values.items():
        if isinstance(value, dict):
            yield f"[{at}{key}]"
            yield from _toml(value, f"{at}{key}.")


class Processes:
    """`cvfl server` and `cvfl party` as real processes with certificates; any may be killed and started again."""

    def __init__(self, config: RunConfig | Path, folder: Path, names: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.path = config if isinstance(config, Path) else write_config(folder / "fed.toml", config)
        self.names = tuple(names or federation_names(load_config(self.path)))
        make_certificates(folder / "certs", ["127.0.0.1"], self.names)
        self.address = f"127.0.0.1:{free_port()}"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.kill()
            child.wait()

    def start(self, role: str, *options: str, address: str | None = None) -> None:
        """Start a role; its output goes on in the file ROLE.out, errors in ROLE.err."""
        sets = (f"network.address={address or self.address}", f"network.certificates={self.folder / 'certs'}")
        command = [SERVER] if role == SERVER else ["party", "--name", role]
        command += [str(self.path), "--state", str(self.folder / "state" / role), "--log-json"]
        command += ["--out", str(self.folder / ("run" if role == SERVER else "models"))]
        command += [word for change in sets for word in ("--set", change)]
        with (self.folder / f"{role}.out").open("ab") as out, (self.folder / f"{role}.err").open("ab") as err:
            self.children[role] = subprocess.Popen(
                [sys.executable, "-m", "cvfl.cli", *command, *options],
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | self.environment,
            )

    def start_all(self) -> None:
        """Start everyone."""
        for role in (SERVER, *self.names):
            self.start(role)

    def kill(self, *roles: str) -> None:
        """kill -9, all at once."""
        for role in roles:
            self.children[role].kill()
        for role in roles:
            self.children[role].wait()

    def interrupt(self, role: str) -> int:
        """Ctrl-C; the exit code."""
        self.children[role].send_signal(signal.SIGINT)
        return self.children[role].wait(30)

    def events(self, role: str, since: int = 0) -> list[dict[str, Any]]:
        """What a role has printed so far after its first `since` events, whole lines only."""
        path = self.folder / f"{role}.out"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True)[since:] if line.endswith("\n")]

    def errors(self, role: str) -> str:
        """What a role has printed as errors."""
        return (self.folder / f"{role}.err").read_text(encoding="utf-8")

    def until_round(self, t0: int, since: int = 0, seconds: float = 60.0) -> int:
        """Wait until the server has printed round t0, not counting its first `since` events; how many there are."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            events = self.events(SERVER, since)
            if any(event["event"] == "round" and event["round"] >= t0 for event in events):
                return since + len(events)
            assert self.children[SERVER].poll() in (None, 0), self.errors(SERVER)
            time.sleep(0.02)
        raise AssertionError(f"round {t0} did not come within {seconds:.0f} s: {events[-3:]}")

    def wait(self, seconds: float = 90.0) -> dict[str, int]:
        """Wait for all; their exit codes."""
        until = time.monotonic() + seconds
        return {role: child.wait(max(0.1, until - time.monotonic())) for role, child in self.children.items()}

    def outcome(self, seconds: float = 90.0) -> Outcome:
        """Wait for a good end and read what is left."""
        codes = self.wait(seconds)
        assert set(codes.values()) == {0}, (codes, {role: self.errors(role) for role in codes})
        summary = json.loads((self.folder / "run" / "summary.json").read_text())
        models = {name: (self.folder / "models" / f"{name}.safetensors").read_bytes() for name in self.names}
        models[SERVER] = (self.folder / "run" / "parameters" / "server.safetensors").read_bytes()
        history = lines(_read(self.folder / "run" / "metrics.jsonl"))
        parameters = summary["parameters"] | {
            name: json.loads((self.folder / "models" / f"{name}.json").read_text())["parameters"] for name in self.names
        }
        return Outcome(models, parameters, summary["bytes"], summary["metrics"], history)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Stands between parties and the server: it may stall, cut all connections, or let nobody in."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.carried = 0
        self._flows, self._open = threading.Event(), True
        self._flows.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                if not self._open:
                    near.close()
                    continue
                far = socket.create_connection(self.target)
            except OSError:
                return
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
                self.carried += len(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def stall(self, seconds: float) -> None:
        """Hold everything back for a while."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def cut(self, seconds: float = 0.0) -> None:
        """Drop all connections, and let nobody in for a while."""
        self._open = False
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()
        time.sleep(seconds)
        self._open = True

    def close(self) -> None:
        """Stop."""
        self.cut()
        self.listener.close()


PEOPLE = 90


def write_tables(folder: Path, unlabelled: tuple[int, ...] = (), aligned: bool = False) -> None:
    """A bank with the label and a shop: each some of the people, in its own order; or the same rows in both."""
    draw = np.random.default_rng(0)
    age, income = draw.integers(18, 90, PEOPLE), draw.normal(3000, 900, PEOPLE).round(6)
    late = income + draw.normal(0, 300, PEOPLE) < 3000 + 5 * (age - 50)
    basket = draw.gamma(2, 20, PEOPLE).round(6)
    city = draw.choice(["Bonn", "Kiel", "Trier"], PEOPLE)
    label = ["" if i in unlabelled else ("overdue" if late[i] else "settled") for i in range(PEOPLE)]
    bank = [[f"person-{i:04d}", age[i], income[i], label[i]] for i in range(PEOPLE)]
    shop = [[f"person-{i:04d}", city[i], basket[i]] for i in range(PEOPLE)]
    if not aligned:
        bank, shop = bank[:75], shop[:14:-1]
    for name, header, rows in (("bank", ["ID", "age", "income", "y"], bank), ("shop", ["ID", "city", "basket"], shop)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])


def table_settings(folder: Path, data: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
    """A configuration for `write_tables`."""
    party = {
        "bank": {"table": str(folder / "bank.csv"), "label": "y"},
        "shop": {"table": str(folder / "shop.csv")},
    }
    section = {"id": "ID"} | dict(data or {})
    return settings(**{"data": section, "party": party, "batch_size": 16, "compressor": "lattice:bits=3"} | changes)
