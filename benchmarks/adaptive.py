"""Bits that adapt against bits that are fixed, at equal bytes: `auto` with the budget that a fixed compressor took.

    python benchmarks/adaptive.py --seeds 5 > adaptive.md

Embeddings, sums over the others and held-out rows all have the fixed compressor. All else is alike: the server model's
first layer at the parties, sums in the place of embeddings, rounds, steps. Each seed gives a pair of runs: the fixed
one first, then `auto` with as many bytes. Metrics are those that the server measured after the last round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, NamedTuple

from cvfl.config.files import parse_config
from cvfl.errors import CvflError
from cvfl.federation.train import train

FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"data": {"name": "digits", "parties": 4}, "step_size": {"eta": 0.5}, "batch_size": 128},
    "breast_cancer": {"data": {"name": "breast_cancer", "parties": 3}, "step_size": {"eta": 0.3}},
    "diabetes": {"data": {"name": "diabetes", "parties": 3}, "step_size": {"eta": 0.02}},
}
METRICS = {"digits": "accuracy", "breast_cancer": "roc_auc", "diabetes": "rmse"}
FIXED = (
    *(f"scalar:bits={b}" for b in (1, 2, 4)),
    *(f"feedback(entropy(deadzone:step={step}))" for step in (2, 1, 0.5)),
)


class Run(NamedTuple):
    """What a run sent in all, and its metric on the test rows at the end."""

    sent: int
    metric: float


def trained(name: str, seed: int, **keys: Any) -> Run | None:
    """A run of 120 rounds, evaluated ten times; None if it diverged, or if its budget could not be kept."""
    usual: dict[str, Any] = {"rounds": 120, "batch_size": 64, "local_iterations": 5, "local_rows": "batch"}
    usual |= {"evaluate_every": 12, "seed": seed}
    try:
        summary = train(parse_config(usual | FEDERATIONS[name] | keys), workers=1).summary
    except CvflError as error:
        print(f"{name}, seed {seed}, {keys}: {error}", file=sys.stderr)
        return None
    return Run(summary["bytes"]["total"], summary["metrics"]["test"][METRICS[name]])


def pair(name: str, seed: int, spec: str) -> tuple[Run | None, Run | None]:
    """A run whose messages all have the same compressor, and one with `auto` and as many bytes."""
    fixed = trained(name, seed, compressor=spec, partial_compressor=spec, evaluation_compressor=spec)
    return fixed, trained(name, seed, budget=fixed.sent) if fixed else None


def cells(side: list[Run | None]) -> str:
    """kB and metric, the mean and the deviation over the seeds, of the runs that came to their end."""
    runs = [run for run in side if run]
    if not runs:
        return "| - | none |"
    sent, metrics = statistics.mean(run.sent for run in runs), [run.metric for run in runs]
    spread = statistics.stdev(metrics) if len(runs) > 1 else 0.0
    few = f", {len(runs)} of {len(side)} runs" if len(runs) < len(side) else ""
    return f"| {sent / 1e3:.0f} | {statistics.mean(metrics):.4f} ± {spread:.4f}{few} |"


def line(name: str, spec: str, seeds: int) -> str:
    """Both sides of a comparison, and how often `auto` was better."""
    pairs = [pair(name, seed, spec) for seed in range(1, seeds + 1)]
    sign = -1 if METRICS[name] == "rmse" else 1
    gains = [sign * (auto.metric - fixed.metric) for fixed, auto in pairs if fixed and auto]
    better, equal = sum(gain > 0 for gain in gains), sum(gain == 0 for gain in gains)
    fixed, auto = (cells([one[side] for one in pairs]) for side in (0, 1))
    same = f", {equal} equal" if equal else ""
    return f"| {name} | `{spec}` {fixed} {auto[2:]} {better} of {len(gains)}{same} |"


def main() -> None:
    """Print the table, a line as it is ready."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print("| federation | fixed | kB | metric | `auto`: kB | metric | better |\n|---|---|---|---|---|---|---|")
    for name in FEDERATIONS:
        without = cells([trained(name, seed) for seed in range(1, seeds + 1)])
        print(f"| {name} | (`auto` without a budget) | | {without} |", flush=True)
        for spec in FIXED:
            print(line(name, spec, seeds), flush=True)


if __name__ == "__main__":
    main()
