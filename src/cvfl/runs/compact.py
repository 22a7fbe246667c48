"""The record of a run, small enough to publish: what tables and figures read, and nothing that tells of the machine.

Evaluated rounds are kept at an even spacing, and aside of it those at which the metric was the best so far: these say
when any target was reached first, to the round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cvfl.runs.audit import write_audit
from cvfl.runs.journal import read_lines
from cvfl.runs.read import read_run

LINES = 100
"""Most evenly spaced rounds that are kept of a run."""
DIGITS = 6
_SUMMARY = (
    *("name", "seed", "rounds", "completed", "metric", "metrics", "bytes", "formula_bytes", "compression_error"),
    *("rows", "split", "seconds", "round_seconds", "privacy", "references", "parameters", "config", "versions"),
)
_LINE = ("round", "epoch", "loss", "bytes", "test", "aside")


def compact(source: Path, target: Path, metric: str) -> None:
    """Copy a run directory to `target`, small; the copy of a copy is the same."""
    run = read_run(source)
    summary = json.loads((source / "summary.json").read_text(encoding="utf-8")) | {"round_seconds": run.round_seconds}
    summary["config"] = _public(summary["config"])
    read = {metric, run.metric}
    evaluated = [
        _rounded(line) | {"test": {key: _rounded(value) for key, value in line["test"].items() if key in read}}
        for line in read_lines(source / "metrics.jsonl")
        if "test" in line
    ]
    target.mkdir(parents=True, exist_ok=True)
    # A key a line: small, and a difference between two versions can be read.
    keys = [f"{json.dumps(key)}: {_told(summary[key])}" for key in _SUMMARY if summary.get(key) is not None]
    (target / "summary.json").write_text("{\n" + ",\n".join(keys) + "\n}\n", encoding="utf-8")
    text = "".join(_told({key: line[key] for key in _LINE if key in line}) + "\n" for line in _kept(evaluated, metric))
    (target / "metrics.jsonl").write_text(text, encoding="utf-8")
    if run.audit:
        write_audit(run.audit, target)


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without where files and servers are."""
    data = {key: value for key, value in config["data"].items() if key != "path"}
    return {key: value for key, value in config.items() if key not in ("network", "consent")} | {"data": data}


def _kept(lines: Sequence[dict[str, Any]], metric: str) -> Iterator[dict[str, Any]]:
    even = [n for n, line in enumerate(lines) if not line.get("aside")]
    step = max(1, math.ceil(len(even) / LINES))
    spaced, best = set(even[::-step]), -math.inf  # from the last one back, which is the outcome
    for n, line in enumerate(lines):
        value = line["test"].get(metric, -math.inf)
        if n in spaced:
            yield line
        elif value > best:
            yield line | {"aside": True}
        best = max(best, value)


def _told(value: Any) -> str:
    return json.dumps(_rounded(value), separators=(",", ":"))


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list():
            return [_rounded(inner) for inner in value]
        case float() if math.isfinite(value):
            return float(f"{value:.{DIGITS}g}")
    return value
