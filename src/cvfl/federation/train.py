"""Train a federation and record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.organisation import Assembled
from cvfl.federation.build import Federation, make_federation, recipe_for
from cvfl.federation.load import Loaded, load_data
from cvfl.federation.rehearsal import Rehearsal
from cvfl.federation.scoring import analysis_of, units_of
from cvfl.privacy.account import check_accountant
from cvfl.protocol.learning.metrics import headline
from cvfl.protocol.recipe import MakeModel
from cvfl.runs.directory import RunDirectory, alignment, fingerprint, round_line, split_name
from cvfl.runs.journal import Journal
from cvfl.runs.progress import Progress
from cvfl.runs.summary import summarise
from cvfl.runtime import Meter, rounds
from cvfl.runtime.checkpoint import Checkpoints, logs_in
from cvfl.runtime.round import between_rounds, take_up

KEEP_SECONDS = 30.0
"""How much work a stop may cost: the state of all roles is kept that often."""


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
    resume: bool = False,
    keep_seconds: float = KEEP_SECONDS,
    workers: int | None = None,
    noise_secrets: Mapping[str, bytes] | None = None,
) -> RunResult:
    """Train as configured, on own data and models if given; with `out` the run directory is written.

    With noise each party draws a secret of its own; a run with given ones, 32 bytes a name, can be repeated.
    Ctrl-C ends a run after its last full round. One with `out` keeps the state of all roles now and then: the same call
    with `resume` goes on with it, however it was stopped, and ends in the same bits.
    """
    check_accountant(config.privacy.noise)
    directory = RunDirectory(out, resume) if out else None
    loaded = _loaded(config, data)
    recipe = recipe_for(config, loaded.data, models, server_model)
    rehearsal = Rehearsal(config, recipe, loaded)
    aside = 0 if config.budget is None else rehearsal.foreseen()
    logs = logs_in(directory.state) if directory else None
    federation = make_federation(recipe, loaded.data, False, noise_secrets, aside, logs)
    run = _Run(config, federation, loaded, rehearsal, name or config.compressor, directory, keep_seconds)
    try:
        for progress in run.rounds(workers):
            on_round(progress)
    except KeyboardInterrupt:
        if not run.history:
            run.close()
            raise
    except BaseException:
        run.close()
        raise
    return run.finished()


class _Run:
    """A run of all roles in one process while it goes on: its lines, the state that it keeps, and its end."""

    def __init__(
        self,
        config: RunConfig,
        federation: Federation,
        loaded: Loaded,
        rehearsal: Rehearsal,
        name: str,
        directory: RunDirectory | None,
        keep_seconds: float,
    ) -> None:
        self._config, self._federation, self._loaded, self._name = config, federation, loaded, name
        self._directory, self._seconds, self._last = directory, keep_seconds, time.monotonic()
        self._meter, self.history = Meter(), list[dict[str, Any]]()
        self._rehearsal = rehearsal
        self._rehearsal.begin(self._meter)
        self._journal: Journal | None = None
        if directory:
            self._journal = directory.begin(config)
            self._checkpoints = Checkpoints(directory.state)
            self._restore(self._journal)

    def _restore(self, journal: Journal) -> None:
        """Go back to the newest state that there is, if any, of which all lines are there."""
        server, parties = self._federation.roles
        kept = [t0 for t0 in self._checkpoints.rounds() if t0 <= len(journal.lines)]
        if kept:
            state = self._checkpoints.load(kept[-1])
            take_up(state, server, self._meter)
            for party in parties:
                party.load_state_dict(state["parties"][party.m])
        journal.back(server.t0)
        self.history += journal.lines

    def rounds(self, workers: int | None) -> Iterator[Progress]:
        """Run on to the end, round by round."""
        plan, names = self._federation.plan, self._federation.recipe.names
        for report in rounds(*self._federation.roles, self._meter, workers, self._settled):
            line = round_line(report, plan, self._meter, names)
            self.history.append(line)
            if self._journal:
                self._journal.append(line)
            yield Progress(report, plan.rounds, self._meter.total(), headline(plan.loss))

    def _settled(self) -> None:
        """Between two rounds: keep the state of all roles if the last one is old enough."""
        if self._directory is None or time.monotonic() - self._last < self._seconds:
            return
        self._last = time.monotonic()
        server, parties = self._federation.roles
        state = between_rounds(server, self._meter) | {"parties": {party.m: party.state_dict() for party in parties}}
        self._checkpoints.save(server.t0, state)

    def close(self) -> None:
        """The run was stopped by an error."""
        if self._directory:
            self._directory.close(completed=False)

    def finished(self) -> RunResult:
        """Write down how the run ended."""
        federation, history = self._federation, self.history
        models = dict(federation.server.models)
        for party in federation.parties:
            models |= party.models
        hashes = {role: fingerprint(model) for role, model in models.items()}
        seconds = sum(line["seconds"] for line in history)
        if federation.server.done:
            self._rehearsal.end(self._meter, hashes, history)
        summary = summarise(self._config, self._name, federation.recipe, history, self._meter, hashes, seconds)
        summary |= {
            "split": split_name(self._config, self._loaded.told),
            "classes": list(self._loaded.assembled.classes),
            "alignment": alignment(self._loaded.aligned),
            "units": units_of(federation.server),
        }
        if self._directory is None:
            return RunResult(summary, history, models)
        analysis = analysis_of(federation.server, federation.recipe.names)
        self._directory.finish(summary, models, self._loaded.assembled.preparations, analysis)
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([self._directory.path], self._directory.path / "report.html")
        self._directory.close(summary["completed"])
        return RunResult(summary, history, models, self._directory.path)


def _loaded(config: RunConfig, data: VerticalData | Loaded | None) -> Loaded:
    match data:
        case None:
            return load_data(config)
        case VerticalData():
            return Loaded(Assembled(data))
        case Loaded():
            return data
