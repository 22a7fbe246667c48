"""The server's gRPC carrier: one stream a party, all frames through one queue, one thread that drives the role.

    stream of party m ──reader thread──┐
                                       ├──▶ queue ──▶ ServerRole ──▶ outbox of each party ──▶ its stream
    stream of party n ──reader thread──┘

Where answers are short and somebody waits for them, whoever reads a frame drives the role by it at once, one at a time.

A stream that breaks is a party that left; the run waits for it, visibly, and goes on when it is back. Queue and
outboxes are bounded in bytes, and nothing but its hello is read of a stream before the role has let it in.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from cvfl.errors import CvflError, DecodeError, ExhaustedError, RemoteProtocolError
from cvfl.runtime.bytequeue import UNREAD, ByteQueue, Outbox
from cvfl.runtime.carrier import Replies, ServerEnd, TermsError
from cvfl.runtime.grpc.channel import (
    MAX_FRAME,
    METHOD,
    SERVICE,
    Identity,
    check_insecure,
    grpc,
    peer_name,
    server_options,
)
from cvfl.runtime.watch import ROUND_LIMIT, Notices, OnEvent, Watch
from cvfl.wire.control import Refusal, encode_control

OnMissing = Literal["wait", "fail"]
OnWait = Callable[[list[str], float], None]
"""(who is missing, for how many seconds)"""
_TICK = 0.5
_HELLO = 30.0
"""Seconds that a stream has for its hello."""
_FAREWELL = 60.0
"""Seconds that the server stays after the last round for parties that were away then."""


@dataclass
class Connection:
    """One stream: who it is once it is known, and what is still to be sent."""

    name: str | None
    first: bytes
    frames: Iterator[bytes]
    cancel: Callable[[], None]
    outbox: Outbox = field(default_factory=Outbox)
    m: int = 0


@dataclass(frozen=True)
class _Event:
    connection: Connection
    frame: bytes | None
    joins: bool = False
    error: Exception | None = None
    """What went wrong while another thread drove the role."""


class FederationServer:
    """Listens for parties and runs a federation to its end."""

    def __init__(
        self,
        role: ServerEnd,
        address: str,
        identity: Identity | None,
        on_missing: OnMissing = "wait",
        wait_limit: float = 3600.0,
        max_frame: int = MAX_FRAME,
        round_limit: float = ROUND_LIMIT,
        on_event: OnEvent = lambda event, **values: None,
        at_once: bool = False,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.role, self.on_missing, self.wait_limit, self.round_limit = role, on_missing, wait_limit, round_limit
        self._at_once, self._driving, self._on_turn = at_once, threading.Lock(), on_turn
        self._watch, self._notices = Watch(role), Notices(on_event)
        self._inbox: ByteQueue[_Event] = ByteQueue()
        self._parties: dict[int, Connection] = {}
        self._secure = identity is not None
        self._present: set[str] = set()
        self._lock = threading.Lock()
        threads = ThreadPoolExecutor(2 * len(role.names) + 8, thread_name_prefix="cvfl-stream")
        most = 2 * len(role.names) + 4
        self._server = grpc.server(threads, options=server_options(max_frame), maximum_concurrent_rpcs=most)
        handler = grpc.stream_stream_rpc_method_handler(self._join)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        if identity is None:
            check_insecure(address)
            self.port = self._bind(lambda: self._server.add_insecure_port(address), address)
        else:
            self.port = self._bind(lambda: self._server.add_secure_port(address, identity.for_server()), address)

    def _bind(self, bind: Callable[[], int], address: str) -> int:
        try:
            return bind()
        except RuntimeError:
            raise RemoteProtocolError(f"{address} cannot be listened on; is another server there?") from None

    def run(self, on_wait: OnWait = lambda missing, seconds: None) -> None:
        """Run the federation to its end; an error that concerns all is told to all and raised."""
        self._server.start()
        try:
            self._loop(on_wait)
        except ExhaustedError:
            raise  # it is started again, and parties wait for it as for one that has crashed
        except CvflError as error:
            self._tell_all(str(error))
            raise
        finally:
            self._notices.show()
            self._inbox.close()
            for connection in self._parties.values():
                connection.outbox.put(None)
            self._server.stop(grace=5).wait()

    def _loop(self, on_wait: OnWait) -> None:
        missing_since: float | None = time.monotonic()
        started = False
        while not self.role.done:
            self._work_on()
            if not self.role.missing:
                missing_since, started = None, True
                continue
            if missing_since is None:
                missing_since = time.monotonic()
            waited = time.monotonic() - missing_since
            on_wait(self.role.missing, waited)
            if (started and self.on_missing == "fail") or waited > self.wait_limit:
                missing = " and ".join(self.role.missing)
                raise RemoteProtocolError(f"{missing} did not come{' back' if started else ''} within {waited:.0f} s")
        self._part_from_all(on_wait)

    def _part_from_all(self, on_wait: OnWait) -> None:
        """Stay until every party has heard that the run is over; one that is away for long keeps nobody."""
        ended = time.monotonic()
        while len(self.role.told) < len(self.role.names):
            waited = time.monotonic() - ended
            if waited > min(_FAREWELL, self.wait_limit):
                return
            if self.role.missing and waited > _TICK:
                on_wait(self.role.missing, waited)
            self._work_on()

    def _work_on(self) -> None:
        try:
            event = self._inbox.get(timeout=_TICK)
        except queue.Empty:
            event = None
        with self._driving:
            if event is None:
                self._send(self.role.work())
            else:
                self._handle(event)
            if self._watch.silence() > self.round_limit:
                for m in self._watch.owing():
                    self._cut(self._parties[m], f"nothing came from it for {self.round_limit:.0f} s, and it is awaited")
        self._notices.show()
        self._on_turn()

    def _handle(self, event: _Event) -> None:
        connection = event.connection
        if event.error is not None:
            raise event.error
        if event.joins:
            self._admit(connection)
        elif event.frame is None:
            self._part_with(connection)
        elif self._parties.get(connection.m) is connection:
            self._take(connection, event.frame)

    def _take(self, connection: Connection, frame: bytes) -> None:
        self._watch.heard(connection.m)
        try:
            self._send(self.role.receive(connection.m, frame))
        except DecodeError as error:
            # Garbage on an admitted stream: that stream is cut, and the party may come again.
            self._cut(connection, str(error))
            return
        self._send(self.role.work())

    def _admit(self, connection: Connection) -> None:
        try:
            connection.m, replies = self.role.join(connection.first, connection.name)
        except (RemoteProtocolError, DecodeError) as error:
            connection.outbox.put(encode_control(Refusal(reason=str(error)), 0))
            connection.outbox.put(None)
            self._notices.add("refused", connection.name or "a peer", str(error))
            if isinstance(error, TermsError):
                raise
            return
        self._parties[connection.m] = connection
        threading.Thread(target=self._read, args=(connection,), daemon=True).start()
        self._send(replies)
        self._send(self.role.work())

    def _cut(self, connection: Connection, why: str) -> None:
        """End a party's connection, whether or not it reads, and say so; it may come again."""
        self._notices.add("cut", self.role.names[connection.m - 1], why)
        connection.cancel()
        self._part_with(connection)

    def _part_with(self, connection: Connection) -> None:
        connection.outbox.put(None)
        if self._parties.get(connection.m) is connection:
            del self._parties[connection.m]
            self._watch.left(connection.m)
            self.role.leave(connection.m)
            self._send(self.role.work())

    def _send(self, replies: Replies) -> None:
        full = {m for m, frame in replies if m in self._parties and not self._parties[m].outbox.put(frame)}
        self._watch.sent(m for m, _ in replies)
        for m in full:
            self._cut(self._parties[m], f"it has left more than {UNREAD >> 20} MB unread")

    def _tell_all(self, reason: str) -> None:
        for connection in self._parties.values():
            connection.outbox.put(encode_control(Refusal(reason=reason), 0))

    def _join(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """A stream, in a thread of gRPC: who may not take part is refused before a byte of protocol is read."""
        name = peer_name(context)
        if name is None and self._secure:
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "a peer", "the certificate has no common name")
        if name is not None and name not in self.role.names:
            why = f"{name!r} is no party of this federation"
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, name, why)
        with self._lock:
            here = name in self._present
            if name is not None and not here:
                self._present.add(name)
        if name is not None and here:
            self._refuse(context, grpc.StatusCode.ALREADY_EXISTS, name, f"{name} is here already")
        try:
            yield from self._stream(name, frames, context)
        finally:
            with self._lock:
                self._present.discard(name or "")

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, peer: str, why: str) -> None:
        self._notices.add("refused", peer, why)
        context.abort(code, why)

    def _stream(self, name: str | None, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        silent = threading.Timer(_HELLO, context.cancel)
        silent.daemon = True
        silent.start()
        try:
            connection = Connection(name, next(frames), frames, context.cancel)
        except (StopIteration, grpc.RpcError):
            return
        finally:
            silent.cancel()
        if not context.add_callback(lambda: connection.outbox.put(None)):
            return
        # By name, not by connection: a party that comes again does so after it has left.
        peer = name or ""
        self._inbox.put(peer, _Event(connection, None, joins=True))
        try:
            yield from iter(connection.outbox.get, None)
        finally:
            self._inbox.put(peer, _Event(connection, None))

    def _read(self, connection: Connection) -> None:
        try:
            for frame in connection.frames:
                event = _Event(connection, frame)
                if self._at_once:
                    self._drive(event)
                else:
                    self._inbox.put(connection.name or "", event, len(frame))
        except Exception:
            pass
        connection.outbox.put(None)

    def _drive(self, event: _Event) -> None:
        """Work on an event in the thread that read it; an error is for the thread that runs the federation."""
        try:
            with self._driving:
                self._handle(event)
        except Exception as error:
            self._inbox.put("", _Event(event.connection, None, error=error))
