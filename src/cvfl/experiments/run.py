"""Train a federation and record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cvfl import theory
from cvfl.data import VerticalData
from cvfl.data.organisation import Assembled
from cvfl.experiments import record
from cvfl.experiments.config import RunConfig
from cvfl.experiments.federation import Federation, make_federation, make_recipe
from cvfl.experiments.loading import Loaded, load_data
from cvfl.protocol import Evaluated, Measured
from cvfl.protocol.metrics import BETTER_LOW, headline
from cvfl.protocol.recipe import MakeModel
from cvfl.runtime import Meter, RoundReport, rounds


@dataclass(frozen=True)
class RunResult:
    """A finished run: the summary that is also in its directory, all rounds, and the trained models."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    models: dict[str, nn.Module] = field(repr=False)
    path: Path | None = None


@dataclass(frozen=True)
class Progress:
    """What a display may show after each round."""

    report: RoundReport
    rounds: int
    meter: Meter
    metric: str


def train(
    config: RunConfig,
    data: VerticalData | Loaded | None = None,
    out: Path | None = None,
    name: str | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
    models: Sequence[MakeModel] | None = None,
    server_model: MakeModel | None = None,
) -> RunResult:
    """Train as configured, on own data and models if given; with `out` the run directory is written.

    Ctrl-C ends the run after its last full round.
    """
    loaded = _loaded(config, data)
    federation = make_federation(make_recipe(config, loaded.data, models, server_model), loaded.data)
    if out is None:
        return _train(config, federation, loaded, name or config.compressor, None, on_round)
    with record.RunDirectory(out) as directory:
        result = _train(config, federation, loaded, name or config.compressor, directory, on_round)
        directory.json("config.json", config.model_dump(mode="json"))
        directory.json("summary.json", result.summary)
        directory.parameters(result.models)
        directory.preparations(loaded.assembled.preparations)
        from cvfl.experiments.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([directory.partial], directory.partial / "report.html")
    return RunResult(result.summary, result.history, result.models, out)


def _loaded(config: RunConfig, data: VerticalData | Loaded | None) -> Loaded:
    match data:
        case None:
            return load_data(config)
        case VerticalData():
            return Loaded(Assembled(data))
        case Loaded():
            return data


def _train(
    config: RunConfig,
    federation: Federation,
    loaded: Loaded,
    name: str,
    directory: record.RunDirectory | None,
    on_round: Callable[[Progress], None],
) -> RunResult:
    plan, names, meter, history = federation.plan, federation.recipe.names, Meter(), []
    began, total, last, best = time.perf_counter(), Measured(), None, None
    try:
        for report in rounds(federation.server, federation.parties, meter):
            epoch = (report.t0 + 1) / plan.rounds_per_epoch
            line = record.round_line(report, epoch, plan.eta(report.t0), meter, names)
            history.append(line)
            total = sum(report.measured.values(), total)
            last = report.evaluation or last
            best = better(best, report.evaluation, headline(plan.loss))
            if directory:
                directory.line(line)
            on_round(Progress(report, plan.rounds, meter, headline(plan.loss)))
    except KeyboardInterrupt:
        if not history:
            raise
    models = {"server": federation.server.model} | {party.holding.name: party.model for party in federation.parties}
    summary = {
        "name": name,
        "seed": config.seed,
        "rounds": len(history),
        "completed": len(history) == plan.rounds,
        "metric": headline(plan.loss),
        "metrics": {part: getattr(last, part) if last else {} for part in ("train", "validation", "test")},
        "best": asdict(best) if best else None,
        "rows": {"train": plan.rows, "validation": plan.validation_rows, "test": plan.test_rows},
        "classes": list(loaded.assembled.classes),
        "alignment": record.alignment(loaded.aligned, loaded.alignment_traffic),
        "bytes": record.traffic(meter.total())
        | {"total": meter.total().total, "by_party": record.by_party(meter.parties, names)},
        "formula_bytes": formula_bytes(federation, len(history)),
        "compression_error": record.error(total),
        "seconds": time.perf_counter() - began,
        "parameters": {role: record.fingerprint(model) for role, model in models.items()},
        "config": config.model_dump(mode="json"),
        "versions": record.versions(),
    }
    return RunResult(summary, history, models)


def better(best: Evaluated | None, new: Evaluated | None, metric: str) -> Evaluated | None:
    """The evaluation with the better validation metric; without validation rows there is none to choose by."""
    if new is None or metric not in new.validation:
        return best
    sign = -1 if metric in BETTER_LOW else 1
    return new if best is None or sign * new.validation[metric] > sign * best.validation[metric] else best


def formula_bytes(federation: Federation, R: int) -> int:
    """Bytes by the formula that the paper's authors plot: each round in full, nominal bits, no headers or indices."""
    plan = federation.plan
    theta_0 = sum(value.numel() for value in federation.server.model.parameters())
    P = max(plan.widths)
    compressor = federation.codecs.embeddings[1].compressor
    cost = 0.0
    for t0 in range(R):
        bits = compressor.nominal_bits(t0)
        if plan.algorithm == 1:
            cost += theory.authors_cost(1, plan.M, plan.batch_size, P, theta_0, bits)
        else:
            gradient = federation.codecs.gradients[1].compressor.nominal_bits(t0)
            cost += theory.algorithm2_traffic(1, plan.batch_size, plan.widths, bits, gradient).total
    return round(cost)
