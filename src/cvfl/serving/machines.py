"""The roles of a prediction as message machines: new rows go by in batches, as rounds do, and nobody trains.

    party m   ──Prediction(t0, m)──▶   server: outputs of batch t0   ──Prediction(t0), scores──▶   the label's party

Where labels stay with a party, the others' batches go to it, sealed; it scores, and the server passes on. Masked
batches are added up as in an evaluation. A session that begins anew begins with the first batch.

With models that do without some parties a batch has of each party the rows that it holds. Scores have a number more
then: 1, or 0 of a row that has none, since a party lacks it that the model never learned to do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cvfl.compress import Masked
from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.sealing import Sealing
from cvfl.protocol import Certificate, Evaluated, Measured
from cvfl.protocol.absence import stood_in
from cvfl.runs.bundle import ServerBundle, needed
from cvfl.serving.course import Course
from cvfl.serving.embed import at_rest, finite
from cvfl.serving.scores import numbers_of
from cvfl.types import SERVER
from cvfl.wire import Bytes, Message, Passed, Prediction
from cvfl.wire.message import PREDICTION

Replies = list[tuple[int, Message]]


class AtRest:
    """What a runtime asks of a machine that trains, and of one that does not."""

    measured: Measured | None = None
    certified: Certificate | None = None
    evaluation: Evaluated | None = None
    loss = float("nan")
    models: ClassVar[Mapping[str, nn.Module]] = {}

    def train(self) -> None:
        """Nothing is learned."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    settled_state = state_dict

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing was."""


class Scorer:
    """Scores batches when all parties' embeddings of them are there, each once and in any order."""

    def __init__(self, course: Course, bundle: ServerBundle, model: nn.Module) -> None:
        self.course, self.bundle, self._model = course, bundle, model
        self.t0 = 0
        """Batches that are scored."""
        self._inbox: dict[int, dict[int, Bytes]] = {}
        self._codecs = {m: course.codec(m) for m in self._parties}
        self._total = course.total()
        self._needed = [course.names.index(name) + 1 for name in needed(bundle, model)]

    @property
    def _parties(self) -> range:
        return range(1, len(self.course.names) + 1)

    @property
    def missing(self) -> set[int]:
        """The parties of whom the next batch is not there."""
        return {*self._parties} - self._inbox.get(self.t0, {}).keys()

    def take(self, t0: int, m: int, packet: Bytes) -> Iterator[tuple[int, Tensor]]:
        """Take an embedding; the scores of batches that are complete with it."""
        here = self._inbox.setdefault(t0, {})
        if m in here or not self.t0 <= t0 < self.course.batches:
            raise RemoteProtocolError(f"a second or unknown Prediction of party {m} for batch {t0}")
        here[m] = packet
        while not self.missing:
            packets = self._inbox.pop(self.t0)
            phi = self._read(self.t0, packets)
            numbers = numbers_of(self.bundle, finite(at_rest(self._model, phi)))
            yield self.t0, torch.hstack([numbers, self._scored(self.t0)]) if self.bundle.stand_ins else numbers
            self.t0 += 1

    def _read(self, t0: int, packets: Mapping[int, Bytes]) -> list[Tensor]:
        course, dtype = self.course, self.bundle.dtype
        try:
            if self._total is not None:
                shape = course.shape(t0, course.widths[0])
                return [self._total.decode(self._total.add(packets, t0, shape, dtype), t0, shape, dtype)]
            phi = {m: self._decoded(m, t0, packets[m]) for m in self._parties}
        except DecodeError as error:
            raise RemoteProtocolError(str(error)) from error
        return self._stood_in(t0, phi) if self.bundle.stand_ins else [*phi.values()]

    def _decoded(self, m: int, t0: int, packet: Bytes) -> Tensor:
        shape = len(self.course.rows_of(m, t0)), self.course.widths[m - 1]
        if shape[0] == 0 and len(packet) == 0:  # it holds none of these rows
            return torch.empty(shape, dtype=self.bundle.dtype)
        return self._codecs[m].decode(packet, t0, shape, self.bundle.dtype)

    def _scored(self, t0: int) -> Tensor:
        """Which rows of a batch all parties hold that the model needs: a column of ones and zeros."""
        rows = self.course.batch(t0)
        scored = torch.ones(rows.stop - rows.start, dtype=torch.bool)
        for m in self._needed:
            scored &= self.course.held[m][rows] if m in self.course.held else True
        return scored.double()[:, None]

    def _stood_in(self, t0: int, told: Mapping[int, Tensor]) -> list[Tensor]:
        """The embeddings of all rows of a batch, with what was learned in place of those that are not there."""
        rows, bundle = self.course.batch(t0), self.bundle
        phi, absent = list[Tensor](), list[Tensor]()
        for name, width in zip(bundle.names, bundle.widths, strict=True):
            h = torch.zeros(*self.course.shape(t0, width), dtype=bundle.dtype)
            away = torch.ones(len(h), dtype=torch.bool)
            if name in self.course.names:
                m = self.course.names.index(name) + 1
                at = self.course.rows_of(m, t0) - rows.start
                h[at], away[at] = told[m], False
            phi.append(h)
            absent.append(away)
        with torch.no_grad():
            return stood_in(self._model, phi, absent)


