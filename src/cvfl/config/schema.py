"""The keys of a configuration, section by section, and what they require of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from cvfl.compress import build
from cvfl.data.sets.catalogue import NamedSet
from cvfl.data.tables.address import without_password
from cvfl.data.tables.ids import Duplicates
from cvfl.data.tables.prepare import Settings
from cvfl.data.tables.table import Kind
from cvfl.errors import ConfigError
from cvfl.protocol import Loss, Optimizer, StepSize
from cvfl.types import Section

GRID = "scalar:bits=4,low=-1,high=1"
"""What "auto" is under secure aggregation: masked symbols cannot be coded, and party models end within [-1, 1]."""


_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


class DataConfig(NamedSet):
    """A data set by name, or how the parties' own tables meet: how people are found, split and prepared."""

    validation_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the rows that are held out to choose the best round; for tables of the parties."""
    stratify: bool = False
    """Whether every part gets the same share of each class; for tables of the parties."""
    id: str | tuple[str, ...] | None = None
    """The column that names a person, or several that do together, in every table that does not say otherwise."""
    alignment: Literal["private", "aligned"] = "private"
    """Find the shared people by private set intersection, or take row i to be the same person everywhere."""
    prepare: Settings = Settings()
    """How columns become numbers, at every party that does not say otherwise."""

    @model_validator(mode="after")
    def _leaves_rows(self) -> DataConfig:
        if self.test_share + self.validation_share >= 1:
            raise ValueError("data.test_share and data.validation_share leave no row to train on")
        return self


class PartyModelConfig(Section):
    """A party's model: its kind or `module:function`, the width P of the embedding, and hidden layers."""

    name: str = "mlp"
    """A model by name (linear, mlp, lstm, gru, cnn, resnet, mvcnn), or your own as `module:function`."""
    width: int = Field(default=16, ge=1, le=1 << 20)
    """P, how many numbers a row's embedding has."""
    hidden: tuple[int, ...] = (32,)
    """Sizes of the hidden layers; what they mean depends on the model."""


class ServerModelConfig(Section):
    """The server model over all embeddings: its kind or `module:function`, and hidden layers."""

    name: str = "linear"
    """A model by name (linear, mlp, sum, attention), or your own as `module:function`."""
    hidden: tuple[int, ...] = ()
    """Sizes of the hidden layers."""


