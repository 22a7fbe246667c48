"""The configuration of a run, checked at the door: TOML in, objects out, errors that name the key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from cvfl.compress import Scalar, build
from cvfl.compress.limits import limits
from cvfl.config.sections import (
    DataConfig,
    NetworkConfig,
    OptimizerConfig,
    PartyConfig,
    PartyModelConfig,
    PrivacyConfig,
    Section,
    ServerModelConfig,
    StepSizeConfig,
)
from cvfl.errors import ConfigError, suggest
from cvfl.protocol import Loss

GRID = "scalar:bits=4,low=-1,high=1"
"""What "auto" is under secure aggregation: masked symbols cannot be coded, and party models end within [-1, 1]."""


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


def load_config(path: Path, changes: Sequence[str] = ()) -> RunConfig:
    """The configuration in a TOML file, with ``key=value`` changes, such as ``data.parties=2``."""
    return _found_from(path.parent, parse_config(read_values(path, changes), str(path)))


def read_values(path: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a TOML file as they stand there, with ``key=value`` changes; not checked yet."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for change in changes:
        _apply(values, change)
    return values


def _found_from(folder: Path, config: RunConfig) -> RunConfig:
    """Files are named as seen from the configuration file."""
    data = config.data.model_copy(update={"path": folder / config.data.path} if config.data.path else {})
    certificates = config.network.certificates
    network = config.network.model_copy(update={"certificates": folder / certificates} if certificates else {})
    party = {
        name: section.model_copy(update={"table": folder / section.table}) if section.table else section
        for name, section in config.party.items()
    }
    return config.model_copy(update={"data": data, "party": party, "network": network})


def parse_config(values: dict[str, Any], source: str = "configuration") -> RunConfig:
    """Check the values; the first thing wrong is said in one line that names its key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explained(error)}") from None


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise ConfigError(f"--set takes key=value, not {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string, as a shell user writes it
    *path, last = key.strip().split(".")
    for name in path:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change}: {name} is not a section")
    values[last] = value


def _explained(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{suggest(str(first['loc'][-1]), _keys(first['loc'][:-1]))}"
        case "missing":
            return f"key {key!r} is missing"
        case "value_error":
            return str(first["ctx"]["error"])
    return f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {first['input']!r}"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at this path."""
    section: type[Section] = RunConfig
    for name in path:
        if field := section.model_fields.get(str(name)):  # else it is the name of a party
            kinds = (field.annotation, *get_args(field.annotation))
            section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section))
    return list(section.model_fields)
