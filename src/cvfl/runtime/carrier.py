"""The seam of a transport: what carries frames drives one of these two ends, and knows nothing else of cvfl.

    a party's process                                  the server's process
    hello()         ────────first frame────────▶       join(frame, name)     -> m, frames for parties
    receive(frame)  ◀───────frames for m────────       work()                -> frames for parties
         └─▶ frames ────────in their order─────▶       receive(m, frame)     -> frames for parties
                                                       leave(m)              when the connection is gone

What a transport promises: the frames of a connection arrive whole, once and in their order. When it breaks, what was on
its way is lost, the server hears `leave(m)`, and the party connects again and begins with a new `hello()`. A transport
says for whom a connection vouches (`name`), and calls `work()` whenever what there was to send is on its way. An end
that raises `CvflError` stops: the party tells the server with `refusal(error)`, the server tells all. One thread at
a time drives an end. A role has no clock: how long it waits, and for whom, is for a transport to say, by `missing` and
`awaited`; runtime/watch.py keeps the time. Who asks a party from outside, as where rows are served, drives its end in
its `Turn`, where a transport has one. docs/adding-a-transport.md adds a transport in sixty lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from cvfl.errors import CvflError, RemoteProtocolError
from cvfl.wire import Bytes
from cvfl.wire.control import Refusal, encode_control

Replies = list[tuple[int, bytes]]
"""Frames to send, each with the party that it is for."""


class TermsError(RemoteProtocolError):
    """A party was told other terms of the run than the server: nobody can go on."""


class ServerEnd(Protocol):
    """The server, as a transport drives it."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parties in their order: m = 1, 2, ..."""

    @property
    def missing(self) -> list[str]:
        """Parties that are not connected."""

    @property
    def awaited(self) -> Mapping[int, int]:
        """Parties that are here and from whom a message is due now, each with how many of its messages have counted."""

    @property
    def reached(self) -> int:
        """Rounds that have ever been over: it never gets less."""

    @property
    def done(self) -> bool:
        """Whether the run is over; parties that have not heard so may still connect."""

    @property
    def told(self) -> set[int]:
        """The parties that have heard that the run is over."""

    def join(self, frame: Bytes, name: str | None = None) -> tuple[int, Replies]:
        """Take the first frame of a connection that vouches for `name`; which party it is, and what is to be sent.

        RemoteProtocolError refuses the connection, and TermsError ends the run.
        """

    def leave(self, m: int) -> None:
        """The connection of party m is gone."""

    def receive(self, m: int, frame: Bytes) -> Replies:
        """Take a frame of party m. DecodeError: bytes that are no frame, cut the connection."""

    def work(self) -> Replies:
        """Compute, now that all there was to send is on its way."""


class PartyEnd(Protocol):
    """A party, as a transport drives it."""

    @property
    def name(self) -> str:
        """Which party it is."""

    @property
    def done(self) -> bool:
        """Whether the run is over."""

    @property
    def refused(self) -> str | None:
        """Why the server stopped, if it did."""

    def hello(self) -> bytes:
        """The first frame of a new connection."""

    def receive(self, frame: Bytes) -> Iterable[bytes]:
        """Take a frame; the answers come as they are ready, and are best sent at once."""


class Turn:
    """Whose turn it is to drive a party's end: that of its transport, or of somebody who has something to say."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._send: Callable[[bytes | None], None] | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The transport's turn."""
        with self._lock:
            yield

    def connected(self, send: Callable[[bytes | None], None] | None) -> None:
        """How frames are sent from now on, and how the connection is ended, with None; there may be no connection."""
        with self._lock:
            self._send = send

    def say(self, frames: Callable[[], Iterable[bytes]]) -> bool:
        """Send what the party's end has to say; whether there was a connection to say it on.

        An end that raises stops here, too: the server hears so, and the connection ends.
        """
        with self._lock:
            if self._send is None:
                return False
            try:
                for frame in frames():
                    self._send(frame)
            except CvflError as error:
                self._send(refusal(error))
                self._send(None)
                raise
            return True

    def hang_up(self) -> None:
        """End the connection; the transport makes a new one."""
        with self._lock:
            if self._send is not None:
                self._send(None)


def refusal(error: CvflError) -> bytes:
    """The frame by which a party tells the others that it stops, and if they sent what is not allowed, what that was.

    What any other error says may be about its data: it stays here.
    """
    hidden = f"stopped with a {type(error).__name__}; its own log says more"
    return encode_control(Refusal(reason=str(error) if isinstance(error, RemoteProtocolError) else hidden), 0)
