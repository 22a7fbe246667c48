"""The record of a run: summary.json and a line of metrics.jsonl, as one model for those who write and who read them.

Attributes have the names of the keys, or the key as alias. Keys that are not known here are passed over, so that
run directories of older and of newer versions can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from cvfl.privacy.account import Account
from cvfl.runs.analysis import Analysis
from cvfl.runs.audit import Audit


def _number(value: object) -> object:
    """A number as it is: what was counted stays whole, so that it is written as it was read."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


_EMPTY = BeforeValidator(lambda value: {} if value is None else value)

Number = Annotated[float, PlainValidator(_number)]
Metrics = Annotated[dict[str, Number], _EMPTY]
Texts = Annotated[dict[str, str], _EMPTY]


class Record(BaseModel):
    """An object of a file; what is text there is not taken for a number here, nor 1 for true."""

    model_config = ConfigDict(frozen=True, strict=True)


class Sent(Record):
    """Bytes on the wire, as a meter counted them: in training to the server and from it, all else in both directions.

    Runs of versions before these were counted have no alignment and no set-up: None, which is not nothing.
    """

    model_config = ConfigDict(from_attributes=True)

    up: Number
    down: Number
    evaluation: Number
    alignment: Number | None = None
    setup: Number | None = None

    @property
    def training(self) -> float:
        """Those of training frames only."""
        return self.up + self.down

    @property
    def total(self) -> float:
        """All bytes that were counted, whatever they were for."""
        return self.training + self.evaluation + (self.alignment or 0) + (self.setup or 0)

    @property
    def purposes(self) -> dict[str, float | None]:
        """The same by what they were for."""
        return {part: getattr(self, part) for part in ("training", "evaluation", "alignment", "setup")}

    @property
    def whole(self) -> bool:
        """Whether alignment and set-up are counted."""
        return self.alignment is not None and self.setup is not None


class SentInAll(Sent):
    """Bytes of a run, of all parties together and of each; the file has the sum for those who read it by eye."""

    written_total: Number | None = Field(default=None, alias="total")
    by_party: dict[str, Sent]


class CompressionError(Record):
    """Squared error as measured, its mean by theory, and what no outcome may exceed."""

    measured: Number
    expected: Number
    bound: Number


class Certified(Record):
    """The gradient that a message causes beside the exact one, and what is left of the tolerance after it."""

    cosine: Number
    ratio: Number
    ease: Number


class Look(Record):
    """What the server saw of a party's embeddings since the last evaluation, as `protocol.watch` has it."""

    norm: Number
    largest: Number
    spread: Number | None = None
    turn: Number | None = None


class Scores(Record):
    """Metrics of an evaluation by kind of rows; all empty if there was none."""

    train: Metrics = {}
    validation: Metrics = {}
    test: Metrics = {}


class Best(Record):
    """The first round with the best validation metric; without validation rows there is none to choose."""

    number: int = Field(alias="round")
    train: Metrics = {}
    validation: Metrics = {}
    test: Metrics = {}


class Reference(Record):
    """A usual model that a run is compared with: of one party's columns, or of all together if no party is named."""

    party: str | None = None
    model: str
    columns: int
    metrics: Scores
    seconds: Number


class HolderScores(Record):
    """Metrics by the true labels, with the threshold that these ask for: what the holder of the labels alone knows."""

    validation: Metrics = {}
    test: Metrics = {}
    threshold: Number


class LabelAccount(Record):
    """What is guaranteed for labels that their holder randomised before anybody was told.

    Of `classes` one is told as it is with probability `kept`; a quantity, which has none, within its `range`. For
    training the `rows` say about as much of two classes as `effective` true labels of training rows. `released` has the
    epsilon of every release of these labels so far, which add up. `scores` are by the true labels, `private` those of
    the holder's own model. All three are known to the holder alone. A draw from the seed can be repeated by everybody,
    and is for study.
    """

    holder: str
    epsilon: Number
    classes: int
    kept: Number | None = None
    range: list[Number] | None = None
    rows: int
    effective: Number | None = None
    released: list[Number] = []
    drawn: str
    scores: HolderScores | None = None
    private: HolderScores | None = None

    @property
    def total(self) -> float:
        """Epsilon of all releases together."""
        return max(self.epsilon, sum(self.released))


