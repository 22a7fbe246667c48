"""The figures that people quote of a run, from the lines that it recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cvfl import theory
from cvfl.config.schema import RunConfig
from cvfl.privacy.account import account
from cvfl.protocol import Loss, Recipe
from cvfl.protocol.learning.decision import HALF
from cvfl.protocol.learning.metrics import BETTER_LOW, headline
from cvfl.protocol.learning.stopping import Stopping
from cvfl.runs.directory import PARTS, sent_by_party, versions
from cvfl.runs.record import Best, CompressionError, Scores, Sent, SentInAll, Summary
from cvfl.runtime import Meter


def summarise(
    config: RunConfig,
    name: str,
    recipe: Recipe,
    history: Sequence[Mapping[str, Any]],
    meter: Meter,
    parameters: Mapping[str, str],
    seconds: float,
) -> dict[str, Any]:
    """The summary of a run as its file holds it; `parameters` are the hashes of its models by role.

    Its metrics are those of the models that it leaves: after the last round, or the best one if it stops by itself.
    """
    plan, metric, privacy = recipe.plan, headline(recipe.plan.loss), config.privacy
    evaluated = [line for line in history if "train" in line]
    stopping = Stopping(plan.patience, plan.improving)
    for line in evaluated:
        stopping.see(line["round"], line.get("validation", {}))
    over = len(history) == plan.rounds or (plan.patience > 0 and stopping.over)
    kept: dict[str, Any] = {"kept": stopping.best} if over and plan.patience else {}
    left = [line for line in evaluated if not kept or line["round"] == stopping.best]
    sent = Sent.model_validate(meter.total())
    shared = privacy.noise_of_sum(recipe.compressors[0](), plan.M, plan.widths[0])
    return Summary(
        name=name,
        seed=config.seed,
        rounds=len(history),
        completed=over,
        metric=metric,
        metrics=Scores(**_scores(left[-1] if left else {})),
        best=_best(evaluated, metric),
        **kept,
        **_threshold(config, plan.loss, left[-1] if left else {}),
        date=datetime.now(UTC).date().isoformat(),
        rows={"train": plan.rows, "validation": plan.validation_rows, "test": plan.test_rows},
        bytes=SentInAll(**dict(sent), total=sent.total, by_party=sent_by_party(meter.parties, recipe.names)),
        formula_bytes=formula_bytes(recipe, len(history)),
        compression_error=_error(history),
        largest=evaluated[-1].get("largest", {}) if evaluated else {},
        privacy=account(privacy.clip, privacy.noise, privacy.delta, plan, len(history), shared),
        seconds=seconds,
        parameters=dict(parameters),
        config=config.model_dump(mode="json"),
        versions=versions(),
    ).model_dump(by_alias=True, exclude_unset=True)


def _threshold(config: RunConfig, loss: Loss, line: Mapping[str, Any]) -> dict[str, Any]:
    """From which probability on a row is positive, where there are two classes: as chosen, as given, or a half."""
    if loss is not Loss.BINARY:
        return {}
    given = config.decision.threshold
    usual = given if isinstance(given, float) else HALF
    return {"threshold": line.get("validation", {}).get("threshold", usual)}


def _scores(line: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {part: line.get(part, {}) for part in PARTS}


def _best(evaluated: Sequence[Mapping[str, Any]], metric: str) -> Best | None:
    lines = [line for line in evaluated if metric in line.get("validation", {})]
    if not lines:
        return None
    sign = -1 if metric in BETTER_LOW else 1
    line = max(lines, key=lambda line: sign * line["validation"][metric])
    return Best(round=line["round"], **_scores(line))


def _error(history: Sequence[Mapping[str, Any]]) -> CompressionError:
    """Measured error beside the mean and the worst that theory allows, summed over what was measured."""
    errors = [error for line in history for error in line.get("compression_error", {}).values()]
    parts = ("measured", "expected", "bound")
    return CompressionError(**{part: sum((error[part] for error in errors), 0.0) for part in parts})


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
