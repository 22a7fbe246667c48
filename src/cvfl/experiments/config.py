"""The configuration of a run, checked at the door: TOML in, objects out, errors that name the key."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cvfl.compress import build
from cvfl.errors import ConfigError, suggest
from cvfl.protocol import Loss


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Section):
    """Which rows, and how many parties share their columns."""

    name: str
    parties: int = Field(default=4, ge=1, le=64)
    test_share: float = Field(default=0.25, ge=0, lt=1)


class StepSizeConfig(_Section):
    """eta and how it changes: fixed, eta/sqrt(T), eta/(t0+1), or by milestones (rounds)."""

    eta: float = Field(gt=0)
    schedule: Literal["fixed", "sqrt", "inverse", "milestones"] = "fixed"
    milestones: tuple[int, ...] = ()
    factor: float = Field(default=0.1, gt=0)


class OptimizerConfig(_Section):
    """sgd as in the paper, with momentum if given, or adam."""

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class PartyModelConfig(_Section):
    """The model of every party: its kind, the width P of the embedding, and hidden layers."""

    name: str = "mlp"
    width: int = Field(default=16, ge=1, le=1 << 20)
    hidden: tuple[int, ...] = (32,)


class ServerModelConfig(_Section):
    """The server model over the concatenated embeddings."""

    name: str = "linear"
    hidden: tuple[int, ...] = ()


class RunConfig(_Section):
    """One training run. `compressor` is C_m for every party, `server_compressor` is C_0."""

    data: DataConfig
    step_size: StepSizeConfig
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    rounds: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=64, ge=1)
    local_iterations: int = Field(default=10, ge=1)
    algorithm: Literal[1, 2] = 1
    compressor: str = "lattice:bits=3"
    server_compressor: str = "scalar:bits=8"
    gradient_compressor: str = "identity"
    evaluate_every: int | None = Field(default=None, ge=1)
    loss: Loss | None = None
    precision: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    optimizer: OptimizerConfig = OptimizerConfig()
    party_model: PartyModelConfig = PartyModelConfig()
    server_model: ServerModelConfig = ServerModelConfig()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        if self.algorithm == 2 and self.local_iterations != 1:
            raise ValueError(f"algorithm 2 takes local_iterations = 1, not {self.local_iterations}")
        if self.step_size.schedule == "milestones" and not self.step_size.milestones:
            raise ValueError("step_size.schedule = 'milestones' needs step_size.milestones")
        for key in ("compressor", "server_compressor", "gradient_compressor"):
            try:
                build(getattr(self, key))
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        return self


def load_config(path: Path, changes: Sequence[str] = ()) -> RunConfig:
    """Read a TOML file and apply ``key=value`` changes, such as ``data.parties=2``."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for change in changes:
        _apply(values, change)
    return parse_config(values, str(path))


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
    section: Any = RunConfig
    for name in path:
        section = section.model_fields[str(name)].annotation
    return list(section.model_fields)
