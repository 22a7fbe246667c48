"""The sections of a configuration: data, models, parties, privacy, stopping, network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_serializer, model_validator

from cvfl.compress import Compressor, Scalar
from cvfl.data.sets.catalogue import NamedSet
from cvfl.data.tables.address import without_password
from cvfl.data.tables.ids import Duplicates, IdType
from cvfl.data.tables.prepare import Settings
from cvfl.data.tables.spellings import Type
from cvfl.privacy.noise_of_sum import Shared
from cvfl.protocol.learning.randomised import Randomised
from cvfl.theory.bounds import scalar_step
from cvfl.types import Section


class DataConfig(NamedSet):
    """A data set by name, or how the parties' own tables meet: how people are found, split and prepared."""

    validation_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the rows that are held out to choose the best round; for tables of the parties."""
    stratify: bool = False
    """Whether every part gets the same share of each class; for tables of the parties."""
    split_by: str | None = None
    """A column of dates or numbers in the table with the label: its latest rows are held out, the last for the test."""
    split_groups: str | None = None
    """A column in the table with the label: rows of one group, such as a household, are all in the same part."""
    label_holder: str | None = None
    """The party whose table has the label, where terms say it; else the section with a label does."""
    id: str | tuple[str, ...] | None = None
    """The column that names a person, or several that do together, in every table that does not say otherwise."""
    alignment: Literal["private", "outer", "aligned"] = "private"
    """Rows: people whom all hold, found privately; `outer`: all of the label holder; `aligned`: row i is one person."""
    prepare: Settings = Settings()
    """How columns become numbers, at every party that does not say otherwise."""

    @model_validator(mode="after")
    def _splits(self) -> DataConfig:
        if self.test_share + self.validation_share >= 1:
            raise ValueError("data.test_share and data.validation_share leave no row to train on")
        if len(ways := [key for key in ("stratify", "split_by", "split_groups") if getattr(self, key)]) > 1:
            remedy = "set data.stratify = false" if ways[0] == "stratify" else "leave out the other"
            raise ValueError(
                f"data.{ways[0]} and data.{ways[1]} exclude each other: rows are held out by one of them; {remedy}"
            )
        return self


class PartyModelConfig(Section):
    """A party's model: its kind or `module:function`, the width P of the embedding, and hidden layers."""

    name: str = "mlp"
    """A model by name (linear, mlp, tabular, lstm, gru, cnn, resnet, mvcnn), or your own as `module:function`."""
    width: int = Field(default=16, ge=1, le=1 << 20)
    """P, how many numbers a row's embedding has."""
    hidden: tuple[int, ...] = (32,)
    """Sizes of the hidden layers; what they mean depends on the model."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the hidden units of `tabular` that are left out at each step of training."""
    pieces: int = Field(default=8, ge=1, le=1024)
    """Into how many pieces `tabular` cuts the scale of a number: more of many rows, fewer of few."""


class ServerModelConfig(Section):
    """The server model over all embeddings: its kind or `module:function`, and hidden layers."""

    name: str = "linear"
    """A model by name (linear, mlp, wide_deep, sum, attention), or your own as `module:function`."""
    hidden: tuple[int, ...] = ()
    """Sizes of the hidden layers."""


