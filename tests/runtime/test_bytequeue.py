"""A queue that is bounded in bytes: who floods waits, the others do not."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from cvfl.runtime import bytequeue
from cvfl.runtime.bytequeue import ByteQueue, Outbox


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def flooded(items: ByteQueue[str], count: int, size: int, peer: str = "loud") -> threading.Thread:
    def put() -> None:
        for i in range(count):
            items.put(peer, f"{peer} {i}", size)

    thread = in_thread(put)
    thread.join(0.2)
    assert thread.is_alive()
    return thread


def test_a_peer_is_held_back_by_its_bytes_and_goes_on_when_there_is_room() -> None:
    items: ByteQueue[str] = ByteQueue(peer=10_000, total=50_000)
    thread = flooded(items, 100, 1000)
    assert 5_000 < items.waiting <= 10_000
    assert [items.get() for _ in range(100)] == [f"loud {i}" for i in range(100)]
    thread.join(5)
    assert not thread.is_alive()
    assert items.waiting == 0


def test_many_empty_items_are_bounded_too() -> None:
    items: ByteQueue[str] = ByteQueue(peer=10_000, total=50_000)
    flooded(items, 100, 0)
    assert items.waiting <= 10_000


def test_one_item_that_is_larger_than_all_room_gets_in_alone() -> None:
    items: ByteQueue[str] = ByteQueue(peer=10, total=20)
    items.put("a", "huge", 1000)
    items.put("b", "huge as well", 1000)  # each peer has room for one, whatever the others do
    flooded(items, 2, 1, "a")
    assert items.get() == "huge"


def test_all_together_are_bounded_and_who_has_nothing_waiting_gets_in() -> None:
    items: ByteQueue[str] = ByteQueue(peer=10_000, total=15_000)
    for peer in ("a", "b", "c"):
        flooded(items, 100, 1000, peer)
    assert items.waiting <= 15_000 + 1_512
    items.put("quiet", "hello", 1000)


def test_peers_take_turns() -> None:
    items: ByteQueue[str] = ByteQueue()
    for i in range(3):
        items.put("loud", f"loud {i}", 10)
    items.put("quiet", "quiet 0", 10)
    assert [items.get() for _ in range(4)] == ["loud 0", "quiet 0", "loud 1", "loud 2"]


def test_what_has_no_size_never_waits_and_stays_in_order() -> None:
    items: ByteQueue[str] = ByteQueue(peer=10, total=10)
    items.put("a", "frame", 100)
    items.put("a", "left")
    assert [items.get(), items.get()] == ["frame", "left"]


def test_nothing_comes() -> None:
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        ByteQueue[str]().get(timeout=0.05)
    assert time.monotonic() - began < 5


def test_each_item_wakes_one_of_those_who_wait_for_it() -> None:
    items: ByteQueue[str] = ByteQueue()
    taken: queue.SimpleQueue[str] = queue.SimpleQueue()
    threads = [in_thread(lambda: taken.put(items.get(timeout=5))) for _ in range(3)]
    for i in range(3):
        items.put("a", str(i), 10)
    for thread in threads:
        thread.join(5)
    assert {taken.get(timeout=5) for _ in threads} == {"0", "1", "2"}
    assert items.empty()
    assert items.waiting == 0


def test_nobody_is_held_back_when_it_is_closed() -> None:
    items: ByteQueue[str] = ByteQueue(peer=1000, total=1000)
    thread = flooded(items, 1000, 500)
    items.close()
    thread.join(5)
    assert not thread.is_alive()
    assert items.waiting <= 2024
    items.put("loud", "left")
    assert not items.empty()


def test_an_outbox_never_waits_and_says_when_too_much_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytequeue, "UNREAD", 5_000)
    outbox = Outbox()
    assert outbox.put(bytes(100_000))  # a single frame is taken whatever its size
    assert not outbox.put(b"more")
    outbox.put(None)  # the end always
    assert [outbox.get(), outbox.get()] == [bytes(100_000), None]
    assert [outbox.put(bytes(1000)) for _ in range(6)] == [True] * 4 + [False] * 2
    assert len(outbox.get() or b"") == 1000
    assert outbox.put(b"room again")