class RangeTest(Record):
    """The step size that short trials found, the loss that each one of them ended in, and what all would have sent."""

    eta: Number
    tried: list[Number]
    losses: list[Number | None]
    sent: int = Field(alias="bytes")


class StartedFrom(Record):
    """The run whose models another one started from: its name, and the folder in which it was then."""

    run: str
    path: str


class Times(Record):
    """Seconds of a role: its own work, coding of messages, and waiting, by those that it waited for."""

    compute: Number
    codec: Number
    wait: dict[str, Number] = {}


class Round(Record):
    """One line of metrics.jsonl; bytes are those of all rounds up to this one.

    A published record keeps some rounds `aside` of the even spacing, because they were the best so far.
    """

    number: int = Field(alias="round")
    epoch: Number
    loss: Number
    step_size: Number | None = None
    seconds: Number | None = None
    sent: Sent = Field(alias="bytes")
    by_party: dict[str, Sent] = {}
    train: Metrics = {}
    validation: Metrics = {}
    test: Metrics = {}
    errors: Annotated[dict[str, CompressionError], _EMPTY] = Field(default={}, alias="compression_error")
    certificates: Annotated[dict[str, Certified], _EMPTY] = Field(default={}, alias="certificate")
    time: dict[str, Times] = {}
    """Where the time of this round went, of the roles whose clock is there."""
    embeddings: Annotated[dict[str, Look], _EMPTY] = {}
    largest: Metrics = {}
    aside: bool = False


class Summary(Record):
    """The figures that people quote of a run; `round_seconds` is only in published records, which have few rounds.

    `kept` is the round whose models a run has left that may stop by itself. Runs of the same `split` hold out the same
    rows. `threshold` is the probability from which on a row counts as positive, `units` are those of a label that is a
    quantity: offset and scale. `largest` are the largest norms of messages by kind, which limits
    can be chosen by. `warning` says that training seems to diverge, or that a party's embeddings changed, if they do.
    """

    name: str
    seed: int
    rounds: int
    completed: bool
    metric: str | None = None
    metrics: Scores
    best: Best | None = None
    kept: int | None = None
    threshold: Number | None = None
    units: Annotated[dict[str, Number], _EMPTY] = {}
    classes: list[str] = []
    date: str = ""
    rows: dict[str, int] = {}
    split: str | None = None
    sent: SentInAll = Field(alias="bytes")
    formula_bytes: Number | None = None
    error: CompressionError | None = Field(default=None, alias="compression_error")
    account: Account | None = Field(default=None, alias="privacy")
    label_privacy: LabelAccount | None = None
    seconds: Number
    references: list[Reference] = []
    range_test: RangeTest | None = None
    started_from: StartedFrom | None = None
    largest: Metrics = {}
    warning: str | None = None
    parameters: Texts = {}
    config: Annotated[dict[str, Any], _EMPTY] = {}
    versions: Texts = {}
    round_seconds: Number | None = None

    @property
    def tested(self) -> Metrics:
        """Metrics of test rows by their true labels, as far as they are recorded here; else those that there are."""
        own = self.label_privacy and self.label_privacy.scores
        return own.test if own else self.metrics.test

    @property
    def randomised(self) -> bool:
        """Whether all but their holder were told randomised labels, so that metrics by these are estimates."""
        return self.label_privacy is not None or tells_randomised(self.config)

    @property
    def estimated(self) -> bool:
        """Whether its metrics of test rows are such estimates: those by true labels are not recorded here."""
        return self.randomised and not (self.label_privacy and self.label_privacy.scores)


def tells_randomised(config: Mapping[str, Any]) -> bool:
    """Whether labels are randomised before they are told, by a configuration."""
    privacy = config.get("privacy")
    return isinstance(privacy, Mapping) and privacy.get("label_epsilon") is not None


class Run(Summary):
    """A run directory: its summary, all its rounds, its configuration as text under dotted keys, what was found."""

    history: tuple[Round, ...]
    settings: dict[str, str]
    audit: Audit | None = None
    analysis: Analysis | None = None

    @property
    def compressed(self) -> bool:
        """Whether any compressor in the configuration is other than the identity."""
        named = [value for key, value in self.settings.items() if key.endswith("compressor") and value != "null"]
        return not named or any(value.partition(":")[0] != "identity" for value in named)
