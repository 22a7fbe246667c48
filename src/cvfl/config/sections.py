"""The sections of a configuration file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from cvfl.data.tables.table import Kind


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
