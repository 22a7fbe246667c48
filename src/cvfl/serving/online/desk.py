"""Between the door and its party: what stands in the way of a request, and how one becomes a message of the party.

app (HTTP) ──ids──▶ Desk ──batches──▶ DoorParty ──frames──▶ the carrier
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cvfl.errors import CvflError
from cvfl.runs.bundle import PartyBundle
from cvfl.runs.witness import ServingRecorder
from cvfl.runtime.carrier import Turn
from cvfl.serving.online.answers import absent
from cvfl.serving.online.batching import STARTING, Batching, DoorError, OnReply, Request
from cvfl.serving.online.machines import DoorParty
from cvfl.serving.online.pseudonyms import Pseudonyms, spelled
from cvfl.serving.online.scoring import Scored
from cvfl.serving.online.stock import PartyStock
from cvfl.types import Direction
from cvfl.wire import Bytes


def closing() -> DoorError:
    """Of a door that takes no request any more."""
    return DoorError(503, "stopping", "this door is about to close")


class Sizes:
    """Bytes of the frames of the door's party, which hears of each."""

    up = down = 0

    def here(self, m: int, here: bool) -> None:
        """Nothing is counted of that."""

    def frame(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count a frame."""
        if direction is Direction.UP:
            self.up += len(frame)
        else:
            self.down += len(frame)


class Desk:
    """Takes ids from the door; `turn` is the one by which its party is driven."""

    def __init__(self, stock: PartyStock, turn: Turn, rows: int) -> None:
        self.stock, self.turn = stock, turn
        self.batching = Batching(self._ask, self.fail, rows)
        self.sizes = Sizes()
        self.end: Any = None
        """The party's end, which a carrier drives."""
        self.recorder: ServingRecorder | None = None
        """Its log."""
        self.failure: BaseException | None = None
        """Of what the door cannot do without: it closes, and whoever opened it hears why."""
        self.away: tuple[str, ...] = ()
        """Parties that are missing."""
        self.connected = False
        """Whether the server was heard of on this connection."""
        self._door: DoorParty | None = None
        self._names: Pseudonyms | None = None
        self._owing: tuple[str, ...] | None = ()
        """Parties that the server said have not answered; None while it is asked for them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parties."""
        return self.stock.bundle.names

    @property
    def here(self) -> dict[str, bool]:
        """Every role beside this one, and whether it is here."""
        parties = {name: self.connected and name not in self.away for name in self.names if name != self.stock.name}
        return {"server": self.connected} | parties

    @property
    def run(self) -> str | None:
        """The run that is served now."""
        door = self._door
        return door.run if door is not None else None

    def bundle_of(self, run: str) -> PartyBundle:
        """The party's bundle of a run that is, or just was, served."""
        store = self.stock.kept.get(run) or self.stock.kept.newest
        return store.model.bundle

    @property
    def trouble(self) -> DoorError | None:
        """Why nothing can be asked now."""
        if self.failure is not None:
            return closing()
        if self.recorder is not None and self.recorder.failed:
            return DoorError(
                503, "log", "this door cannot write its log, and answers nothing without; it is tried all the time"
            )
        if not self.connected:
            return DoorError(503, "server_away", "the server of the federation is away; it is tried again all the time")
        door = self._door
        if door is None and self.away:
            return DoorError(503, "party_away", absent(self.away))
        if door is None or door.common is None:
            return DoorError(503, STARTING, "the roles that are here agree on a session; ask again in a moment")
        if door.run is None:
            return DoorError(
                503, "no_common_model", "there is no run whose models all roles have; bring bundles of one run"
            )
        return None

    def submit(self, ids: Sequence[Sequence[str]], seconds: float, on_reply: OnReply) -> None:
        """Ask for ids, each of one text or of several; the reply comes in another thread."""
        if (trouble := self.trouble) is not None and trouble.code != STARTING:
            raise trouble
        table = self.stock.bundle.table
        texts = [spelled(parts, table.id_type if table else "text") for parts in ids]
        self.batching.submit(Request(texts, on_reply, time.monotonic() + seconds))

    def wonder(self) -> None:
        """Ask the server who has not answered what is under way for the longest time, unless it is asked already."""

        def frames() -> Any:
            number = self.batching.oldest
            if self._door is None or number is None or self._owing is None:
                return iter(())
            self._owing = None
            return self.end.tell([self._door.wonder(number)])

        with suppress(CvflError):  # the connection has ended by it, and those who wait hear so
            self.turn.say(frames)

    @property
    def late(self) -> str:
        """Who has not answered, as far as is known: who says nothing about others is late itself."""
        return " and ".join(self._owing or ("the server",))

    def _ask(self, texts: Sequence[str], said: Any) -> DoorError | None:
        """In the thread of the batches: say it on the connection, if there is one."""
        trouble: list[DoorError] = []

        def frames() -> Any:
            stands = self.trouble
            if stands is not None or self._door is None or self._names is None:
                trouble.append(stands or DoorError(503, STARTING, "a session is about to begin"))
                return iter(())
            if self._door.exhausted:
                self.turn.hang_up()
                trouble.append(
                    DoorError(503, STARTING, "a session is about to begin, since this one has no numbers left")
                )
                return iter(())
            number, messages = self._door.ask(self._names.joined(texts))
            said(number)
            return self.end.tell(messages)

        try:
            if not self.turn.say(frames):
                return self.trouble or DoorError(503, "server_away", "the connection to the server is gone")
        except CvflError:  # the connection has ended by it, and the party begins anew
            return self.trouble or DoorError(503, "failed", "the party of the door could not go on, and begins anew")
        return trouble[0] if trouble else None

    def fail(self, error: BaseException) -> None:
        """A thread has died by which every answer has to pass."""
        self.failure = self.failure or error
        self.batching.lost(closing())

    # What follows is called in the thread that drives the party.

    def key(self, secret: bytes) -> None:
        """The secret of pseudonyms is known."""
        self._names = Pseudonyms(secret)

    def begun(self, door: DoorParty) -> None:
        """A session begins, perhaps without some parties."""
        self._door, self._owing = door, ()
        self.away = tuple(self.names[m - 1] for m in door.course.away)

    def answered(self, number: int, run: str, scored: Scored) -> None:
        """An answer has come."""
        self.batching.answered(number, run, scored)

    def owed(self, parties: tuple[str, ...]) -> None:
        """These parties have not answered."""
        self._owing = parties

    def left(self, away: Sequence[str]) -> None:
        """A session is over; some parties may be away."""
        self._door, self.away = None, tuple(away)
        self.batching.lost(self.trouble or DoorError(503, STARTING, "a session is about to begin"))

    def heard(self) -> None:
        """The server said something."""
        self.connected = True

    def gone(self) -> None:
        """The connection is gone."""
        self.connected = False
        self.left(())
