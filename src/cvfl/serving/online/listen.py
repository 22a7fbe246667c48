"""The door on its port: uvicorn, which lets requests under way finish when it is told to stop."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from cvfl.errors import ConfigError
from cvfl.runtime.address import bound
from cvfl.serving.online.app import Door

_GRACE = 5.0


class Listener(uvicorn.Server):
    """Says when it listens, and lets health say when it is about to stop."""

    def __init__(self, config: uvicorn.Config, door: Door, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._door, self._on_start = door, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop, asked ten times a second: also when the door can answer nothing any more."""
        self._door.stopping = self._door.stopping or self._door.desk.failure is not None
        return await super().on_tick(counter) or self._door.stopping

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal asks to stop: no new request is taken, those under way are answered."""
        self._door.stopping = True
        super().handle_exit(sig, frame)


def listener(
    app: FastAPI,
    door: Door,
    address: str,
    timeout: float,
    tls: tuple[Path | None, Path | None, Path | None] = (None, None, None),
    on_start: Callable[[], None] = lambda: None,
) -> tuple[Listener, socket.socket]:
    """The door at HOST:PORT, not yet listening; certificate, key and authority make it HTTPS."""
    certificate, key, authority = tls
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(timeout + _GRACE),
        timeout_keep_alive=75,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_ca_certs=str(authority) if authority else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
    )
    taken = bound(address, "--http")
    try:
        config.load()
    except OSError as error:
        taken.close()
        raise ConfigError(f"--tls-cert, --tls-key: {error.strerror or error}") from None
    return Listener(config, door, on_start), taken


def listen(
    app: FastAPI,
    door: Door,
    address: str,
    timeout: float,
    tls: tuple[Path | None, Path | None, Path | None],
    on_start: Callable[[], None],
) -> None:
    """Answer requests until a signal asks to stop, or what the door cannot do without fails, which is raised."""
    server, taken = listener(app, door, address, timeout, tls, on_start)
    with taken:
        server.run([taken])
    if door.desk.failure is not None:
        raise door.desk.failure
