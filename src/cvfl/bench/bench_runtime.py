"""What a runtime costs beside the bare transport: the same bytes, once through the carriers, once as a plain echo.

    carriers    role machines that only pass payloads, driven as in a real run
    bare        a gRPC server that waits for a payload of every stream, then answers all

Every role is a process of its own; both ways use mutual TLS on loopback.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cvfl.wire import Embedding, decode, encode

PARTIES = ("one", "two", "three", "four")
PAYLOADS = (20_000, 200_000, 1_000_000)
_WARM_UP = 10


@dataclass(frozen=True)
class RuntimeSpeed:
    """Time a round of one runtime for one payload each way, beside the bare echo."""

    runtime: str
    payload: int
    median_ms: float
    p95_ms: float
    bare_ms: float
    ratio: float


def bench_grpc(payload: int, rounds: int = 200) -> RuntimeSpeed:
    """The gRPC runtime beside a bare gRPC echo."""
    return compared("grpc", payload, _run(_carrier_server, _carrier_party, payload, rounds), bare_grpc(payload, rounds))


def bench_nvflare(rounds: int = 200) -> list[RuntimeSpeed]:
    """The FLARE runtime beside the same bare gRPC echo, all payloads in one provisioned federation."""
    from cvfl.bench.flare_bench import measure_sizes  # noqa: PLC0415  an extra

    with contextlib.redirect_stdout(sys.stderr):  # FLARE talks
        seconds = measure_sizes(PAYLOADS, rounds, len(PARTIES))
    return [compared("nvflare", payload, seconds[payload], bare_grpc(payload, rounds)) for payload in PAYLOADS]


def bare_grpc(payload: int, rounds: int = 200) -> list[float]:
    """Seconds a round of the bare echo."""
    return _run(_bare_server, _bare_party, payload, rounds)


def compared(runtime: str, payload: int, seconds: Sequence[float], bare: Sequence[float]) -> RuntimeSpeed:
    """The figures of a runtime from its rounds and those of the bare echo."""
    median, bare_median = statistics.median(seconds), statistics.median(bare)
    p95 = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    return RuntimeSpeed(runtime, payload, 1e3 * median, 1e3 * p95, 1e3 * bare_median, median / bare_median)


def _run(server: Callable[..., list[float]], party: Callable[..., None], payload: int, rounds: int) -> list[float]:
    """Parties as processes, the server in this one; seconds of the rounds after the first few."""
    from cvfl.runtime.grpc.certificates import make_certificates  # noqa: PLC0415  an extra

    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cvfl-") as folder:
        certificates = Path(folder)
        make_certificates(certificates, ["127.0.0.1"], PARTIES)
        ports = spawn.SimpleQueue()
        children = [spawn.Process(target=party, args=(name, certificates, ports, payload)) for name in PARTIES]
        for child in children:
            child.start()

        def announce(port: int) -> None:
            for _ in children:
                ports.put(port)

        try:
            return server(certificates, announce, payload, rounds)[_WARM_UP:]
        finally:
            for child in children:
                child.join(10)
                child.kill()
                child.join()


class _PayloadServer:
    """Stands for a ServerRole: waits for a payload of every party, then answers all, and keeps the time."""

    names = PARTIES

    def __init__(self, payload: int, rounds: int) -> None:
        self.done, self.seconds = False, list[float]()
        self.told: set[int] = set()
        self._joined: set[str] = set()
        self._payload, self._rounds, self._arrived, self._began = bytes(payload), rounds + _WARM_UP, 0, 0.0

    @property
    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self._joined]

    def join(self, frame: bytes, name: str | None) -> tuple[int, list[tuple[int, bytes]]]:
        self._joined.add(name or "")
        return self.names.index(name or "") + 1, [] if self.missing else self._answers()

    def leave(self, m: int) -> None:
        self._joined.discard(self.names[m - 1])
        if self.done:  # nobody is lost here: it has gone because it heard the end
            self.told.add(m)

    def receive(self, m: int, frame: bytes) -> list[tuple[int, bytes]]:
        decode(frame)
        self._arrived += 1
        return self._answers() if self._arrived % len(self.names) == 0 else []

    def work(self) -> list[tuple[int, bytes]]:
        return []

    def _answers(self) -> list[tuple[int, bytes]]:
        now, t0 = time.perf_counter(), self._arrived // len(self.names)
        if t0:
            self.seconds.append(now - self._began)
        self._began, self.done = now, t0 == self._rounds
        # Frames that only differ by round, as a broadcast's do; the last one tells the parties to end.
        return [(m + 1, encode(Embedding(int(self.done), 1, self._payload))) for m in range(len(self.names))]


class _PayloadParty:
    """Stands for a PartyRole: answers every payload with its own."""

    def __init__(self, name: str, payload: int) -> None:
        self.done, self.refused = False, None
        self.name, self._payload = name, bytes(payload)

    def hello(self) -> bytes:
        return encode(Embedding(0, 1, b""))

    def receive(self, frame: bytes) -> Iterator[bytes]:
        self.done = decode(frame).t0 > 0
        if not self.done:
            yield encode(Embedding(0, 1, self._payload))


def _carrier_server(certificates: Path, announce: Callable[[int], None], payload: int, rounds: int) -> list[float]:
    from cvfl.runtime.grpc.channel import Identity  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.server import FederationServer  # noqa: PLC0415

    role: Any = _PayloadServer(payload, rounds)
    server = FederationServer(role, "127.0.0.1:0", Identity.load(certificates, "server"))
    announce(server.port)
    server.run()
    seconds: list[float] = role.seconds
    return seconds


def _carrier_party(name: str, certificates: Path, ports: Any, payload: int) -> None:
    from cvfl.runtime.grpc.channel import Identity  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.party import attend  # noqa: PLC0415

    role: Any = _PayloadParty(name, payload)
    attend(role, f"127.0.0.1:{ports.get()}", Identity.load(certificates, name))


def _bare_server(certificates: Path, announce: Callable[[int], None], payload: int, rounds: int) -> list[float]:
    import grpc  # noqa: PLC0415  an extra

    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, options  # noqa: PLC0415

    seconds: list[float] = []
    answer, began, over = bytes(payload), [time.perf_counter()], threading.Event()

    def turn() -> None:
        now = time.perf_counter()
        seconds.append(now - began[0])
        began[0] = now

    everyone = threading.Barrier(len(PARTIES), action=turn)

    def echo(frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for _ in range(rounds + _WARM_UP + 1):
            next(frames)
            everyone.wait()
            yield answer
        over.set()

    handler = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.server(ThreadPoolExecutor(16), options=options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    announce(server.add_secure_port("127.0.0.1:0", Identity.load(certificates, "server").for_server()))
    server.start()
    over.wait()
    server.stop(1).wait()
    return seconds[1:]


def _bare_party(name: str, certificates: Path, ports: Any, payload: int) -> None:
    import queue  # noqa: PLC0415

    import grpc  # noqa: PLC0415  an extra

    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, options  # noqa: PLC0415

    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    own = bytes(payload)
    credentials = Identity.load(certificates, name).for_party()
    with grpc.secure_channel(f"127.0.0.1:{ports.get()}", credentials, options()) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
        outbox.put(own)
        with contextlib.suppress(grpc.RpcError):  # the server is through and gone
            for _ in call:
                outbox.put(own)
        outbox.put(None)
