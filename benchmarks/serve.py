"""How long an answer of `cvfl serve` takes beside a bare gRPC fan-out of the same bytes, and how many ids a second.

    python benchmarks/serve.py --json

    serve       POST /predict with one id: door, server and three more parties, each a process, mutual TLS on loopback
    bare        a gRPC stream to a server that passes a request on to four parties and answers when all have, likewise
    ids_per_s   connections that each ask for several ids again and again

Both are measured in turns, a few requests each, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from shown import Steps, options, show

from cvfl.wire import Answer, Ask, Found, encode

PARTIES = ("bank", "shop", "clinic", "registry")
WIDTH, ROWS, TURN, WARM_UP = 16, 20_000, 50, 100
CLIENTS, EACH = 8, 25
"""Connections of the second figure, and ids of each request."""


@dataclass(frozen=True)
class ServeSpeed:
    """Milliseconds of a request for one id, beside the bare fan-out; ids a second of many requests at once."""

    requests: int
    p50_ms: float
    p99_ms: float
    bare_p50_ms: float
    ratio: float
    ids_per_s: float


def bench(requests: int, seconds: float, steps: Steps) -> Iterator[ServeSpeed]:
    """The one result."""
    with tempfile.TemporaryDirectory(prefix="cvfl-") as name, ExitStack() as stack:
        folder = Path(name)
        steps.next("training four parties")
        config = _trained(folder)
        steps.next("starting the roles, and the bare ones")
        port = stack.enter_context(_roles(folder, config))
        bare = stack.enter_context(_bare(folder / "certs"))
        served = _asker(port, lambda n: [f"p{n * 7919 % ROWS}"])
        for way in (served, bare):
            _timed(way, WARM_UP)
        steps.next(f"{requests} requests of one id, and as many of the bare fan-out")
        times: dict[str, list[float]] = {"served": [], "bare": []}
        while len(times["served"]) < requests:
            times["served"] += _timed(served, TURN)
            times["bare"] += _timed(bare, TURN)
        steps.next(f"{CLIENTS} connections, {EACH} ids a request, for {seconds:g} s")
        yield compared(times["served"], times["bare"], _sustained(port, seconds))


def compared(served: list[float], bare: list[float], ids_per_s: float) -> ServeSpeed:
    """The figures from seconds of requests."""
    p50, bare_p50 = statistics.median(served), statistics.median(bare)
    p99 = sorted(served)[int(0.99 * (len(served) - 1))]
    return ServeSpeed(len(served), 1e3 * p50, 1e3 * p99, 1e3 * bare_p50, p50 / bare_p50, ids_per_s)


def _timed(ask: Callable[[], None], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return times


def _asker(port: int, ids: Callable[[int], list[str]]) -> Callable[[], None]:
    """A connection that asks for other ids each time."""
    connection, count = HTTPConnection("127.0.0.1", port, timeout=30), 0

    def ask() -> None:
        nonlocal count
        count += 1
        connection.request("POST", "/predict", json.dumps({"ids": ids(count)}), {"Content-Type": "application/json"})
        found = connection.getresponse()
        body = found.read()
        if found.status != 200:
            raise RuntimeError(body.decode())

    return ask


def _sustained(port: int, seconds: float) -> float:
    """Ids a second of several connections."""
    end, counts = time.perf_counter() + seconds, [0] * CLIENTS

    def client(place: int) -> None:
        ask = _asker(port, lambda n: [f"p{(place * 31 + n * EACH + i) % ROWS}" for i in range(EACH)])
        while time.perf_counter() < end:
            ask()
            counts[place] += EACH

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return sum(counts) / (time.perf_counter() - began)


def _trained(folder: Path) -> Path:
    """A run of four parties on this machine; its configuration."""
    from cvfl.config.files import load_config  # noqa: PLC0415
    from cvfl.federation.train import train  # noqa: PLC0415
    from cvfl.runtime.grpc.certificates import make_certificates  # noqa: PLC0415  an extra

    random = np.random.default_rng(1)
    label = random.integers(0, 2, ROWS)
    sections = []
    for name in PARTIES:
        columns: dict[str, Any] = {"person": [f"p{n}" for n in range(ROWS)]}
        columns |= {f"{name}_{i}": (random.normal(size=ROWS) + label).round(3) for i in range(8)}
        columns |= {"target": np.where(label, "yes", "no")} if name == PARTIES[0] else {}
        pa.csv.write_csv(pa.table(columns), folder / f"{name}.csv")
        sections.append(f'[party.{name}]\ntable = "{folder / name}.csv"\n')
    sections[0] += 'label = "target"\n'
    head = 'seed = 1\nrounds = 20\nbatch_size = 256\n[data]\nid = "person"\ntest_share = 0.1\n[step_size]\neta = 0.01\n'
    model = f"[party_model]\nwidth = {WIDTH}\nhidden = [32]\n"
    network = f'[network]\naddress = "127.0.0.1:{_free()}"\ncertificates = "{folder / "certs"}"\n'
    path = folder / "credit.toml"
    path.write_text(head + model + network + "".join(sections), encoding="utf-8")
    make_certificates(folder / "certs", ["127.0.0.1"], PARTIES)
    train(load_config(path, []), out=folder / "run")
    return path


@contextmanager
def _roles(folder: Path, config: Path) -> Iterator[int]:
    """Every role as a process; the port of the door, once it answers."""
    port, run = _free(), ["--model", str(folder / "run"), "--log-json"]
    commands = [["server", str(config), "--serve", *run]]
    commands += [["party", str(config), "--name", name, "--serve", *run] for name in PARTIES[1:]]
    commands += [["serve", str(config), "--name", PARTIES[0], "--http", f"127.0.0.1:{port}", *run]]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, "-m", "cvfl.cli", *one], env=environment, **quiet) for one in commands
    ]
    try:
        _until_ready(port)
        yield port
    finally:
        for child in children:
            child.kill()
            child.wait()


def _until_ready(port: int) -> None:
    until = time.monotonic() + 90
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        if time.monotonic() > until:
            raise RuntimeError("the door did not answer within 90 s")
        time.sleep(0.1)


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def frames() -> tuple[bytes, bytes, bytes]:
    """What is asked, what a party says, and the answer, in the bytes that serving has."""
    ask = encode(Ask(1000, 1, "0" * 16, bytes(16)))
    found = encode(Found(1000, 1, 1, b"\1", bytes(11)))
    return ask, found, encode(Answer(1000, 1, 2, (b"\1",) * (len(PARTIES) + 1), bytes(16)))


@contextmanager
def _bare(certificates: Path) -> Iterator[Callable[[], None]]:
    """The same bytes over gRPC streams that know nothing: asker, server, four parties."""
    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.channel import options as channel_options  # noqa: PLC0415

    spawn = multiprocessing.get_context("spawn")
    ports = spawn.SimpleQueue()
    server = spawn.Process(target=_bare_server, args=(certificates, ports), daemon=True)
    server.start()
    port = ports.get()
    parties = [spawn.Process(target=_bare_party, args=(name, certificates, port), daemon=True) for name in PARTIES]
    for party in parties:
        party.start()
    ports.get()  # all are there
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    credentials = Identity.load(certificates, PARTIES[0]).for_party()
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, channel_options()) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
        outbox.put(b"asker")
        asked = frames()[0]

        def ask() -> None:
            outbox.put(asked)
            next(call)

        try:
            yield ask
        finally:
            outbox.put(None)
            call.cancel()
            for process in (server, *parties):
                process.kill()
                process.join()


def _bare_server(certificates: Path, ports: Any) -> None:
    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.channel import options as channel_options  # noqa: PLC0415

    outboxes: list[queue.SimpleQueue[bytes]] = []
    said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    answer = frames()[2]

    def joined(stream: Iterator[bytes], context: Any) -> Iterator[bytes]:
        if next(stream) == b"asker":
            for asked in stream:
                for outbox in outboxes:
                    outbox.put(asked)
                for _ in outboxes:
                    said.get()
                yield answer
            return
        own: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=lambda: deque(map(said.put, stream), maxlen=0), daemon=True).start()
        outboxes.append(own)
        if len(outboxes) == len(PARTIES):
            ports.put("all")
        while True:
            yield own.get()

    handler = grpc.stream_stream_rpc_method_handler(joined)
    server = grpc.server(ThreadPoolExecutor(16), options=channel_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    ports.put(server.add_secure_port("127.0.0.1:0", Identity.load(certificates, "server").for_server()))
    server.start()
    server.wait_for_termination()


def _bare_party(name: str, certificates: Path, port: int) -> None:
    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, grpc  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.channel import options as channel_options  # noqa: PLC0415

    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    credentials, found = Identity.load(certificates, name).for_party(), frames()[1]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, channel_options()) as channel:
        outbox.put(b"party")
        with contextlib.suppress(grpc.RpcError):  # the server is gone
            for _ in channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None)):
                outbox.put(found)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="requests of one id")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long many requests at once are sent")
    given = parser.parse_args()
    columns: dict[str, Callable[[ServeSpeed], str]] = {
        "requests": lambda speed: str(speed.requests),
        "p50 ms": lambda speed: f"{speed.p50_ms:.2f}",
        "p99 ms": lambda speed: f"{speed.p99_ms:.2f}",
        "bare p50 ms": lambda speed: f"{speed.bare_p50_ms:.2f}",
        "ratio": lambda speed: f"{speed.ratio:.2f}",
        "ids a second": lambda speed: f"{speed.ids_per_s:,.0f}",
    }
    show(given.json, 4, lambda steps: bench(given.requests, given.seconds, steps), columns)


if __name__ == "__main__":
    main()
