"""The figures that people quote of a run, from the lines that it recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cvfl import theory
from cvfl.config.schema import RunConfig
from cvfl.privacy.account import account
from cvfl.protocol import Recipe
from cvfl.protocol.metrics import BETTER_LOW, headline
from cvfl.runs import directory as record
from cvfl.runtime import Meter

_PARTS = ("train", "validation", "test")


def summarise(
    config: RunConfig,
    name: str,
    recipe: Recipe,
    history: Sequence[Mapping[str, Any]],
    meter: Meter,
    parameters: Mapping[str, str],
    seconds: float,
) -> dict[str, Any]:
    """The summary of a run; `parameters` are the hashes of its models by role."""
    plan, metric, privacy = recipe.plan, headline(recipe.plan.loss), config.privacy
    evaluated = [line for line in history if "train" in line]
    last = evaluated[-1] if evaluated else {}
    sent = meter.total()
    return {
        "name": name,
        "seed": config.seed,
        "rounds": len(history),
        "completed": len(history) == plan.rounds,
        "metric": metric,
        "metrics": {part: last.get(part, {}) for part in _PARTS},
        "best": _best(evaluated, metric),
        "rows": {"train": plan.rows, "validation": plan.validation_rows, "test": plan.test_rows},
        "bytes": record.traffic(sent) | {"total": sent.total, "by_party": record.by_party(meter.parties, recipe.names)},
        "formula_bytes": formula_bytes(recipe, len(history)),
        "compression_error": _error(history),
        "privacy": account(privacy.clip, privacy.noise, privacy.delta, plan, len(history)),
        "seconds": seconds,
        "parameters": dict(parameters),
        "config": config.model_dump(mode="json"),
        "versions": record.versions(),
    }


def _best(evaluated: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any] | None:
    """The first round with the best validation metric; without validation rows there is nothing to choose by."""
    lines = [line for line in evaluated if metric in line.get("validation", {})]
    if not lines:
        return None
    sign = -1 if metric in BETTER_LOW else 1
    line = max(lines, key=lambda line: sign * line["validation"][metric])
    return {"round": line["round"]} | {part: line.get(part, {}) for part in _PARTS}


def _error(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Measured error beside the mean and the worst that theory allows, summed over what was measured."""
    measured = [error for line in history for error in line.get("compression_error", {}).values()]
    return {key: sum((error[key] for error in measured), 0.0) for key in ("measured", "expected", "bound")}


def formula_bytes(recipe: Recipe, R: int) -> int:
    """Bytes by the formula that the paper's authors plot: each round in full, nominal bits, no headers or indices."""
    plan, compressor, gradient = recipe.plan, recipe.compressors[0](), recipe.gradient_compressor()
    theta_0 = sum(value.numel() for value in recipe.initial_server_model().parameters())
    cost = 0.0
    for t0 in range(R):
        bits = compressor.nominal_bits(t0)
        if plan.algorithm == 1:
            cost += theory.authors_cost(1, plan.M, plan.batch_size, max(plan.widths), theta_0, bits)
        else:
            cost += theory.algorithm2_traffic(1, plan.batch_size, plan.widths, bits, gradient.nominal_bits(t0)).total
    return round(cost)
