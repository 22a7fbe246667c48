"""The keys of a configuration, section by section, and what they require of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_serializer, model_validator

from cvfl.compress import build
from cvfl.data.sets.catalogue import NamedSet
from cvfl.data.tables.prepare import Settings
from cvfl.data.tables.table import Kind
from cvfl.errors import ConfigError
from cvfl.protocol import Loss, Optimizer, StepSize
from cvfl.types import Section

GRID = "scalar:bits=4,low=-1,high=1"
"""What "auto" is under secure aggregation: masked symbols cannot be coded, and party models end within [-1, 1]."""


class DataConfig(NamedSet):
    """A data set by name, or how the parties' own tables meet: how people are found, split and prepared."""

    validation_share: float = Field(default=0.0, ge=0, lt=1)
    stratify: bool = False
    id: str | None = None
    alignment: Literal["private", "aligned"] = "private"
    prepare: Settings = Settings()

    @model_validator(mode="after")
    def _leaves_rows(self) -> DataConfig:
        if self.test_share + self.validation_share >= 1:
            raise ValueError("data.test_share and data.validation_share leave no row to train on")
        return self


class PartyModelConfig(Section):
    """A party's model: its kind or `module:function`, the width P of the embedding, and hidden layers."""

    name: str = "mlp"
    width: int = Field(default=16, ge=1, le=1 << 20)
    hidden: tuple[int, ...] = (32,)


class ServerModelConfig(Section):
    """The server model over all embeddings: its kind or `module:function`, and hidden layers."""

    name: str = "linear"
    hidden: tuple[int, ...] = ()


class PartyConfig(Section):
    """One party: its table and what is taken from it, and where it differs from the others."""

    table: Path | None = None
    url: str | None = None
    query: str | None = None
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    missing: tuple[str, ...] = ()
    id: str | None = None
    id_type: Literal["text", "integer"] = "text"
    features: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    label: str | None = None
    positive: str | None = None
    types: dict[str, Kind] = Field(default_factory=dict)
    prepare: Settings | None = None
    model: PartyModelConfig | None = None
    compressor: str | None = None

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
        return url and re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)


class PrivacyConfig(Section):
    """What roles learn of each other beyond the model.

    `labels` is "shared" when every party has the training labels, else the one role that holds them: "server", or the
    name of a party. `aggregation` is "secure" when the server learns the sum of the embeddings alone. Embeddings are
    scaled to an L2 norm of at most `clip`, and Gaussian noise of `noise` times `clip` is added to what is sent.
    """

    labels: str = "shared"
    aggregation: Literal["open", "secure"] = "open"
    clip: float | None = Field(default=None, ge=1e-6, le=1e6)
    noise: float | None = Field(default=None, ge=1e-6, le=1e6)
    delta: float = Field(default=1e-5, gt=0, lt=1)

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


class NetworkConfig(Section):
    """How roles on several machines reach each other, and how patient they are. Not part of the terms of a run."""

    address: str = "127.0.0.1:8443"
    certificates: Path | None = None
    on_missing: Literal["wait", "fail"] = "wait"
    wait_limit: float = Field(default=3600.0, gt=0)
    checkpoint_every: int = Field(default=10, ge=1)
    max_frame_mb: int = Field(default=256, ge=1, le=1024)


class RunConfig(Section):
    """One training run. `compressor` is C_m for every party, `server_compressor` is C_0.

    What is not said of folding and of what the server sends besides C_0 follows `server_compressor`: with "auto" sums
    over the others take the place of their embeddings where the server model allows it, and all is compressed.
    """

    data: DataConfig
    step_size: StepSize
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    rounds: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=64, ge=1)
    local_iterations: int = Field(default=10, ge=1)
    algorithm: Literal[1, 2] = 1
    compressor: str = "auto"
    server_compressor: str = "auto"
    gradient_compressor: str | None = None
    partial_compressor: str | None = None
    folding: bool | None = None
    evaluate_every: int | None = Field(default=None, ge=1)
    loss: Loss | None = None
    precision: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    optimizer: Optimizer = Optimizer()
    party_model: PartyModelConfig = PartyModelConfig()
    server_model: ServerModelConfig = ServerModelConfig()
    party: dict[str, PartyConfig] = Field(default_factory=dict)
    privacy: PrivacyConfig = PrivacyConfig()
    network: NetworkConfig = NetworkConfig()

    @model_validator(mode="before")
    @classmethod
    def _algorithm_of_labels(cls, values: Any) -> Any:
        """Parties without labels are told gradients: Algorithm 2, unless said otherwise."""
        privacy = values.get("privacy") if isinstance(values, dict) else None
        if isinstance(privacy, dict) and privacy.get("labels", "shared") != "shared" and "algorithm" not in values:
            return values | {"algorithm": 2}
        return values

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
        for name, party in self.party.items():
            if party.compressor is not None:
                yield f"party.{name}.compressor", party.compressor

    @property
    def reply_compressor(self) -> str:
        """That of gradients and of sums over the others, where none is named."""
        return "auto" if self.server_compressor.strip() == "auto" else "identity"

    def model_of(self, party: str) -> PartyModelConfig:
        """The model of a party: its own, or that of all."""
        section = self.party.get(party)
        return section.model if section and section.model else self.party_model

    def compressor_of(self, party: str) -> str:
        """C_m of a party: its own, or that of all."""
        section = self.party.get(party)
        spec = section.compressor if section and section.compressor else self.compressor
        return GRID if self.privacy.secure and spec.strip() == "auto" else spec


def _check_parties(data: DataConfig, parties: Mapping[str, PartyConfig]) -> None:
    """Names that can be used, and either a data set by name or tables of the parties."""
    for name in parties:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name) or name == "server":
            raise ValueError(f"party.{name}: a party's name has letters, digits, - and _ and is not 'server'")
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