class PartyConfig(Section):
    """One party: its table and what is taken from it, and where it differs from the others."""

    table: Path | None = None
    """The party's table: a CSV or Parquet file, as seen from the configuration file."""
    url: str | None = None
    """The database that has the party's table instead; `${NAME}` comes from the environment."""
    query: str | None = None
    """The query that gives the table."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """What separates the columns of a CSV file; found from its header if not given."""
    missing: tuple[str, ...] = ()
    """Words for a missing value besides the usual ones."""
    id: str | tuple[str, ...] | None = None
    """The column that names a person in this table, if it has another name here; or several, in the same order."""
    id_type: Literal["text", "integer"] = "text"
    """Compare ids as text, or as integers without leading zeros."""
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
    types: dict[str, Kind] = Field(default_factory=dict)
    """The type of a column where the guess is wrong."""
    prepare: Settings | None = None
    """How this party's columns become numbers, if otherwise than at the others."""
    model: PartyModelConfig | None = None
    """This party's model, if it has another than the others."""
    compressor: str | None = None
    """This party's compressor C_m, if it has another than the others."""
    row_secret: Path | None = None
    """A file with the secret by which an earlier run ordered and split its rows, to repeat it; the first party's."""
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
    name of a party. `aggregation` is "secure" when the server learns the sum of the embeddings alone. Embeddings are
    scaled to an L2 norm of at most `clip`, and Gaussian noise of `noise` times `clip` is added to what is sent.
    """

    labels: str = "shared"
    """Who has the training labels: every party (`shared`), the server alone (`server`), or one party, by its name."""
    aggregation: Literal["open", "secure"] = "open"
    """With `secure` embeddings are masked, and only their sum can be read."""
    clip: float | None = Field(default=None, ge=1e-6, le=1e6)
    """The largest L2 norm of a row of an embedding; longer rows are scaled down."""
    noise: float | None = Field(default=None, ge=1e-6, le=1e6)
    """Gaussian noise on what is sent, in multiples of `clip`."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """The delta for which the report states epsilon."""

    @model_validator(mode="after")
    def _bounded(self) -> PrivacyConfig:
        if self.noise is not None and self.clip is None:
            raise ValueError("privacy.noise needs privacy.clip: noise hides what is bounded")
        return self

    @property
    def private_labels(self) -> bool:
        """Whether one role alone holds the labels."""
        return self.labels != "shared"

    @property
    def relayed(self) -> bool:
        """Whether a party holds the labels, and the server only passes on what it cannot read."""
        return self.private_labels and self.labels != "server"

    @property
    def keyed(self) -> bool:
        """Whether parties share secrets that the server does not have."""
        return self.secure or self.relayed

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
    memory_mb: int = Field(default=256, ge=0)
    """Megabytes of memory for what a role knows of rows, as error feedback does; what is more is kept on disk."""


class RunConfig(Section):
    """One training run. `compressor` is C_m for every party, `server_compressor` is C_0.

    What is not said of folding and of what the server sends besides C_0 follows `server_compressor`: with "auto" sums
    over the others take the place of their embeddings where the server model allows it, and all is compressed.
    """

    data: DataConfig
    """The data set, or how the parties' own tables meet."""
    step_size: StepSize
    """The step size and how it changes."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Batches, initial weights, splits and dither all follow from it."""
    rounds: int | None = Field(default=None, ge=1)
    """Length of the run in rounds; give this or `epochs`."""
    epochs: int | None = Field(default=None, ge=1)
    """Length of the run in passes over the training rows; give this or `rounds`."""
    batch_size: int = Field(default=64, ge=1)
    """B, rows in a batch."""
    local_iterations: int = Field(default=10, ge=1)
    """Q, local steps in a round."""
    budget: int | None = Field(default=None, ge=1, lt=1 << 63)
    """Bytes that the whole run may send, such as `"2 MB"`; messages are coarser where `auto` would need more."""
    local_rows: Literal["batch", "cached"] | None = None
    """Rows of local steps after the first: the batch, or any that were sent before; follows `server_compressor`."""
    algorithm: Literal[1, 2] = 1
    """1: parties have labels and take Q steps on their own. 2: the server returns gradients."""
    compressor: str = "auto"
    """C_m, the compressor of every party's embeddings."""
    server_compressor: str = "auto"
    """C_0, the compressor of the server model."""
    gradient_compressor: str | None = None
    """Compressor of the gradients of Algorithm 2; follows `server_compressor` if not given."""
    partial_compressor: str | None = None
    """Compressor of the sums of folding; follows `server_compressor` if not given."""
    evaluation_compressor: str | None = None
    """Compressor of the embeddings of held-out rows; `auto` if the party's own is, else `identity`."""
    first_layer: Literal["server", "parties"] | None = None
    """Who holds the server model's first layer; with `server_compressor = "auto"` each party its part, if it can be."""
    folding: bool | None = None
    """Send sums over the others in place of their embeddings; follows `server_compressor` if not given."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Rounds between two evaluations on held-out rows; an epoch if not given."""
    loss: Loss | None = None
    """The loss; it follows from the labels if not given."""
    precision: Literal["float32", "float64"] = "float32"
    """Precision of all models and messages."""
    device: str = "cpu"
    """Where PyTorch computes: `cpu`, `cuda`, `cuda:1`."""
    optimizer: Optimizer = Optimizer()
    """How a gradient becomes a step."""
    party_model: PartyModelConfig = PartyModelConfig()
    """The model of every party that has none of its own."""
    server_model: ServerModelConfig = ServerModelConfig()
    """The model over all embeddings."""
    party: dict[str, PartyConfig] = Field(default_factory=dict)
    """One section for each party, by name: its table and where it differs from the others."""
    stopping: StoppingConfig = StoppingConfig()
    """When to end, and which round's models to keep."""
    privacy: PrivacyConfig = PrivacyConfig()
    """What roles learn of each other beyond the model."""
    network: NetworkConfig = NetworkConfig()
    """How roles on several machines reach each other. It is not compared between roles."""

    @model_validator(mode="before")
    @classmethod
    def _algorithm_of_labels(cls, values: Any) -> Any:
        """Parties without labels are told gradients: Algorithm 2, unless said otherwise."""
        privacy = values.get("privacy") if isinstance(values, dict) else None
        if isinstance(privacy, dict) and privacy.get("labels", "shared") != "shared" and "algorithm" not in values:
            return values | {"algorithm": 2}
        return values

    @field_validator("budget", mode="before")
    @classmethod
    def _in_bytes(cls, budget: Any) -> Any:
        """A number with its unit as a number of bytes."""
        return budget if not isinstance(budget, str) else _bytes(budget)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        _check_parties(self.data, self.party)
        for key, spec in self._compressors():
            try:
                build(spec)
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        return self

    def _compressors(self) -> Iterator[tuple[str, str]]:
        for key in ("compressor", "server_compressor", "gradient_compressor", "partial_compressor"):
            spec = getattr(self, key)
            yield key, self.reply_compressor if spec is None else spec
        yield "evaluation_compressor", self.evaluation_compressor_of("")
        for name, party in self.party.items():
            if party.compressor is not None:
                yield f"party.{name}.compressor", party.compressor

    @property
    def reply_compressor(self) -> str:
        """That of gradients and of sums over the others, where none is named."""
        return "auto" if self.server_compressor.strip() == "auto" else "identity"

    @property
    def cached(self) -> bool:
        """Whether local steps after the first take rows that were sent before.

        If nothing is said `auto` does so, where parties have labels and neither masks nor noise are added.
        """
        if self.local_rows is None:
            private = self.algorithm == 2 or self.privacy.secure or self.privacy.noise is not None
            return self.reply_compressor == "auto" and not private
        return self.local_rows == "cached"

    def evaluation_compressor_of(self, spec: str) -> str:
        """That of held-out rows for a party whose compressor is `spec`; with noise they are sent as they are."""
        if self.evaluation_compressor is not None:
            return self.evaluation_compressor
        return "auto" if spec.strip() == "auto" and self.privacy.noise is None else "identity"

    def model_of(self, party: str) -> PartyModelConfig:
        """The model of a party: its own, or that of all."""
        section = self.party.get(party)
        return section.model if section and section.model else self.party_model

    def compressor_of(self, party: str) -> str:
        """C_m of a party: its own, or that of all."""
        section = self.party.get(party)
        spec = section.compressor if section and section.compressor else self.compressor
        return GRID if self.privacy.secure and spec.strip() == "auto" else spec


