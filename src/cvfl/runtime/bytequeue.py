"""Queues that are bounded in bytes: who sends faster than is worked on is held back, and only who does.

Who fills an outbox serves others, too, and is not held back: a peer that leaves too much unread is given up.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from typing import Generic, TypeVar

PEER = 16 << 20
"""Bytes of one peer that may wait; of a single item there may be more, since it was taken for good before."""
TOTAL = 64 << 20
"""Bytes that may wait in all; beyond it, one item of each peer."""
UNREAD = 1 << 30
"""Bytes that may wait for one peer to read them: as much as it has to blind of others in a large alignment."""
_ITEM = 512
"""What an item takes besides its bytes, so that many empty ones are bounded, too."""
T = TypeVar("T")


class ByteQueue(Generic[T]):
    """Items of several peers. Those of one stay in order; peers take turns, so that nobody waits behind a flood."""

    def __init__(self, peer: int = PEER, total: int = TOTAL) -> None:
        self.waiting = 0
        """Bytes that wait."""
        self._peer, self._total = peer, total
        self._items: dict[str, deque[tuple[T, int]]] = {}
        self._bytes: Counter[str] = Counter()
        self._room = threading.Condition()
        # One mark an item: who waits for one is woken once, when it is there, and not by what others take.
        self._there: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False

    def put(self, peer: str, item: T, size: int | None = None) -> None:
        """Add an item of so many bytes as soon as there is room for it; one without a size never waits."""
        taken = 0 if size is None else size + _ITEM
        with self._room:
            self._room.wait_for(lambda: self._closed or self._has_room(peer, taken))
            if self._closed and taken:
                return
            self._items.setdefault(peer, deque()).append((item, taken))
            self._count(peer, taken)
        self._there.put(None)

    def get(self, timeout: float | None = None) -> T:
        """The next item of the peer whose turn it is; queue.Empty if none comes in time."""
        self._there.get(timeout=timeout)
        with self._room:
            peer = next(iter(self._items))
            items = self._items.pop(peer)
            item, taken = items.popleft()
            if items:
                self._items[peer] = items  # at the end: now it is the others' turn
            self._count(peer, -taken)
            self._room.notify_all()
            return item

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items

    def close(self) -> None:
        """Hold nobody back any more: what has bytes and is still to come is dropped."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def _has_room(self, peer: str, taken: int) -> bool:
        own = self._bytes[peer]
        return not taken or not own or (own + taken <= self._peer and self.waiting + taken <= self._total)

    def _count(self, peer: str, taken: int) -> None:
        self._bytes[peer] += taken
        self.waiting += taken


class Outbox:
    """What waits for one peer, in order; `None` ends it."""

    def __init__(self) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0

    def put(self, frame: bytes | None) -> bool:
        """Add a frame; whether the peer has not left too much unread before."""
        with self._lock:
            full = self._waiting > UNREAD
            if not full or frame is None:
                self._waiting += _taken(frame)
                self._frames.put(frame)
        return not full

    def get(self) -> bytes | None:
        """The next frame, when there is one."""
        frame = self._frames.get()
        with self._lock:
            self._waiting -= _taken(frame)
        return frame


def _taken(frame: bytes | None) -> int:
    return 0 if frame is None else len(frame) + _ITEM
