"""A proxy on this machine that makes the way to a server longer: for studies of latency, on loopback only."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

_PIECE = 1 << 16


class DelayProxy:
    """Passes connections on to a server on loopback, every byte after `round_trip` / 2 seconds in each direction."""

    def __init__(self, address: str, round_trip: float) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port, self._delay = host, int(port), round_trip / 2
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connect, "127.0.0.1", 0)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, on = await asyncio.open_connection(self._host, self._port)
        except OSError:
            back.close()
            return
        try:
            await asyncio.gather(self._carry(near, on), self._carry(far, back))
        finally:
            on.close()
            back.close()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Read as it comes, write when its time has come: bytes on the way do not wait for each other."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self._write(due, target))
        try:
            while piece := await source.read(_PIECE):
                due.put_nowait((self._loop.time() + self._delay, piece))
        except OSError:
            pass
        due.put_nowait((self._loop.time() + self._delay, b""))
        await writing

    async def _write(self, due: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        try:
            while True:
                when, piece = await due.get()
                await asyncio.sleep(max(0.0, when - self._loop.time()))
                if not piece:
                    target.write_eof()
                    return
                target.write(piece)
                await target.drain()
        except OSError:
            return