class ScoringServer(AtRest):
    """The server: it scores what parties send, and tells the party that had the label."""

    settled = True

    def __init__(self, scorer: Scorer, label: int) -> None:
        self.plan, self._scorer, self._label = scorer.course.plan(scorer.bundle.dtype, scorer.bundle), scorer, label
        self._codec = scorer.course.scores_codec()

    @property
    def t0(self) -> int:
        """Batches that are scored."""
        return self._scorer.t0

    @property
    def done(self) -> bool:
        """Whether all are."""
        return self.t0 == self.plan.rounds

    @property
    def awaited(self) -> set[int]:
        """The parties of whom the next batch is missing."""
        return self._scorer.missing

    def receive(self, message: Message) -> Replies:
        """Take a party's batch."""
        if not isinstance(message, Prediction):
            raise RemoteProtocolError(f"{type(message).__name__} of round {message.t0} in a prediction")
        found = self._scorer.take(message.t0, message.m, message.packet)
        return [(self._label, Prediction(t0, SERVER, self._codec.encode(numbers, t0))) for t0, numbers in found]


class PassingServer(AtRest):
    """The server where labels stay with a party: it passes sealed batches on to it, each once and in their order."""

    settled = True

    def __init__(self, course: Course, holder: int) -> None:
        self.plan, self._holder = course.plan(torch.float32), holder
        self._passed = {m: 0 for m in range(1, len(course.names) + 1) if m != holder}

    @property
    def t0(self) -> int:
        """Batches that all have sent."""
        return min(self._passed.values())

    @property
    def done(self) -> bool:
        """Whether all were passed on."""
        return self.t0 == self.plan.rounds

    @property
    def awaited(self) -> set[int]:
        """The parties that are behind."""
        return {m for m, count in self._passed.items() if count == self.t0}

    def receive(self, message: Message) -> Replies:
        """Pass a batch on."""
        match message:
            case Passed(t0, m, to, kind) if kind == PREDICTION and to == self._holder and t0 == self._passed.get(m):
                self._passed[m] += 1
                return [(to, message)]
        raise RemoteProtocolError(f"{type(message).__name__} of round {message.t0} in a prediction")


