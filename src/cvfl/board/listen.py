"""The board on its port: alone until a signal ends it, or in a thread beside a run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from cvfl.board.app import Board, make_app
from cvfl.board.catalogue import Catalogue
from cvfl.board.guard import Gate
from cvfl.runtime.address import bound

_GRACE = 2
"""Seconds that requests under way have to end."""


class Listener(uvicorn.Server):
    """Ends the streams of news when it is told to stop, which would go on for ever."""

    def __init__(self, config: uvicorn.Config, board: Board, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._board, self._on_start = board, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_start()

    async def main_loop(self) -> None:
        """Answer until it is to stop."""
        await super().main_loop()
        self._board.over = True


def listener(root: Path, address: str, token: str | None, on_start: Callable[[str], None]) -> tuple[Any, socket.socket]:
    """The board of a folder at HOST:PORT, not yet listening, and its socket."""
    gate, taken = Gate(address, token), bound(address, "--port")
    board = Board(Catalogue(root))
    board.catalogue.refresh()  # so that the first page does not wait for it
    config = uvicorn.Config(
        make_app(board, gate),
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    return Listener(config, board, lambda: on_start(url_of(taken))), taken


def listen(root: Path, address: str, token: str | None, on_start: Callable[[str], None]) -> None:
    """Show the runs below a folder until a signal asks to stop."""
    server, taken = listener(root, address, token, on_start)
    with taken:
        server.run([taken])


@contextmanager
def beside(root: Path, address: str, token: str | None = None) -> Iterator[str]:
    """Show the runs below a folder while something else goes on; the URL of the page."""
    ready, said = threading.Event(), list[str]()

    def started(url: str) -> None:
        said.append(url)
        ready.set()

    server, taken = listener(root, address, token, started)
    thread = threading.Thread(target=server.run, args=([taken],), daemon=True, name="cvfl-board")
    with taken:
        thread.start()
        ready.wait(10)
        try:
            yield said[0] if said else url_of(taken)
        finally:
            server.should_exit = True
            thread.join(_GRACE + 3)


def url_of(taken: socket.socket) -> str:
    """What to open in a browser."""
    host, port = taken.getsockname()[:2]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
