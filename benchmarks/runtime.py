"""What a runtime costs beside the bare transport: the same bytes, once through the carriers, once as a plain echo.

    python benchmarks/runtime.py --json

    carriers    role machines that only pass payloads, driven as in a real run
    bare        a gRPC server that sends a payload down every stream, waits for all to come back, and so on

Every role is a process of its own; both ways use mutual TLS on loopback. NVIDIA FLARE is measured when it is installed.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shown import Steps, options, show

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


Seconds = dict[int, list[float]]  # of the rounds, by payload


def bench(sizes: Sequence[int], rounds: int, steps: Steps) -> Iterator[RuntimeSpeed]:
    """Every runtime beside the same bare gRPC echo."""
    steps.next("a bare gRPC echo")
    bare = _run(_bare_server, _bare_party, sizes, rounds)
    steps.next("the gRPC runtime")
    yield from _all_compared("grpc", _run(_carrier_server, _carrier_party, sizes, rounds), bare)
    if find_spec("nvflare") is None:
        steps.next("nvflare is not installed and not measured")
        return
    steps.next("NVIDIA FLARE, which takes most of a minute to start")
    from flare_echo import measure_sizes  # noqa: PLC0415  an extra

    with contextlib.redirect_stdout(sys.stderr):  # FLARE talks
        seconds = measure_sizes(sizes, rounds, len(PARTIES))
    yield from _all_compared("nvflare", seconds, bare)


def _all_compared(runtime: str, seconds: Seconds, bare: Seconds) -> Iterator[RuntimeSpeed]:
    return (compared(runtime, payload, seconds[payload], bare[payload]) for payload in bare)


def compared(runtime: str, payload: int, seconds: Sequence[float], bare: Sequence[float]) -> RuntimeSpeed:
    """The figures of a runtime from its rounds and those of the bare echo."""
    median, bare_median = statistics.median(seconds), statistics.median(bare)
    p95 = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    return RuntimeSpeed(runtime, payload, 1e3 * median, 1e3 * p95, 1e3 * bare_median, median / bare_median)


def _run(server: Callable[..., list[float]], party: Callable[..., None], sizes: Sequence[int], rounds: int) -> Seconds:
    """Parties as processes, the server in this one; of each size the seconds of the rounds after the first few."""
    from cvfl.runtime.grpc.certificates import make_certificates  # noqa: PLC0415  an extra

    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cvfl-") as folder:
        certificates = Path(folder)
        make_certificates(certificates, ["127.0.0.1"], PARTIES)
        ports = spawn.SimpleQueue()
        children = [spawn.Process(target=party, args=(name, certificates, ports)) for name in PARTIES]
        for child in children:
            child.start()

        def announce(port: int) -> None:
            for _ in children:
                ports.put(port)

        each = _WARM_UP + rounds
        try:
            seconds = server(certificates, announce, [bytes(size) for size in sizes for _ in range(each)])
        finally:
            for child in children:
                child.join(10)
                child.kill()
                child.join()
    return {size: seconds[each * n + _WARM_UP : each * (n + 1)] for n, size in enumerate(sizes)}


class _PayloadServer:
    """Stands for a ServerRole: sends each payload to all, waits until all have sent it back, and keeps the time."""

    names = PARTIES
    awaited: Mapping[int, int] = MappingProxyType({})
    reached = 0

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.done, self.seconds = False, list[float]()
        self.told: set[int] = set()
        self._joined: set[str] = set()
        self._payloads, self._arrived, self._began = payloads, 0, 0.0

    @property
    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self._joined]

    def join(self, frame: bytes, name: str | None) -> tuple[int, list[tuple[int, bytes]]]:
        self._joined.add(name or "")
        return self.names.index(name or "") + 1, [] if self.missing else self._send()

    def leave(self, m: int) -> None:
        self._joined.discard(self.names[m - 1])
        if self.done:  # nobody is lost here: it has gone because it heard the end
            self.told.add(m)

    def receive(self, m: int, frame: bytes) -> list[tuple[int, bytes]]:
        decode(frame)
        self._arrived += 1
        return self._send() if self._arrived % len(self.names) == 0 else []

    def work(self) -> list[tuple[int, bytes]]:
        return []

    def _send(self) -> list[tuple[int, bytes]]:
        now, t0 = time.perf_counter(), self._arrived // len(self.names)
        if t0:
            self.seconds.append(now - self._began)
        self._began, self.done = now, t0 == len(self._payloads)
        payload = b"" if self.done else self._payloads[t0]  # an empty one tells the parties to end
        return [(m + 1, encode(Embedding(t0, 1, payload))) for m in range(len(self.names))]


class _PayloadParty:
    """Stands for a PartyRole: sends every payload back."""

    def __init__(self, name: str) -> None:
        self.done, self.refused = False, None
        self.name = name

    def hello(self) -> bytes:
        return encode(Embedding(0, 1, b""))

    def receive(self, frame: bytes) -> Iterator[bytes]:
        message = decode(frame)
        assert isinstance(message, Embedding)
        self.done = not message.packet
        if not self.done:
            yield encode(message)


def _carrier_server(certificates: Path, announce: Callable[[int], None], payloads: Sequence[bytes]) -> list[float]:
    from cvfl.runtime.grpc.channel import Identity  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.server import FederationServer  # noqa: PLC0415

    role: Any = _PayloadServer(payloads)
    server = FederationServer(role, "127.0.0.1:0", Identity.load(certificates, "server"))
    announce(server.port)
    server.run()
    seconds: list[float] = role.seconds
    return seconds


def _carrier_party(name: str, certificates: Path, ports: Any) -> None:
    from cvfl.runtime.grpc.channel import Identity  # noqa: PLC0415  an extra
    from cvfl.runtime.grpc.party import attend  # noqa: PLC0415

    role: Any = _PayloadParty(name)
    attend(role, f"127.0.0.1:{ports.get()}", Identity.load(certificates, name))


def _bare_server(certificates: Path, announce: Callable[[int], None], payloads: Sequence[bytes]) -> list[float]:
    import grpc  # noqa: PLC0415  an extra

    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, options  # noqa: PLC0415

    times: list[float] = []
    everyone = threading.Barrier(len(PARTIES), action=lambda: times.append(time.perf_counter()))
    over = threading.Event()

    def echo(frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(frames)  # the party is there
        everyone.wait()
        for payload in payloads:
            yield payload
            next(frames)
            everyone.wait()
        over.set()

    handler = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.server(ThreadPoolExecutor(16), options=options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    announce(server.add_secure_port("127.0.0.1:0", Identity.load(certificates, "server").for_server()))
    server.start()
    over.wait()
    server.stop(1).wait()
    return [end - began for began, end in itertools.pairwise(times)]


def _bare_party(name: str, certificates: Path, ports: Any) -> None:
    import queue  # noqa: PLC0415

    import grpc  # noqa: PLC0415  an extra

    from cvfl.runtime.grpc.channel import METHOD, SERVICE, Identity, options  # noqa: PLC0415

    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    credentials = Identity.load(certificates, name).for_party()
    with grpc.secure_channel(f"127.0.0.1:{ports.get()}", credentials, options()) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
        outbox.put(b"")
        with contextlib.suppress(grpc.RpcError):  # the server is through and gone
            for payload in call:
                outbox.put(payload)
        outbox.put(None)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="rounds a payload")
    parser.add_argument("--payload", type=int, action="append", help="bytes each way; may be repeated")
    given = parser.parse_args()
    columns: dict[str, Callable[[RuntimeSpeed], str]] = {
        "runtime": lambda speed: speed.runtime,
        "payload each way": lambda speed: f"{speed.payload // 1000} KB",
        "median ms": lambda speed: f"{speed.median_ms:.2f}",
        "p95 ms": lambda speed: f"{speed.p95_ms:.2f}",
        "bare ms": lambda speed: f"{speed.bare_ms:.2f}",
        "ratio": lambda speed: f"{speed.ratio:.2f}",
    }
    show(given.json, 3, lambda steps: bench(given.payload or PAYLOADS, given.rounds, steps), columns)


if __name__ == "__main__":
    main()
