"""The keys of a configuration, section by section, and what they require of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from cvfl.compress import Scalar, build
from cvfl.compress.limits import limits
from cvfl.data.tables.table import Kind
from cvfl.errors import ConfigError
from cvfl.protocol import Loss

GRID = "scalar:bits=4,low=-1,high=1"
"""What "auto" is under secure aggregation: masked symbols cannot be coded, and party models end within [-1, 1]."""


class Section(BaseModel):
    """A section whose keys are all known and do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrepareConfig(Section):
    """How columns become numbers: one-hot or embedded categories, the share below which a value is rare, gaps."""

    categories: Literal["one-hot", "embedding"] = "one-hot"
    rare: float = Field(default=0.01, ge=0, lt=1)
    impute: Literal["median", "mean", "zero"] = "median"
    standardise: bool = True


class DataConfig(Section):
    """A data set by name, from `path` if it does not ship with the software; or how the parties' own tables meet.

    `limit` takes that many training rows of a data set by name, drawn at random, for trying out.
    """

    name: str | None = None
    path: Path | None = None
    parties: int | None = Field(default=None, ge=1, le=64)
    test_share: float = Field(default=0.25, ge=0, lt=1)
    validation_share: float = Field(default=0.0, ge=0, lt=1)
    stratify: bool = False
    id: str | None = None
    alignment: Literal["private", "aligned"] = "private"
    prepare: PrepareConfig = PrepareConfig()
    augment: bool = True
    limit: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _leaves_rows(self) -> DataConfig:
        if self.test_share + self.validation_share >= 1:
            raise ValueError("data.test_share and data.validation_share leave no row to train on")
        return self


class StepSizeConfig(Section):
    """eta and how it changes: fixed, eta/sqrt(T), eta/(t0+1), or by milestones (rounds)."""

    eta: float = Field(gt=0)
    schedule: Literal["fixed", "sqrt", "inverse", "milestones"] = "fixed"
    milestones: tuple[int, ...] = ()
    factor: float = Field(default=0.1, gt=0)


class OptimizerConfig(Section):
    """sgd as in the paper, with momentum if given, or adam."""

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


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
    prepare: PrepareConfig | None = None
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
    step_size: StepSizeConfig
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
    optimizer: OptimizerConfig = OptimizerConfig()
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
        if self.step_size.schedule == "milestones" and not self.step_size.milestones:
            raise ValueError("step_size.schedule = 'milestones' needs step_size.milestones")
        _check_parties(self.data, self.party)
        _check_labels(self)
        if self.algorithm == 2 and self.folding:
            raise ValueError("folding is for algorithm 1; algorithm 2 sends no embeddings to parties")
        for key, spec in self._compressors():
            try:
                build(spec)
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        _check_sum(self)
        _check_noise(self)
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


def _check_labels(config: RunConfig) -> None:
    """One role holds the labels, and nothing that parties are told depends on them but gradients."""
    holder, tables = config.privacy.labels, config.data.name is None
    if not config.privacy.private_labels:
        return
    if config.algorithm == 1:
        raise ValueError(f"privacy.labels = {holder!r} keeps labels from parties; algorithm 1 needs them, take 2")
    if config.data.stratify:
        raise ValueError("data.stratify splits rows by their labels; with private labels the split would tell of them")
    if tables and not config.privacy.relayed:
        raise ValueError("privacy.labels: tables have their labels at a party, where they stay; give its name")
    if others := [name for name, party in config.party.items() if party.label is not None and name != holder]:
        raise ValueError(f"labels at two roles: privacy.labels = {holder!r}, and party.{others[0]}.label")


def _check_sum(config: RunConfig) -> None:
    """Secure aggregation: what parties send is added up, on a grid that all have in common."""
    if not config.privacy.secure:
        return
    if config.server_model.name in ("linear", "mlp", "attention"):
        raise ValueError(
            "privacy.aggregation = 'secure' shows the server the sum of the embeddings alone; "
            f"server_model.name = {config.server_model.name!r} needs each of them, take 'sum'"
        )
    if config.folding or config.partial_compressor:
        raise ValueError("privacy.aggregation = 'secure' sends parties the sum as it is: no folding")
    for name in ("", *config.party):
        grid = build(config.compressor_of(name))
        if not isinstance(grid, Scalar) or grid.range.fixed is None:
            key = f"party.{name}.compressor" if name else "compressor"
            raise ValueError(f"{key}: secure aggregation needs a grid that all parties have, such as {GRID!r}")


def _check_noise(config: RunConfig) -> None:
    """Noise has no limits, so a compressor that has some must be one for which they can be kept."""
    for name in ("", *config.party) if config.privacy.noise is not None else ():
        try:
            limits(build(config.compressor_of(name)))
        except ConfigError as error:
            raise ValueError(f"{f'party.{name}.' if name else ''}compressor: {error}") from None


def check_tables(config: RunConfig) -> None:
    """Whether all parties can be played here: each has a table, and exactly one the label."""
    if missing := [name for name, party in config.party.items() if not party.has_table]:
        raise ConfigError(f"party.{missing[0]} has no table; give table, or url and query")
    holders = [name for name, party in config.party.items() if party.label is not None]
    if len(holders) != 1:
        said = " and ".join(holders) or "none"
        raise ConfigError(f"exactly one party holds the label, not {said}; set its key label")