class PartyConfig(Section):
    """One party: its table and what is taken from it, and where it differs from the others."""

    table: Path | None = None
    """The party's table: a CSV, Parquet or Excel file, as seen from the configuration file."""
    url: str | None = None
    """The database that has the party's table instead; `${NAME}` comes from the environment."""
    query: str | None = None
    """The query that gives the table."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """What separates the columns of a CSV file; found from its header if not given."""
    encoding: str | None = None
    """How the text of a CSV file is written, such as latin-1; found from its bytes if not given."""
    missing: tuple[str, ...] = ()
    """Words for a missing value besides the usual ones."""
    id: str | tuple[str, ...] | None = None
    """The column that names a person in this table, if it has another name here; or several, in the same order."""
    id_type: IdType = "text"
    """Compare ids as text, as integers without leading zeros, or as text in which case does not count (caseless)."""
    duplicates: Duplicates = "error"
    """Of rows with the same id: refuse them, or take the first or the last one."""
    features: tuple[str, ...] = ("*",)
    """Columns to use, by name or pattern."""
    exclude: tuple[str, ...] = ()
    """Columns to leave out, by name or pattern."""
    label: str | None = None
    """The column to predict; exactly one party has it."""
    positive: str | None = None
    """The class that counts as 1 when there are two; the last in order if not given."""
    tell_classes: bool = False
    """Whether a server that gets this party's labels is told what their classes are called, for its report."""
    types: dict[str, Type] = Field(default_factory=dict)
    """The type of a column where the guess is wrong: a kind, or how its numbers or dates are written."""
    prepare: Settings | None = None
    """How this party's columns become numbers, if otherwise than at the others."""
    model: PartyModelConfig | None = None
    """This party's model, if it has another than the others."""
    compressor: str | None = None
    """This party's compressor C_m, if it has another than the others."""
    row_secret: Path | None = None
    """A file with the secret by which an earlier run ordered and split its rows, to repeat it; the first party's."""
    label_secret: Path | None = None
    """The file with the secret by which labels are randomised, and all releases; beside the table if not given."""
    fingerprint: str | None = Field(default=None, pattern=r"^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$")
    """SHA-256 of the certificate that this party is known by; any other one of the authority is refused then."""

    @model_validator(mode="after")
    def _one_source(self) -> PartyConfig:
        if self.table is not None and self.url is not None:
            raise ValueError("give either a table or a url with a query")
        if (self.url is None) != (self.query is None):
            raise ValueError("url and query belong together")
        return self

    @property
    def has_table(self) -> bool:
        """Whether the party brings data of its own."""
        return self.table is not None or self.url is not None

    @field_serializer("url")
    def _without_password(self, url: str | None) -> str | None:
        """A password never reaches a record of the run."""
        return url and without_password(url)


