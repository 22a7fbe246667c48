"""A network that fails: ports where nobody listens, and a proxy that stalls and cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Counter:
    """A sum that several threads add to."""

    def __init__(self) -> None:
        self.bytes, self._lock = 0, threading.Lock()

    def add(self, count: int) -> None:
        """Count so many bytes."""
        with self._lock:
            self.bytes += count


class Proxy:
    """Stands between parties and the server: it may stall, cut all connections, or let nobody in; it counts bytes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._flows, self._open = threading.Event(), True
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self.connections, self.up, self.down = 0, Counter(), Counter()
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
            self.connections += 1
            for source, sink, counter in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pump, args=(source, sink, counter), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counter: Counter) -> None:
        try:
            while data := source.recv(1 << 16):
                counter.add(len(data))
                self._flows.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            # Shut down first: a socket that is only closed stays open while the other direction is being read.
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
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
