"""The server's connections: what comes in as frames goes on as messages, and what is to be said goes out as frames.

    frame of party m ──read──▶ of a session before? ─no─▶ may it pass now? ──▶ message
    frame for party m ◀──write── may it pass now? ◀── message

What may pass when is the affair of agreement/handshake.py, which each connection follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cvfl.errors import RemoteProtocolError
from cvfl.federation.agreement.handshake import Anything, Link, Phase, Seat
from cvfl.federation.agreement.session import Said
from cvfl.runtime.carrier import Replies
from cvfl.types import SERVER, Direction
from cvfl.wire import Bytes, Message, Setup, encode, encode_setup
from cvfl.wire.control import Have, Offer, Refusal, encode_control
from cvfl.wire.frame import kind_of
from cvfl.wire.message import KINDS
from cvfl.wire.read import read_frame
from cvfl.wire.setup import BLINDED, MATCHED


class Links:
    """The connections with parties of these names; `here` has those that are open, by m."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.here: dict[int, Link] = {}
        self._offers: dict[int, Offer] = {}
        self._taken: Counter[int] = Counter()

    @property
    def missing(self) -> tuple[int, ...]:
        """Parties that are not here."""
        return tuple(m for m in range(1, len(self._names) + 1) if m not in self.here)

    @property
    def offers(self) -> dict[int, Offer]:
        """What those who are here offer, in the order of the parties."""
        return {m: self._offers[m] for m in sorted(self.here)}

    def join(self, m: int, seat: Seat, offer: Offer) -> None:
        """Party m is here."""
        self.here[m], self._offers[m] = Link(Direction.DOWN, seat), offer

    def leave(self, m: int) -> None:
        """The connection of party m is gone."""
        self.here.pop(m, None)

    def wait(self) -> None:
        """The session is over: of what comes up now, all is of it until a party is recalled."""
        for link in self.here.values():
            link.wait()

    def at(self, phase: Phase) -> bool:
        """Whether all parties are here, and have come so far."""
        return not self.missing and all(link.phase is phase for link in self.here.values())

    def awaited(self, due: set[int] | None) -> dict[int, int]:
        """Parties from whom a message is due, with how many of theirs have counted; of a round's some are `due`."""
        return {m: self._taken[m] for m, link in sorted(self.here.items()) if _owes(m, link, due)}

    def take(self, m: int, frame: Bytes, session: int) -> Anything | None:
        """The message of a frame of party m; none, if it is of a session before this one."""
        link, name = self.here[m], self._names[m - 1]
        if link.stale and kind_of(frame) in (*KINDS, BLINDED, MATCHED):
            return None
        message = read_frame(frame)
        if isinstance(message, Refusal):
            raise RemoteProtocolError(f"{name}: " + message.reason.removeprefix(f"{name}: "))
        recalled = link.phase is Phase.RECALLED and isinstance(message, Have) and message.session == session
        if link.stale and not recalled:
            return None
        if (sender := getattr(message, "m", m)) != m:
            raise RemoteProtocolError(f"{name}: a message in the name of role {sender}")
        link.take(message, name)
        self._taken[m] += 1
        return message

    def frames(self, messages: Said) -> Replies:
        """The frames of messages to parties that are here, each a step in its handshake."""
        frames: Replies = []
        for m, message in messages:
            if m in self.here:
                self.here[m].send(message)
                frames.append((m, _frame(message)))
        return frames


def _owes(m: int, link: Link, due: set[int] | None) -> bool:
    """Whether party m has something to say now; within a round its machine knows from whom something is `due`."""
    if link.phase not in (Phase.TRAINING, Phase.PREDICTING, Phase.SERVING) or due is None:
        return link.owes
    return m in due


def _frame(message: Anything) -> bytes:
    if isinstance(message, Message):
        return encode(message)
    return encode_setup(message) if isinstance(message, Setup) else encode_control(message, SERVER)