class PrivacyConfig(Section):
    """What roles learn of each other beyond the model.

    `labels` is "shared" when every party has the training labels, else the one role that holds them: "server", or the
    name of a party. With `label_epsilon` that role randomises all labels once, and everybody is told those: any two
    labels of a row then make all that is told at most e^epsilon times as likely. `aggregation` is "secure" when the
    server learns the sum of the embeddings alone. Embeddings are scaled to an L2 norm of at most `clip`, and Gaussian
    noise of `noise` times `clip` is added to what is sent; with `noise_shared` it is Skellam noise, and that much in
    the sum.
    """

    labels: str = "shared"
    """Who has the training labels: every party (`shared`), the server alone (`server`), or one party, by its name."""
    label_epsilon: float | None = Field(default=None, ge=0.01, le=20)
    """The epsilon with which the role of `labels` randomises them, once, before anybody is told; else they stay."""
    label_range: tuple[float, float] | None = None
    """Between which limits a label that is a quantity is told with `label_epsilon`; not taken from the labels."""
    private_model: bool = False
    """Whether the holder of labels told with `label_epsilon` fits a last layer to the true ones, and alone scores."""
    aggregation: Literal["open", "secure"] = "open"
    """With `secure` embeddings are masked, and only their sum can be read."""
    clip: float | None = Field(default=None, ge=1e-6, le=1e6)
    """The largest L2 norm of a row of an embedding; longer rows are scaled down."""
    noise: float | None = Field(default=None, ge=1e-6, le=1e6)
    """Gaussian noise on what is sent, in multiples of `clip`."""
    noise_shared: bool = False
    """Whether `noise` is that of the sum under secure aggregation, of which each of M parties adds 1 / sqrt(M)."""
    reconstruction_penalty: float | None = Field(default=None, gt=0, le=1000)
    """How strongly parties' models are kept from showing their columns, beside the loss; not at all if not given."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """The delta for which the report states epsilon."""

    @model_validator(mode="after")
    def _bounded(self) -> PrivacyConfig:
        if self.noise is not None and self.clip is None:
            raise ValueError("privacy.noise needs privacy.clip: noise hides what is bounded")
        if self.noise_shared and self.noise is None:
            raise ValueError("privacy.noise_shared needs privacy.noise: it says how large the noise of the sum is")
        if self.label_epsilon is not None and self.labels == "shared":
            raise ValueError(
                "privacy.label_epsilon: say with privacy.labels which role holds them, and randomises them"
            )
        if self.private_model and self.label_epsilon is None:
            raise ValueError("privacy.private_model is for labels that are told with privacy.label_epsilon")
        if self.label_range is not None and self.label_epsilon is None:
            raise ValueError("privacy.label_range is for labels that are told with privacy.label_epsilon")
        if self.label_range is not None and not -1e300 < self.label_range[0] < self.label_range[1] < 1e300:
            raise ValueError("privacy.label_range has two limits, the lower one first")
        return self

    def noise_of_sum(self, grid: Compressor, parties: int, numbers: int) -> Shared | None:
        """The noise of all parties together where they share it, in rows of so many numbers on this grid."""
        if not self.noise_shared or self.clip is None or self.noise is None:
            return None
        assert isinstance(grid, Scalar)
        assert grid.range.fixed is not None  # as `modes` says
        return Shared.of(self.clip, self.noise, scalar_step(grid.bits, *grid.range.fixed), parties, numbers)

    @property
    def private_labels(self) -> bool:
        """Whether one role alone holds the labels, and nobody is told any, not even randomised ones."""
        return self.labels != "shared" and self.label_epsilon is None

    @property
    def randomised(self) -> Randomised | None:
        """How labels are randomised before they are told, if they are."""
        return None if self.label_epsilon is None else Randomised(self.label_epsilon, self.label_range)

    @property
    def relayed(self) -> bool:
        """Whether a party holds the labels, and the server only passes on what it cannot read."""
        return self.private_labels and self.labels != "server"

    @property
    def scores_apart(self) -> bool:
        """Whether a party alone scores rows, and the server only passes on what it cannot read."""
        return self.relayed or self.private_model

    def scores_at(self, name: str) -> bool:
        """Whether this is that party: it holds the labels, and a model over all embeddings."""
        return self.scores_apart and self.labels == name

    @property
    def keyed(self) -> bool:
        """Whether parties share secrets that the server does not have."""
        return self.secure or self.scores_apart

    @property
    def secure(self) -> bool:
        """Whether embeddings are masked, so that only their sum can be read."""
        return self.aggregation == "secure"


class StoppingConfig(Section):
    """When a run ends before its last round, and that the models of its best evaluation are kept."""

    patience: int | None = Field(default=None, ge=1, le=1000)
    """Evaluations without improvement after which a run ends, with the models of the best one; off if not given."""
    metric: str | None = None
    """The metric of the validation rows that is to improve; the one that tables show if not given."""


class AbsenceConfig(Section):
    """How models prepare for parties that are away, or do not know a person."""

    rate: float = Field(default=0.0, ge=0, le=0.9)
    """How likely each party is left out of a row of a local step, so that scores can do without it; 0 is off."""


class AnalysisConfig(Section):
    """What is found out of the models of a run that is over, beside how good they are. Not part of the terms."""

    columns: bool = False
    """What each column brings, of parties whose table is where the labels are: in one process, or at their holder."""


class ConsentConfig(Section):
    """Whether a role needs its owner's word for what is about to happen. Not part of the terms."""

    required: bool = False
    """Whether a party trains, predicts and serves only by terms that its owner has approved, with `--approve`."""


class NetworkConfig(Section):
    """How roles on several machines reach each other, and how patient they are. Not part of the terms of a run."""

    address: str = "127.0.0.1:8443"
    """Host and port: where the server listens, and where a party finds it."""
    certificates: Path | None = None
    """The folder with the role's certificate, its key and `ca.crt`."""
    on_missing: Literal["wait", "fail"] = "wait"
    """Wait for a party that is gone, or stop the run."""
    wait_limit: float = Field(default=3600.0, gt=0)
    """Seconds to wait for others before giving up."""
    round_limit: float = Field(default=600.0, gt=0)
    """Seconds without any progress after which the party that is awaited is disconnected, as if it had left."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Rounds between two checkpoints."""
    max_frame_mb: int = Field(default=256, ge=1, le=1024)
    """The largest frame that is accepted, in megabytes."""
    metrics: str | None = None
    """Where Prometheus reads figures of this role, such as `127.0.0.1:9100`; nowhere if not given."""
    metrics_anywhere: bool = False
    """Whether that may be an address that other machines reach: whoever reaches it can read the figures."""
    memory_mb: int = Field(default=256, ge=0)
    """Megabytes of memory for what a role knows of rows, as error feedback does; what is more is kept on disk."""


def id_columns(id: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that name a person, together."""
    return (id,) if isinstance(id, str) else tuple(id or ())
