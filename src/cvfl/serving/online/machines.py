"""The roles of serving as message machines: what a party, the door and the server say to what they are told.

    door ──Ask, Found──▶ server ──Ask──▶ parties ──Found──▶ server: scores ──Answer──▶ door
    door ──Owing──▶ server ──Owing──▶ door, if an answer does not come

Where labels stay with the door's party, the server passes on: the parties seal what they found for the door, which
scores. Every role says which runs it has models of, and the door asks for one that all have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cvfl.compress import Masked
from cvfl.errors import CompressError, RemoteProtocolError
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.sealing import Sealing
from cvfl.protocol import Loss, Plan, StepSize
from cvfl.serving.course import Course
from cvfl.serving.machines import AtRest, Replies
from cvfl.serving.online.kept import Kept
from cvfl.serving.online.scoring import Gathering, Scored, Scoring
from cvfl.serving.online.store import Store
from cvfl.types import SERVER
from cvfl.wire import Answer, Ask, Found, Message, Owing, Passed, Runs
from cvfl.wire.serving import PSEUDONYM, SERVING, bits_of, read_bits

MOST = (1 << 32) - 1
"""Numbers of a session, which a frame has room for."""
OnAnswer = Callable[[int, str, Scored], None]
"""(the number of what was asked, of which run, what is known of it)"""
OnOwing = Callable[[tuple[str, ...]], None]
"""(the parties that have not answered)"""


class _Serving(AtRest):
    """What a runtime asks of both ends: serving has no last round."""

    done = False

    def __init__(self, course: Course) -> None:
        self.course = course
        # A runtime counts by a plan; of this one nothing else is used.
        self.plan = Plan(course.seed, MOST, 1, 1, 1, 0, course.widths, Loss.SQUARED, StepSize(eta=1.0))


class ServingServer(_Serving):
    """The server: it passes on what the door asks, and answers with scores, or passes on what others found, too."""

    settled = True

    def __init__(self, course: Course, door: int, scoring: Kept[Scoring] | None, progress: int) -> None:
        super().__init__(course)
        self.t0 = progress
        """Answers and sessions so far: it never gets less."""
        self._door, self._scoring = door, scoring
        self._gathering = Gathering(course)
        self._runs: dict[int, tuple[str, ...]] = {}
        self._told: tuple[str, ...] | None = None
        self._seen: tuple[tuple[str, ...], ...] = ()
        """The runs of each role when it was last looked which ones all have."""
        self._number = -1
        self._passed: dict[int, int] = dict.fromkeys(self._others, 0)

    @property
    def _others(self) -> list[int]:
        return [m for m in self.course.here if m != self._door]

    @property
    def awaited(self) -> set[int]:
        """The parties that have not said what they found."""
        if self._scoring is None:
            return {m for m, count in self._passed.items() if count <= self._number}
        return self._gathering.missing

    def receive(self, message: Message) -> Replies:
        """Take what a party says."""
        match message:
            case Ask():
                return self._ask(message)
            case Found() if self._scoring is not None:
                return self._found(message)
            case Passed(t0, m, to, kind) if self._scoring is None and (to, kind) == (self._door, SERVING):
                if t0 != self._passed.get(m) or t0 > self._number:
                    raise RemoteProtocolError(f"number {t0} was not asked, or is not the next one")
                self._passed[m] += 1
                self.t0 += 1
                return [(to, message)]
            case Owing(t0, m):
                return [(m, Owing(t0, SERVER, self._owing(t0)))]
            case Runs(m, runs):
                self._runs[m] = runs
                return self.news()
        raise RemoteProtocolError(
            f"{type(message).__name__} of number {getattr(message, 't0', 0)} while rows are served"
        )

    def news(self) -> Replies:
        """The runs that all roles have, if the door does not know."""
        seen = (*self._runs.values(), self._scoring.runs if self._scoring else ())
        if len(self._runs) < len(self.course.here) or seen == self._seen:
            return []
        self._seen = seen
        all_of = [set(runs) for runs in self._runs.values()] + ([set(self._here)] if self._scoring else [])
        common = tuple(run for run in self._runs[self._door] if all(run in runs for runs in all_of))
        if common == self._told:
            return []
        self._told = common
        return [(self._door, Runs(SERVER, common))]

    @property
    def _here(self) -> list[str]:
        """The runs that can be scored: their models take what parties send."""
        found = {run: self._scoring.get(run) for run in self._scoring.runs} if self._scoring else {}
        return [run for run, one in found.items() if one and self._takes(one.bundle.widths)]

    def _takes(self, widths: Sequence[int]) -> bool:
        return all(widths[m - 1] == self.course.widths[m - 1] for m in self.course.here)

    def _ask(self, ask: Ask) -> Replies:
        if ask.t0 != self._number + 1:
            raise RemoteProtocolError(f"number {ask.t0} after number {self._number}")
        if self._scoring is not None:
            scoring = self._scoring.get(ask.run)
            if scoring is None:
                raise RemoteProtocolError(f"run {ask.run} is asked for, which is not here")
            self._gathering.expect(ask.t0, scoring, len(ask.pseudonyms) // PSEUDONYM)
            self._scoring.asked(ask.run)
        self._number = ask.t0
        return [(m, Ask(ask.t0, SERVER, ask.run, ask.pseudonyms)) for m in self._others]

    def _owing(self, number: int) -> tuple[int, ...]:
        """Who has not said what it found for this number, if it was asked."""
        if self._scoring is not None:
            return self._gathering.owing(number)
        return tuple(m for m, count in self._passed.items() if count <= number <= self._number)

    def _found(self, found: Found) -> Replies:
        return [self._answer(*scored) for scored in self._gathering.take(found)]

    def _answer(self, number: int, scored: Scored, scoring: Scoring) -> tuple[int, Message]:
        self.t0 += 1
        scores, known = scored.numbers.numpy().astype("<f8").tobytes(), tuple(map(bits_of, scored.known))
        return self._door, Answer(number, len(scored.known[0]), scoring.columns, known, scores)


class ServingParty(_Serving):
    """A party: it says what it found of rows that are asked for; sealed, if labels stay with the party of the door."""

    settled = False  # nothing of it needs to be kept

    def __init__(self, course: Course, m: int, kept: Kept[Store], secrets: PairSecrets | None, holder: int) -> None:
        super().__init__(course)
        self.m, self.t0, self._kept, self._holder = m, 0, kept, holder
        self._told: tuple[str, ...] = ()
        self._codec, self._next = course.codec(m), 0
        if isinstance(self._codec.compressor, Masked) and secrets is not None:
            self._codec.compressor.mask = Masks(secrets)
        self._seals: Sealing | None = None
        if holder:
            if secrets is None:
                raise RemoteProtocolError("the server began without the keys of the parties")
            self._seals = Sealing(secrets, course.names, here=course.here)

    def start(self) -> Iterable[Message]:
        """The runs that it has."""
        return self.news()

    def news(self) -> list[Message]:
        """The runs that it has, if others do not know."""
        if self._told == self._kept.runs:
            return []
        self._told = self._kept.runs
        return [Runs(self.m, self._told)]

    def receive(self, message: Message) -> Iterator[Message]:
        """Say what is known of rows that are asked for."""
        if not isinstance(message, Ask) or message.m != SERVER or message.t0 != self._next:
            self._refuse(f"an unexpected {type(message).__name__}")
        assert isinstance(message, Ask)
        found = self._found(message)
        yield self._seals.seal(self._holder, found) if self._seals else found

    def _found(self, ask: Ask) -> Found:
        store, self._next = self._kept.get(ask.run), self._next + 1
        if store is None:
            self._refuse(f"run {ask.run} is asked for, which is not here")
        assert store is not None
        self._kept.asked(ask.run)
        self.t0 += 1
        known, h = store.look(ask.pseudonyms)
        sent = h if not self.course.secure else _among_zeros(known, h)
        try:
            packet = self._codec.encode(sent, ask.t0) if len(sent) else b""
        except CompressError:  # a row beyond what the compressor takes: none of these has an answer
            known = np.zeros_like(known)
            packet = self._codec.encode(torch.zeros_like(sent), ask.t0) if self.course.secure else b""
        return Found(ask.t0, self.m, len(known), bits_of(known), packet)

    def _refuse(self, what: str) -> None:
        raise RemoteProtocolError(f"{self.course.names[self.m - 1]}: from the server: {what}")


class DoorParty(ServingParty):
    """The party of the door: it asks, and hears scores, or computes them where labels stay with it."""

    def __init__(
        self,
        course: Course,
        m: int,
        kept: Kept[Store],
        secrets: PairSecrets | None,
        scoring: Kept[Scoring] | None,
        on_answer: OnAnswer,
        on_owing: OnOwing,
    ) -> None:
        super().__init__(course, m, kept, secrets, m if scoring else 0)
        self.common: tuple[str, ...] | None = None
        """The runs that all roles have, once it is known."""
        self._scoring, self._on_answer, self._on_owing = scoring, on_answer, on_owing
        self._gathering = Gathering(course)
        self._open: dict[int, tuple[str, int]] = {}

    @property
    def run(self) -> str | None:
        """The newest run that all roles have."""
        return next((run for run in reversed(self._kept.runs) if run in (self.common or ())), None)

    def ask(self, pseudonyms: bytes) -> tuple[int, Iterator[Message]]:
        """Ask for rows: its number, and what is to be sent, of which all must be."""
        run, number = self.run, self._next
        assert run is not None  # or nobody may ask
        return number, self._asking(Ask(number, self.m, run, pseudonyms))

    def _asking(self, ask: Ask) -> Iterator[Message]:
        """First what the others are asked, so that they look for it while this party does."""
        count = len(ask.pseudonyms) // PSEUDONYM
        self._open[ask.t0] = ask.run, count
        yield ask
        if self._scoring is None:
            yield self._found(ask)
            return
        scoring = self._scoring.get(ask.run)
        assert scoring is not None  # it has come together with the party's own model
        self._scoring.asked(ask.run)
        self._gathering.expect(ask.t0, scoring, count)
        self._take(self._found(ask))

    def wonder(self, number: int) -> Message:
        """Ask who has not answered what was asked with this number."""
        return Owing(number, self.m)

    @property
    def exhausted(self) -> bool:
        """Whether there is no number left, so that a new session must begin."""
        return self._next >= MOST

    def receive(self, message: Message) -> Iterator[Message]:
        """Take an answer, what another party found, which runs all have, or who has not answered."""
        match message:
            case Runs(m, runs) if m == SERVER:
                self.common = runs
            case Owing(_, m, parties) if m == SERVER and max(parties, default=0) <= len(self.course.names):
                self._on_owing(tuple(self.course.names[m - 1] for m in parties))
            case Answer() if self._scoring is None and message.t0 in self._open:
                self._answer(message)
            case Passed() if self._scoring is not None:
                assert self._seals is not None
                opened = self._seals.open(message)
                if not isinstance(opened, Found):
                    raise RemoteProtocolError(f"{self.course.names[message.m - 1]}: a sealed {type(opened).__name__}")
                self._take(opened)
            case _:
                self._refuse(f"an unexpected {type(message).__name__}")
        return iter(())

    def _take(self, found: Found) -> None:
        for number, scored, _ in self._gathering.take(found):
            run, _ = self._open.pop(number)
            self._on_answer(number, run, scored)

    def _answer(self, answer: Answer) -> None:
        run, count = self._open.pop(answer.t0)
        if answer.count != count or len(answer.known) != len(self.course.names) + 1:
            self._refuse(f"an answer of {answer.count} rows and {len(answer.known)} roles")
        known = tuple(read_bits(bits, count) for bits in answer.known)
        store = self._kept.get(run)
        partly = store is not None and store.model.bundle.absence
        if (known[0] & ~(np.logical_or if partly else np.logical_and).reduce(known[1:])).any():
            self._refuse("a score of a row that too few parties know")
        shape = int(known[0].sum()), answer.columns
        if len(answer.scores) != 8 * shape[0] * shape[1]:
            self._refuse(f"{len(answer.scores)} bytes of scores for {shape[0]} rows of {shape[1]} numbers")
        numbers = np.frombuffer(answer.scores, dtype="<f8").astype(np.float64).reshape(shape)
        if not np.isfinite(numbers).all():
            self._refuse("a score that is not finite")
        self._on_answer(answer.t0, run, Scored(known, torch.from_numpy(numbers), self.course.away))


def _among_zeros(known: np.ndarray[tuple[int], np.dtype[np.bool_]], h: Tensor) -> Tensor:
    """Embeddings of all rows, zeros where a row is not known: masks need every party's part of it."""
    full = torch.zeros(len(known), h.shape[1], dtype=h.dtype)
    full[torch.from_numpy(known)] = h
    return full
