"""What a run leaves, and whether two runs are the same run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.federation.train import RunResult, train
from cvfl.runs.directory import serialised

_DIFFERS = ("seconds", "time")
"""What a line of metrics.jsonl says of the machine that it comes from."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What two runs must have alike: every bit of every model, bytes, metrics, and every line of metrics.jsonl.

    The bytes of set-up are apart: certificates add to them, and a restart may.
    """

    models: dict[str, bytes]
    parameters: dict[str, str]
    bytes: dict[str, Any]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    setup: dict[str, int]
    split: str | None = None

    @classmethod
    def of(cls, result: RunResult, **models: bytes) -> Outcome:  # type: ignore[valid-type]
        """From a run's result; `models` are those that are not in it."""
        every = {role: serialised(model) for role, model in result.models.items()} | models
        return cls.recorded(every, result.summary, lines(result.history))

    @classmethod
    def recorded(
        cls,
        models: dict[str, bytes],  # type: ignore[valid-type]
        summary: Mapping[str, Any],
        history: list[dict[str, Any]],
    ) -> Outcome:
        """From the files of a run."""
        sent = summary["bytes"]
        parties = {name: dict(one) for name, one in sent["by_party"].items()}
        parts = ("up", "down", "evaluation", "alignment", "setup")
        assert sent["total"] == sum(sent[part] for part in parts)
        assert all(sent[part] == sum(one[part] for one in parties.values()) for part in parts)
        setup = {name: one.pop("setup") for name, one in parties.items()}
        counted = {part: sent[part] for part in parts[:-1]} | {"by_party": parties}
        return cls(models, summary["parameters"], counted, summary["metrics"], history, setup, summary["split"])


def rows_apart(outcome: Outcome) -> Outcome:
    """The same without the bytes of alignment, which are fewer where an earlier one is taken up."""
    history = [_without("alignment", line) for line in outcome.history]
    return dataclasses.replace(outcome, bytes=_without("alignment", outcome.bytes), history=history)


def lines(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without what depends on the place, and without set-up."""
    return [{key: _without("setup", value) for key, value in line.items() if key not in _DIFFERS} for line in history]


def _without(purpose: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without(purpose, inner) for key, inner in value.items() if key != purpose}


def written(path: Path) -> list[dict[str, Any]]:
    """The same lines, from the file."""
    return lines([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


def of_parties(folder: Path) -> dict[str, bytes]:
    """The models that parties wrote: their own, and that of the server if one of them holds the labels."""
    return {path.stem: path.read_bytes() for path in folder.glob("*.safetensors")}


def in_process(config: RunConfig) -> Outcome:
    """The run that all others are compared with."""
    return Outcome.of(train(config))


def same(found: Outcome, expected: Outcome, setup: bool = False) -> None:
    """Assert that two runs are the same run, the most telling difference first; with `setup` that of its bytes, too."""
    assert found.models.keys() == expected.models.keys()
    assert {role for role in found.models if found.models[role] != expected.models[role]} == set()
    known = {role: found.parameters[role] for role in expected.parameters if role in found.parameters}
    assert known == {role: expected.parameters[role] for role in known}
    assert found.bytes == expected.bytes
    assert [line["round"] for line in found.history] == list(range(len(expected.history)))
    for one, other in zip(found.history, expected.history, strict=True):
        assert one == other
    assert found.metrics == expected.metrics
    assert found.split == expected.split
    assert not setup or found.setup == expected.setup
