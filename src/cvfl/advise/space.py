"""What `cvfl tune` searches: a table of settings with the values to try, and the keys of a configuration that they are.

A setting is searched where the configuration has it: a model that takes no hidden layers is given none. The value that
is configured is always among those to try, and leaves the configuration as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from cvfl.advise.candidates import LOCAL_ITERATIONS, Setting, candidate
from cvfl.config.schema import RunConfig
from cvfl.config.sections import PartyModelConfig, ServerModelConfig
from cvfl.errors import ConfigError, suggest
from cvfl.models.registry import PARTY_MODELS, SERVER_MODELS, takes


@dataclass(frozen=True)
class Choice:
    """A setting that has one of these values, or the configured one; `free` says whether it may change at all."""

    key: str
    values: tuple[Any, ...]
    free: Callable[[RunConfig], bool] = lambda config: True

    def of(self, config: RunConfig) -> list[Any]:
        """All to choose from, the configured value first: None if parties have different ones."""
        now = [_value(config, place) for place in places(config, self.key)]
        first = now[0] if all(value == now[0] for value in now) else None
        return [first, *(value for value in self.values if value != first)]


@dataclass(frozen=True)
class Span:
    """A number from `low` to `high` times the configured one, evenly by its logarithm."""

    key: str
    low: float
    high: float
    free: Callable[[RunConfig], bool] = lambda config: True

    def of(self, config: RunConfig) -> tuple[float, float]:
        """The least and the largest."""
        now = self.now(config)
        return self.low * now, self.high * now

    def now(self, config: RunConfig) -> float:
        """The configured one."""
        return float(_value(config, self.key))

    def rounded(self, config: RunConfig, value: float) -> float:
        """To three digits, as people write it; the configured one as it is."""
        now = self.now(config)
        return now if math.isclose(value, now) else float(f"{value:.3g}")


def _plain(config: RunConfig) -> bool:
    """Whether any compressor will do: neither masks nor noise nor a budget ask for a certain kind."""
    own = any(party.compressor for party in config.party.values())
    return not own and not config.privacy.secure and config.privacy.noise is None and config.budget is None


SPACE: tuple[Choice | Span, ...] = (
    Span("step_size.eta", 0.1, 10.0),
    Choice("batch_size", (32, 64, 128, 256, 512), lambda config: config.epochs is not None),
    Choice("local_iterations", LOCAL_ITERATIONS, lambda config: config.algorithm == 1),
    Choice("local_rows", ("batch",), lambda config: config.cached),
    Choice("party_model.width", (8, 16, 32, 64, 128)),
    Choice("party_model.hidden", ([32], [64], [128], [64, 64], [128, 64])),
    Choice("party_model.dropout", (0.0, 0.1, 0.2, 0.4)),
    Choice("server_model.hidden", ([], [32], [64], [128])),
    Choice("optimizer.weight_decay", (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0)),
    Choice("optimizer.sparsity", (0.0, 0.1, 0.25, 0.5), lambda config: config.party_model.name == "tabular"),
    Choice("compressor", ("auto", "identity", "scalar:bits=4"), _plain),
)


def space_of(config: RunConfig, rows: int, wanted: Sequence[str] = ()) -> list[Choice | Span]:
    """What may be searched in a configuration with so many training rows; only what is `wanted`, if anything is."""
    found = [_fitting(one, config, rows) for one in SPACE if one.free(config) and places(config, one.key)]
    known = [one.key for one in found]
    for key in wanted:
        if key not in known:
            raise ConfigError(f"--search {key}: it cannot be searched here{suggest(key, known)}")
    return [one for one in found if not wanted or one.key in wanted]


def _fitting(one: Choice | Span, config: RunConfig, rows: int) -> Choice | Span:
    """A batch is at most an eighth of the rows, or all batches would be alike; `wide_deep` is not without its depth."""
    if isinstance(one, Span):
        return one
    values = one.values
    if one.key == "batch_size":
        values = tuple(size for size in values if size <= rows // 8)
    if one.key == "server_model.hidden" and config.server_model.name == "wide_deep":
        values = tuple(sizes for sizes in values if sizes)
    return Choice(one.key, values, one.free)


def places(config: RunConfig, key: str) -> list[str]:
    """The keys of the configuration that a setting is: that of all parties, and of each that has its own model."""
    section, _, name = key.rpartition(".")
    match section:
        case "party_model":
            return [f"{place}.{name}" for place, model in _party_models(config) if _has(model, name)]
        case "server_model":
            return [key] if _has(config.server_model, name) else []
    return [key]


def _party_models(config: RunConfig) -> Iterator[tuple[str, PartyModelConfig]]:
    if not config.party or any(party.model is None for party in config.party.values()):
        yield "party_model", config.party_model
    for name, party in config.party.items():
        if party.model is not None:
            yield f"party.{name}.model", party.model


def _has(model: PartyModelConfig | ServerModelConfig, key: str) -> bool:
    models = PARTY_MODELS if isinstance(model, PartyModelConfig) else SERVER_MODELS
    return key in type(model).model_fields and takes(models, model.name, key)


def _value(config: RunConfig, place: str) -> Any:
    found = reduce(lambda at, name: at[name] if isinstance(at, dict) else getattr(at, name), place.split("."), config)
    return list(found) if isinstance(found, tuple) else found


def keys_of(config: RunConfig, key: str, value: Any) -> dict[str, Any]:
    """The keys of the configuration that a value changes, with their new values; none if it is the configured one."""
    changed = [place for place in places(config, key) if value is not None and _value(config, place) != value]
    if changed and key == "compressor":
        keys = Setting(candidate(value), config.local_iterations).keys(config)
        return {name: spec for name, spec in keys.items() if name != "local_iterations"}
    return dict.fromkeys(changed, value)
