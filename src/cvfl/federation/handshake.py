"""The handshake: which message may pass between a party and the server, and when. One table for both ends.

    phase       entered when              what may pass
    WAITING     the party said hello,     nothing: others are missing. What still comes is of the session before
                or somebody left
    RECALLED    the server sent Recall    up Have: the rounds that the party has kept
    KNOWN       the party sent Have       down Settle, when all have said so
    SETTLING    the server sent Settle    up and down Blinded, down Matched: alignment; up and down Targets: labels
                                          up Settled: the party's rows are in their order
    SETTLED     the party sent Settled    down Begin, when all have said so: back to round t0
    TRAINING    the server sent Begin     the rounds; up Complete: the last one is kept
    COMPLETE    the party sent Complete   down End, when all have said so
    ENDED       the server sent End       up End: the party has heard it

A session begins with Recall, whenever a role has come back, from any phase. Each end follows the table by what it sends
and gets; a message that is not in it is refused with the name of who sent it, and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.types import Direction
from cvfl.wire import (
    Blinded,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Gradient,
    Matched,
    Message,
    Passed,
    Report,
    Setup,
)
from cvfl.wire.control import Begin, Complete, Control, End, Have, Recall, Settle, Settled, Targets


class Phase(StrEnum):
    """How far a party and the server have come with each other."""

    WAITING = "waiting for the others"
    RECALLED = "recalled"
    KNOWN = "waiting for the others' rounds"
    SETTLING = "settling rows"
    SETTLED = "waiting for the others' rows"
    TRAINING = "training"
    COMPLETE = "waiting for the others' last round"
    ENDED = "ended"


Anything = Message | Setup | Control | Targets
_UP: dict[tuple[Phase, type], Phase] = {
    (Phase.RECALLED, Have): Phase.KNOWN,
    (Phase.SETTLING, Blinded): Phase.SETTLING,
    (Phase.SETTLING, Targets): Phase.SETTLING,
    (Phase.SETTLING, Settled): Phase.SETTLED,
    **{(Phase.TRAINING, kind): Phase.TRAINING for kind in (Embedding, Evaluation, Passed, Report)},
    (Phase.TRAINING, Complete): Phase.COMPLETE,
    (Phase.ENDED, End): Phase.ENDED,
}
_DOWN: dict[tuple[Phase, type], Phase] = {
    **{(phase, Recall): Phase.RECALLED for phase in Phase},
    (Phase.KNOWN, Settle): Phase.SETTLING,
    **{(Phase.SETTLING, kind): Phase.SETTLING for kind in (Blinded, Matched, Targets)},
    (Phase.SETTLED, Begin): Phase.TRAINING,
    **{(Phase.TRAINING, kind): Phase.TRAINING for kind in (Broadcast, Folded, Gradient, Passed)},
    (Phase.TRAINING, End): Phase.ENDED,  # to a party that comes back when all is over
    (Phase.COMPLETE, End): Phase.ENDED,
}
TABLE = {Direction.UP: _UP, Direction.DOWN: _DOWN}


class Link:
    """One end of the connection between a party and the server: it follows the table."""

    def __init__(self, direction: Direction) -> None:
        self.phase = Phase.WAITING
        self._sends = direction
        self._takes = Direction.DOWN if direction is Direction.UP else Direction.UP

    @property
    def stale(self) -> bool:
        """Whether what comes up may still be of a session that is over."""
        return self.phase in (Phase.WAITING, Phase.RECALLED)

    def take(self, message: Anything, who: str) -> None:
        """Move on by a message that came from `who`, or refuse it."""
        known = TABLE[self._takes].get((self.phase, type(message)))
        if known is None:
            raise RemoteProtocolError(f"{who}: an unexpected {type(message).__name__} ({self.phase})")
        self.phase = known

    def send(self, message: Anything) -> None:
        """Move on by a message that is sent now."""
        known = TABLE[self._sends].get((self.phase, type(message)))
        if known is None:
            raise LocalProtocolError(f"a {type(message).__name__} is not to be sent now ({self.phase})")
        self.phase = known

    def wait(self) -> None:
        """Somebody left: the session is over."""
        self.phase = Phase.WAITING
