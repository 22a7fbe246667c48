"""The handshake: which message may pass between a party and the server, when and in which direction. For both ends.

    phase       entered when              what may pass
    WAITING     the party said hello,     nothing: others are missing. What still comes is of the session before
                or somebody left
    RECALLED    the server sent Recall    up Have: the rounds that the party has kept
    KNOWN       the party sent Have       down Settle, when all have said so
    SECRET      rows are settled anew     RowSecret: up from the first party, or the door's, down to the others
    ALIGNING    rows are found by ids     up and down Blinded, up Gone, down Matched
    MATCHED     the rows are in order     Targets: up from the party with the label, down to the others
    TOLD        what rows are for is      up Settled
                known
    SETTLED     the party sent Settled    down Begin, when all have said so: back to round t0
    TRAINING    the server sent Begin     the rounds; up Complete: the last one is kept
    PREDICTING  the same of a prediction  up and down Prediction, batch by batch; up Complete: all are there
    SERVING     the same, to serve        up Ask, Found, Runs; down Ask, Answer, Runs; Owing: until somebody leaves
    COMPLETE    the party sent Complete   down End, when all have said so
    ENDED       the server sent End       up End: the party has heard it

Rows that are known, and those of a data set by name, go from KNOWN to TOLD; rows that are taken as they are, or as an
earlier alignment found them, skip ALIGNING. New rows, which are to be predicted, skip MATCHED, unless some parties may
lack some of them: then Targets say which. A session begins with
Recall, whenever a role has come back, from any phase. Where rows are served, the party with the door hears from any
phase who is away, and waits then; with models that do without some parties a session begins with those who are here.
Each end follows the table by what it sends and gets; a message that is not in it is refused with the name of who sent
it, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.types import Direction
from cvfl.wire import (
    Answer,
    Ask,
    Away,
    Blinded,
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Found,
    Gone,
    Gradient,
    Matched,
    Message,
    Owing,
    Passed,
    Prediction,
    Report,
    Runs,
    Setup,
    Stop,
)
from cvfl.wire.control import Begin, Complete, Control, End, Have, How, Recall, RowSecret, Settle, Settled
from cvfl.wire.targets import Targets


class Phase(StrEnum):
    """How far a party and the server have come with each other."""

    WAITING = "waiting for the others"
    RECALLED = "recalled"
    KNOWN = "waiting for the others' rounds"
    SECRET = "before the secret of the rows"
    ALIGNING = "aligning"
    MATCHED = "before it is told what rows are for"
    TOLD = "settling rows"
    SETTLED = "waiting for the others' rows"
    TRAINING = "training"
    PREDICTING = "predicting"
    SERVING = "serving"
    COMPLETE = "waiting for the others' last round"
    ENDED = "ended"


Anything = Message | Setup | Control | Targets
UP, DOWN = Direction.UP, Direction.DOWN
TABLE: dict[tuple[Phase, type, Direction], Phase] = {
    **{(phase, Recall, DOWN): Phase.RECALLED for phase in Phase},
    (Phase.RECALLED, Have, UP): Phase.KNOWN,
    (Phase.KNOWN, Settle, DOWN): Phase.SECRET,
    **{(Phase.SECRET, RowSecret, way): Phase.ALIGNING for way in Direction},
    **{(Phase.ALIGNING, Blinded, way): Phase.ALIGNING for way in Direction},
    (Phase.ALIGNING, Gone, UP): Phase.ALIGNING,
    (Phase.ALIGNING, Matched, DOWN): Phase.MATCHED,
    **{(Phase.MATCHED, Targets, way): Phase.TOLD for way in Direction},
    (Phase.TOLD, Settled, UP): Phase.SETTLED,
    (Phase.SETTLED, Begin, DOWN): Phase.TRAINING,
    **{(Phase.TRAINING, kind, UP): Phase.TRAINING for kind in (Embedding, Evaluation, Passed, Report)},
    **{(Phase.TRAINING, kind, DOWN): Phase.TRAINING for kind in (Broadcast, Folded, Gradient, Stop, Passed)},
    (Phase.TRAINING, Complete, UP): Phase.COMPLETE,
    (Phase.TRAINING, End, DOWN): Phase.ENDED,  # to a party that comes back when all is over
    **{(Phase.PREDICTING, kind, way): Phase.PREDICTING for kind in (Prediction, Passed) for way in Direction},
    (Phase.PREDICTING, Complete, UP): Phase.COMPLETE,
    (Phase.PREDICTING, End, DOWN): Phase.ENDED,  # likewise
    **{(Phase.SERVING, kind, way): Phase.SERVING for kind in (Ask, Runs, Owing, Passed) for way in Direction},
    (Phase.SERVING, Found, UP): Phase.SERVING,
    (Phase.SERVING, Answer, DOWN): Phase.SERVING,
    **{(phase, Away, DOWN): Phase.WAITING for phase in Phase},
    (Phase.COMPLETE, End, DOWN): Phase.ENDED,
    (Phase.ENDED, End, UP): Phase.ENDED,
}


@dataclass(frozen=True)
class Seat:
    """Which party a link is with: the first one, the one with the label; whether parties bring tables, to predict.

    Of those that predict, whether rows are served, to whoever asks at the door of the party with the label; and whether
    parties may lack some of the rows, which are those of the party with the label.
    """

    first: bool
    label: bool
    tables: bool
    predicts: bool = False
    serves: bool = False
    partly: bool = False

    def allows(self, kind: type, way: Direction) -> bool:
        """Who sends: the first party its secret of the rows, the party with the label what rows are for.

        Of rows that are served the party with the label gives the secret, too, since it is in every session. It alone
        asks, gets scores, and hears which runs all have, who is away and who owes an answer.
        """
        if kind is RowSecret:
            return (way is UP) == (self.label if self.serves else self.first)
        if kind is Prediction:
            return way is UP or self.label
        if kind is Owing:
            return self.label
        if kind is Ask:
            return (way is UP) == self.label
        if kind in (Answer, Runs, Away):
            return way is UP or (self.label and (kind is not Away or self.serves))
        return kind is not Targets or (way is UP) == self.label


class Link:
    """One end of the connection between a party and the server: it follows the table."""

    def __init__(self, sends: Direction, seat: Seat) -> None:
        self.phase = Phase.WAITING
        self.seat = seat
        self._sends = sends
        self._how: How = "known"

    @property
    def stale(self) -> bool:
        """Whether what comes up may still be of a session that is over."""
        return self.phase in (Phase.WAITING, Phase.RECALLED)

    @property
    def owes(self) -> bool:
        """Whether the party has something to say now."""
        return any(phase is self.phase and way is UP and self.seat.allows(kind, way) for phase, kind, way in TABLE)

    def take(self, message: Anything, who: str) -> None:
        """Move on by a message that came from `who`, or refuse it."""
        if not self._moves(message, DOWN if self._sends is UP else UP):
            raise RemoteProtocolError(f"{who}: an unexpected {type(message).__name__} ({self.phase})")

    def send(self, message: Anything) -> None:
        """Move on by a message that is sent now."""
        if not self._moves(message, self._sends):
            raise LocalProtocolError(f"a {type(message).__name__} is not to be sent now ({self.phase})")

    def _moves(self, message: Anything, way: Direction) -> bool:
        known = TABLE.get((self.phase, type(message), way))
        if known is None or not self.seat.allows(type(message), way):
            return False
        if isinstance(message, Settle):
            self._how = message.how
            known = known if self.seat.tables and message.how != "known" else Phase.TOLD
        if isinstance(message, RowSecret) and self._how != "align":
            known = Phase.MATCHED
        if self.seat.predicts:  # new rows have no labels, and are for nothing else
            rounds = Phase.SERVING if self.seat.serves else Phase.PREDICTING
            matched = Phase.MATCHED if self.seat.partly else Phase.TOLD
            known = {Phase.MATCHED: matched, Phase.TRAINING: rounds}.get(known, known)
        self.phase = known
        return True

    def wait(self) -> None:
        """Somebody left: the session is over."""
        self.phase = Phase.WAITING