def _bytes(text: str) -> int:
    """The bytes that a number and a unit say."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(B|kB|MB|GB)?", text.strip())
    if found is None:
        raise ValueError(f"budget: a number of bytes, or one with kB, MB or GB behind it, not {text!r}")
    return round(float(found[1]) * _UNITS[found[2] or "B"])


def id_columns(id: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that name a person, together."""
    return (id,) if isinstance(id, str) else tuple(id or ())


def _check_parties(data: DataConfig, parties: Mapping[str, PartyConfig]) -> None:
    """Names that can be used, and either a data set by name or tables of the parties."""
    for name in parties:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name) or name == "server":
            raise ValueError(f"party.{name}: a party's name has letters, digits, - and _ and is not 'server'")
    for name, party in parties.items():
        columns = id_columns(party.id or data.id)
        if party.id_type == "integer" and len(columns) > 1:
            raise ValueError(f"party.{name}.id_type = 'integer' is for an id of one column, not of {len(columns)}")
        if party.id and data.id and len(columns) != len(id_columns(data.id)):
            raise ValueError(f"party.{name}.id has {len(columns)} columns, data.id {len(id_columns(data.id))}")
    with_table = [name for name, party in parties.items() if party.has_table]
    if data.name is not None and with_table:
        raise ValueError(f"data.name = {data.name!r} and a table of party {with_table[0]!r} exclude each other")
    if data.name is not None and (data.validation_share or data.stratify):
        key = "validation_share" if data.validation_share else "stratify"
        raise ValueError(f"data.{key} is for tables of the parties; {data.name} has its own split")
    if data.name is None and data.limit:
        raise ValueError("data.limit is for data sets by name; a table is what it is")
    if data.name is None and not parties:
        raise ValueError("give data.name, or a section [party.NAME] with a table for every party")


def check_tables(config: RunConfig) -> None:
    """Whether all parties can be played here: each has a table, and exactly one the label."""
    if missing := [name for name, party in config.party.items() if not party.has_table]:
        raise ConfigError(f"party.{missing[0]} has no table; give table, or url and query")
    holders = [name for name, party in config.party.items() if party.label is not None]
    if len(holders) != 1:
        said = " and ".join(holders) or "none"
        raise ConfigError(f"exactly one party holds the label, not {said}; set its key label")