class PredictingParty(AtRest):
    """A party: it sends its batches, and the one that had the label takes in scores."""

    settled = False  # nothing of it needs to be kept

    def __init__(self, course: Course, m: int, h: Tensor, secrets: PairSecrets | None) -> None:
        self.m, self.course, self.plan, self._h, self.t0 = m, course, course.plan(h.dtype), h, 0
        self._codec = course.codec(m)
        if isinstance(self._codec.compressor, Masked) and secrets is not None:
            self._codec.compressor.mask = Masks(secrets)

    @property
    def done(self) -> bool:
        """Whether all batches were sent."""
        return self.t0 == self.plan.rounds

    def start(self) -> Iterator[Message]:
        """All batches, one after the other."""
        for t0 in range(self.plan.rounds):
            own = self._h[self.course.rows_of(self.m, t0)]
            packet = self._codec.encode(own, t0) if len(own) else b""
            self.t0 = t0 + 1
            yield self._leaving(Prediction(t0, self.m, packet))

    def _leaving(self, message: Prediction) -> Message:
        return message

    def receive(self, message: Message) -> Iterator[Message]:
        """Nobody answers a party that does not score."""
        raise RemoteProtocolError(f"{self.course.names[self.m - 1]}: from the server: a {type(message).__name__}")


class LabelParty(PredictingParty):
    """The party that had the label: it hears the scores."""

    def __init__(
        self, course: Course, m: int, h: Tensor, secrets: PairSecrets | None, columns: int, scores: dict[int, Tensor]
    ) -> None:
        super().__init__(course, m, h, secrets)
        self._columns, self._scores, self._scores_codec = columns, scores, course.scores_codec()
        self._next, self._before = 0, len(scores)

    @property
    def done(self) -> bool:
        """Whether all scores are here, of this session or, if it brings none, of the one before."""
        return self.plan.rounds == (self._next or self._before)

    def receive(self, message: Message) -> Iterator[Message]:
        """Take the scores of a batch, which come in their order."""
        if not isinstance(message, Prediction) or message.m != SERVER or message.t0 != self._next:
            super().receive(message)
        assert isinstance(message, Prediction)
        shape = self.course.shape(message.t0, self._columns)
        self._scores[message.t0] = self._scores_codec.decode(message.packet, message.t0, shape, torch.float64).clone()
        self._next += 1
        return iter(())


class SealingParty(PredictingParty):
    """A party that sends its batches to the one with which labels stay."""

    def __init__(self, course: Course, m: int, h: Tensor, secrets: PairSecrets | None, holder: int) -> None:
        super().__init__(course, m, h, secrets)
        self._holder, self._seals = holder, _sealing(course, secrets)

    def _leaving(self, message: Prediction) -> Message:
        return self._seals.seal(self._holder, message)


class HoldingParty(PredictingParty):
    """The party with which labels stay: it scores what the others sealed for it, beside its own rows."""

    def __init__(
        self, scorer: Scorer, m: int, h: Tensor, secrets: PairSecrets | None, scores: dict[int, Tensor]
    ) -> None:
        super().__init__(scorer.course, m, h, secrets)
        self._scorer, self._seals, self._scores = scorer, _sealing(scorer.course, secrets), scores
        self._before = len(scores)

    @property
    def done(self) -> bool:
        """Whether all scores are here, likewise."""
        return self.plan.rounds == (self._scorer.t0 or self._before)

    def start(self) -> Iterator[Message]:
        """Its own batches stay here."""
        for own in super().start():
            assert isinstance(own, Prediction)
            self._take(own)
        return iter(())

    def receive(self, message: Message) -> Iterator[Message]:
        """Open a batch of another party."""
        if not isinstance(message, Passed):
            super().receive(message)
        assert isinstance(message, Passed)
        opened = self._seals.open(message)
        if not isinstance(opened, Prediction):
            raise RemoteProtocolError(f"{self.course.names[message.m - 1]}: a sealed {type(opened).__name__}")
        self._take(opened)
        return iter(())

    def _take(self, message: Prediction) -> None:
        for t0, numbers in self._scorer.take(message.t0, message.m, message.packet):
            self._scores[t0] = numbers


def _sealing(course: Course, secrets: PairSecrets | None) -> Sealing:
    if secrets is None:
        raise RemoteProtocolError("the server began without the keys of the parties")
    return Sealing(secrets, course.names)
