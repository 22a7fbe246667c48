"""What every transport holds parties to, and tells an operator of them: nobody keeps the others waiting for ever."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cvfl.errors import RemoteProtocolError, plain
from cvfl.runtime.carrier import ServerEnd

ROUND_LIMIT = 600.0
"""Seconds without any progress after which whoever is awaited counts as gone."""
MOST_RESTARTS = 20
"""How often one party may break off what all are at, without a new round in between."""
_GLANCE = 1.0
_ONCE_IN = 60.0
_MOST_PEERS = 100

OnEvent = Callable[..., None]
"""(event, peer=, why=, times=): a line about a peer."""


class Watch:
    """Measures for how long nothing came that is due, and from whom; time that the server itself works does not count.

    Any message that counts is progress, whoever sent it: an alignment may take hours, as long as parts arrive.
    """

    def __init__(self, role: ServerEnd) -> None:
        self._role = role
        self._known: Mapping[int, int] = {}
        self._silence, self._looked = 0.0, time.monotonic()
        self._spoken_to: set[int] = set()
        self._restarts: Counter[int] = Counter()
        self._reached = 0

    def heard(self, m: int) -> None:
        """A frame of party m came."""
        self._spoken_to.discard(m)

    def sent(self, parties: Iterable[int]) -> None:
        """Frames for these parties are on their way."""
        self._spoken_to.update(parties)

    def silence(self) -> float:
        """Seconds without progress while somebody is awaited; to be asked after every event, and when there is none."""
        now, awaited = time.monotonic(), self._role.awaited
        self._silence += min(now - self._looked, _GLANCE)  # what takes longer was the server's own work
        self._looked = now
        if awaited != self._known or not awaited:
            self._known, self._silence = dict(awaited), 0.0
        return self._silence

    def owing(self) -> list[int]:
        """Who is to blame for it: of those awaited, who was told something and has not said anything since."""
        return [m for m in self._known if m in self._spoken_to] or list(self._known)

    def left(self, m: int) -> None:
        """Party m is about to leave; who does so again and again, and nothing moves on, ends the run."""
        if self._role.missing or self._role.done:
            return  # nothing was under way that it could break off
        if self._role.reached > self._reached:
            self._reached = self._role.reached
            self._restarts.clear()
        self._restarts[m] += 1
        if self._restarts[m] > MOST_RESTARTS:
            name = self._role.names[m - 1]
            raise RemoteProtocolError(f"{name} left {self._restarts[m]} times without a new round in between")


@dataclass
class _Notice:
    why: str
    times: int = 0
    shown: float = float("-inf")


class Notices:
    """Lines about peers: any thread may add one, and one thread shows them, the same at most once a minute."""

    def __init__(self, show: OnEvent) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._notices: dict[tuple[str, str], _Notice] = {}

    def add(self, event: str, peer: str, why: str) -> None:
        """Something is to be told of a peer."""
        with self._lock:
            if len(self._notices) >= _MOST_PEERS and (event, peer) not in self._notices:
                peer = "others"
            notice = self._notices.setdefault((event, peer), _Notice(why))
            notice.why, notice.times = why, notice.times + 1

    def show(self) -> None:
        """Show what is due."""
        now = time.monotonic()
        with self._lock:
            due = [(key, one) for key, one in self._notices.items() if one.times and now - one.shown > _ONCE_IN]
            lines = [(event, plain(peer), plain(one.why), one.times) for (event, peer), one in due]
            for _, one in due:
                one.times, one.shown = 0, now
        for event, peer, why, times in lines:
            self._show(event, peer=peer, why=why, times=times)
