"""Train a federation and record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.organisation import Assembled
from cvfl.federation.build import Federation, make_federation, recipe_for
from cvfl.federation.keep import Keep
from cvfl.federation.load import Loaded, load_data
from cvfl.privacy.account import check_accountant
from cvfl.protocol.metrics import headline
from cvfl.protocol.recipe import MakeModel
from cvfl.runs import directory as record
from cvfl.runs.progress import Progress
from cvfl.runs.summary import summarise
from cvfl.runtime import Meter, rounds


@dataclass(frozen=True)
class RunResult:
    """A finished run: the summary that is also in its directory, all rounds, and the trained models."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    models: dict[str, nn.Module] = field(repr=False)
    path: Path | None = None


def train(
    config: RunConfig,
    data: VerticalData | Loaded | None = None,
    out: Path | None = None,
    name: str | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
    models: Sequence[MakeModel] | None = None,
    server_model: MakeModel | None = None,
    keep: Keep | None = None,
    workers: int | None = None,
    noise_secrets: Mapping[str, bytes] | None = None,
) -> RunResult:
    """Train as configured, on own data and models if given; with `out` the run directory is written.

    With noise each party draws a secret of its own; a run with given ones, 32 bytes a name, can be repeated.
    Ctrl-C ends the run after its last full round; a run with `keep` is taken up again by the same call instead.
    """
    check_accountant(config.privacy.noise)
    loaded = _loaded(config, data)
    recipe = recipe_for(config, loaded.data, models, server_model)
    federation = make_federation(recipe, loaded.data, noise_secrets=noise_secrets)
    name = name or config.compressor
    if out is None:
        return _train(config, federation, loaded, name, on_round, keep, workers)
    with record.RunDirectory(out) as directory:
        result = _train(config, federation, loaded, name, on_round, keep, workers, directory)
        directory.json("config.json", config.model_dump(mode="json"))
        directory.json("summary.json", result.summary)
        directory.parameters(result.models)
        directory.preparations(loaded.assembled.preparations)
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

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
    on_round: Callable[[Progress], None],
    keep: Keep | None,
    workers: int | None,
    directory: record.RunDirectory | None = None,
) -> RunResult:
    plan, names, meter = federation.plan, federation.recipe.names, Meter()
    history: list[dict[str, Any]] = []
    on_settled: Callable[[], None] = lambda: None  # noqa: E731
    if keep:
        keep.restore(federation, meter)
        history += keep.journal.lines
        on_settled = partial(keep.settled, federation, meter)
    if directory:
        for line in history:
            directory.line(line)
    began = time.perf_counter()
    try:
        for report in rounds(*federation.roles, meter, workers, on_settled):
            line = record.round_line(report, plan, meter, names)
            history.append(line)
            if keep:
                keep.journal.append(line)
            if directory:
                directory.line(line)
            on_round(Progress(report, plan.rounds, meter.total(), headline(plan.loss)))
    except KeyboardInterrupt:
        if keep or not history:
            raise
    models = {"server": federation.server.model} | {party.holding.name: party.model for party in federation.parties}
    hashes = {role: record.fingerprint(model) for role, model in models.items()}
    seconds = time.perf_counter() - began if not keep else sum(line["seconds"] for line in history)
    summary = summarise(config, name, federation.recipe, history, meter, hashes, seconds)
    summary |= {
        "classes": list(loaded.assembled.classes),
        "alignment": record.alignment(loaded.aligned, loaded.alignment_traffic),
    }
    return RunResult(summary, history, models)
