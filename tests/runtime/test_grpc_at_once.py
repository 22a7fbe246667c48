"""A server whose answers are short: whoever reads a frame works on it, and what goes wrong there ends the run."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from cvfl.errors import RemoteProtocolError

pytest.importorskip("grpc")
from cvfl.runtime.grpc.channel import METHOD, SERVICE, grpc, options
from cvfl.runtime.grpc.server import FederationServer


class Echo:
    """A role of one party, which gets back what it says; `b"wrong"` is an error."""

    names, done, awaited, reached, told = ("bank",), False, dict[int, int](), 0, {1}

    def __init__(self) -> None:
        self.missing, self.threads = ["bank"], set[int]()

    def join(self, frame: bytes, name: str | None = None) -> tuple[int, list[tuple[int, bytes]]]:
        self.missing = []
        return 1, [(1, frame)]

    def leave(self, m: int) -> None:
        self.missing = ["bank"]

    def receive(self, m: int, frame: bytes) -> list[tuple[int, bytes]]:
        self.threads.add(threading.get_ident())
        if frame == b"wrong":
            raise RemoteProtocolError("bank: it is wrong")
        return [(m, frame)]

    def work(self) -> list[tuple[int, bytes]]:
        return []


@pytest.mark.parametrize("at_once", [False, True])
def test_frames_are_answered_in_order_and_an_error_ends_the_run(at_once: bool) -> None:
    role, outbox, raised = Echo(), queue.SimpleQueue[bytes](), list[Exception]()
    server = FederationServer(role, "127.0.0.1:0", None, at_once=at_once)

    def run() -> None:
        try:
            server.run()
        except RemoteProtocolError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options()) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(outbox.get, None))
        said = [b"hello", *(b"%d" % n for n in range(100))]
        for frame in said:
            outbox.put(frame)
        assert [next(call) for _ in said] == said
        assert (thread.ident in role.threads) is not at_once
        outbox.put(b"wrong")
        thread.join(20)
        call.cancel()
    assert [str(error) for error in raised] == ["bank: it is wrong"]
