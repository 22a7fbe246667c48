"""One proxy for all systems: it passes TCP on to a server on loopback and counts payload, both ways.

What TLS and HTTP/2 add is counted; the headers of TCP and IP are not. With `rate` and `delay` every connection is as
slow as a link of so many bytes a second each way on which every byte takes `delay` seconds longer.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Self

_PIECE = 1 << 16
_ON_THE_WAY = 64
"""Pieces that wait in the proxy at most: beyond them the sender is held back, as by a full link."""


class Proxy:
    """Listens on a port of loopback as long as it is open; `up` is what came from those who connect."""

    def __init__(self, port: int, rate: float = float("inf"), delay: float = 0.0) -> None:
        self.target, self.rate, self.delay = port, rate, delay
        self.up = self.down = self.connections = 0
        self._lock, self._sockets = threading.Lock(), list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @property
    def total(self) -> int:
        """Both ways."""
        with self._lock:
            return self.up + self.down

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # nobody listens yet: whoever connected tries again
                near.close()
                continue
            self.connections += 1
            for source, sink, up in ((near, far, True), (far, near, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(source)
                passed: queue.Queue[tuple[float, bytes]] = queue.Queue(self._room())
                threading.Thread(target=self._read, args=(source, passed, up), daemon=True).start()
                threading.Thread(target=self._write, args=(passed, sink), daemon=True).start()

    def _room(self) -> int:
        """Pieces that fit on the link, and some."""
        return _ON_THE_WAY if self.rate == float("inf") else _ON_THE_WAY + int(self.rate * self.delay / _PIECE)

    def _read(self, source: socket.socket, passed: queue.Queue[tuple[float, bytes]], up: bool) -> None:
        free = 0.0  # when the link has sent all that came before
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self.up += len(piece) * up
                    self.down += len(piece) * (not up)
                free = max(free, time.monotonic()) + len(piece) / self.rate
                passed.put((free + self.delay, piece))
        passed.put((0.0, b""))

    def _write(self, passed: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (found := passed.get())[1]:
                time.sleep(max(0.0, found[0] - time.monotonic()))
                sink.sendall(found[1])
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
