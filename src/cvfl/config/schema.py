"""The keys of a configuration, and what its sections require of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cvfl.compress import build
from cvfl.config.sections import (
    AbsenceConfig,
    AnalysisConfig,
    ConsentConfig,
    DataConfig,
    NetworkConfig,
    PartyConfig,
    PartyModelConfig,
    PrivacyConfig,
    ServerModelConfig,
    StoppingConfig,
    id_columns,
)
from cvfl.errors import ConfigError, suggest
from cvfl.protocol import Decision, Loss, Optimizer, StepSize
from cvfl.protocol.learning.objective import ClassWeight
from cvfl.protocol.limits import Limits
from cvfl.types import Section

GRID = "scalar:bits=4,low=-1,high=1"
"""What "auto" is under secure aggregation: masked symbols cannot be coded, and party models end within [-1, 1]."""
_NOISY_GRID = "scalar:bits=6,low={low!r},high={high!r}"
"""What it is with noise that parties share, from -clip to clip: fine enough that rounding costs no epsilon."""


_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


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
    """Batches, initial weights and dither all follow from it; held-out rows follow from `data.split_seed`."""
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
    quiet_messages: bool = False
    """Send embeddings without dropout, and draw noise like it at the server; where `local_rows` are cached."""
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
    """Who holds the server model's first layer; with `auto` each party its part, if that is less to send."""
    folding: bool | None = None
    """Send sums over the others in place of their embeddings; follows `server_compressor` if not given."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Rounds between two evaluations on held-out rows; an epoch if not given."""
    loss: Loss | None = None
    """The loss; it follows from the labels if not given."""
    class_weight: ClassWeight | None = None
    """Weights of classes in training: `"balanced"`, so that all count alike, or one a class; none if not given."""
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
    absence: AbsenceConfig = AbsenceConfig()
    """How models prepare for parties that are away."""
    decision: Decision = Decision()
    """From which probability on a row is positive, and how outputs become probabilities."""
    analysis: AnalysisConfig = AnalysisConfig()
    """What is found out of the models when the run is over. It is not compared between roles."""
    privacy: PrivacyConfig = PrivacyConfig()
    """What roles learn of each other beyond the model."""
    consent: ConsentConfig = ConsentConfig()
    """Whether the owner of this party must have approved what it does. It is not compared between roles."""
    network: NetworkConfig = NetworkConfig()
    """How roles on several machines reach each other. It is not compared between roles."""
    limits: Limits = Limits()
    """What this role takes from others at most. It is not compared between roles."""
    terms: Path | None = None
    """The signed file with what all roles have alike; the rest is then what this role decides for itself."""
    terms_sha256: str | None = None
    """The SHA-256 of the terms that this role agreed to, as `cvfl terms` shows it; others are refused then."""

    @model_validator(mode="before")
    @classmethod
    def _algorithm_of_labels(cls, values: Any) -> Any:
        """Parties that are told no labels are told gradients: Algorithm 2, unless said otherwise."""
        privacy = values.get("privacy") if isinstance(values, dict) else None
        if isinstance(privacy, dict) and privacy.get("labels", "shared") != "shared" and "algorithm" not in values:
            return values if privacy.get("label_epsilon") is not None else values | {"algorithm": 2}
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

    @property
    def quiet(self) -> bool:
        """Whether dropout is left out of embeddings; where rows are not kept, or noise is added anyway, it is not."""
        return self.quiet_messages and self.cached and self.privacy.noise is None

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
        if not self.privacy.secure or spec.strip() != "auto":
            return spec
        clip = self.privacy.clip if self.privacy.noise_shared else None
        return GRID if clip is None else _NOISY_GRID.format(low=-clip, high=clip)


def _bytes(text: str) -> int:
    """The bytes that a number and a unit say."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(B|kB|MB|GB)?", text.strip())
    if found is None:
        raise ValueError(f"budget: a number of bytes, or one with kB, MB or GB behind it, not {text!r}")
    return round(float(found[1]) * _UNITS[found[2] or "B"])


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
    _check_holder(data, parties)
    own = [
        key
        for key in ("validation_share", "stratify", "split_by", "split_groups", "label_holder")
        if getattr(data, key)
    ]
    if data.name is not None and own:
        key = own[0]
        raise ValueError(f"data.{key} is for tables of the parties; {data.name} has its own split")
    if data.name is not None and data.alignment == "outer":
        raise ValueError(f"data.alignment = 'outer' is for tables of the parties; all hold all rows of {data.name}")
    if data.name is None and data.limit:
        raise ValueError("data.limit is for data sets by name; a table is what it is")
    if data.name is None and not parties:
        raise ValueError("give data.name, or a section [party.NAME] with a table for every party")


def _check_holder(data: DataConfig, parties: Mapping[str, PartyConfig]) -> None:
    """The label is where the terms say, as far as this file knows."""
    holder = data.label_holder
    if holder is None:
        return
    if parties and holder not in parties:
        raise ValueError(f"data.label_holder: there is no party {holder!r}{suggest(holder, parties)}")
    for name, party in parties.items():
        if party.has_table and (party.label is not None) != (name == holder):
            said = "has no label" if name == holder else f"has the label {party.label!r}"
            raise ValueError(f"party.{name} {said}; by data.label_holder {holder} alone holds it")


def check_tables(config: RunConfig) -> None:
    """Whether all parties can be played here: each has a table, and exactly one the label."""
    if missing := [name for name, party in config.party.items() if not party.has_table]:
        raise ConfigError(f"party.{missing[0]} has no table; give table, or url and query")
    holders = [name for name, party in config.party.items() if party.label is not None]
    if len(holders) != 1:
        said = " and ".join(holders) or "none"
        raise ConfigError(f"exactly one party holds the label, not {said}; set its key label")
