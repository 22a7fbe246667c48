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
from cvfl.federation.agreement.rehearsal import Rehearsal
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.range_test import find_eta, with_eta
from cvfl.federation.results.bundles import BundleMaker, run_name, write_bundles
from cvfl.federation.results.scoring import analysis_of, columns_of, units_of
from cvfl.federation.rows.load import Loaded, load_data, with_told_labels
from cvfl.federation.start import Start
from cvfl.federation.told_labels.holder import account_of, by_true_labels, told_outputs
from cvfl.federation.told_labels.private import fit_private, private_of, scores_of, write_private
from cvfl.federation.watch.divergence import Divergence
from cvfl.privacy.account import check_accountant
from cvfl.protocol import Recipe
from cvfl.protocol.learning.metrics import headline
from cvfl.protocol.recipe import MakeModel
from cvfl.runs.alarms import Alarms, alarms_of, joined
from cvfl.runs.bundle import Bundle
from cvfl.runs.directory import PARAMETERS, RunDirectory, alignment, fingerprint, round_line, split_name
from cvfl.runs.journal import Journal
from cvfl.runs.progress import Progress
from cvfl.runs.record import RangeTest
from cvfl.runs.summary import summarise
from cvfl.runtime import Meter, rounds
from cvfl.runtime.checkpoint import Checkpoints, logs_in
from cvfl.runtime.round import between_rounds, take_up
from cvfl.types import OnStep

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
    on_step: OnStep = lambda *_: None,
    start: Start | None = None,
) -> RunResult:
    """Train as configured, on own data and models if given; with `out` the run directory is written.

    With noise each party draws a secret of its own; a run with given ones, 32 bytes a name, can be repeated.
    Ctrl-C ends a run after its last full round. One with `out` keeps the state of all roles now and then: the same call
    with `resume` goes on with it, however it was stopped, and ends in the same bits. With `start` every role begins
    with the weights of an earlier run; data that is given was loaded with the same.
    """
    check_accountant(config.privacy.noise)
    own = (models is not None, server_model is not None)
    if start:
        start.check(config, own)
    directory = RunDirectory(out, resume, start.told if start else None) if out else None
    loaded = _loaded(config, data, start)

    def recipe_of(config: RunConfig, data: VerticalData) -> Recipe:
        recipe = recipe_for(config, data, models, server_model)
        return start.warmed(recipe, data) if start else recipe

    tried = None
    if config.step_size.eta == "auto":
        tried = find_eta(config, loaded.data, recipe_of, on_step)
    settled = with_eta(config, tried.eta) if tried else config
    recipe = recipe_of(settled, loaded.data)
    rehearsal = Rehearsal(settled, recipe, loaded, start)
    aside = 0 if config.budget is None else rehearsal.foreseen()
    logs = logs_in(directory.state) if directory else None
    held = loaded.held.labels if loaded.held else None
    federation = make_federation(recipe, loaded.data, False, noise_secrets, aside, logs, held)
    run = _Run(config, federation, loaded, rehearsal, name or config.compressor, directory, keep_seconds, own)
    run.tried, run.start = tried, start
    try:
        for progress in run.rounds(workers):
            on_round(progress)
        run.fit_private()
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
        own_models: tuple[bool, bool],
    ) -> None:
        self._config, self._federation, self._loaded, self._name = config, federation, loaded, name
        self._own_models = own_models
        self._directory, self._seconds, self._last = directory, keep_seconds, time.monotonic()
        self._meter, self.history = Meter(), list[dict[str, Any]]()
        self._alarms = Alarms()
        self._rehearsal, self._divergence = rehearsal, Divergence(federation.plan, federation.server.labels)
        self.tried: RangeTest | None = None
        """How the step size was found, if it was not given."""
        self.start: Start | None = None
        """The models that it started from, if they were not fresh."""
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
        self._alarms = alarms_of(journal.lines)

    def rounds(self, workers: int | None) -> Iterator[Progress]:
        """Run on to the end, round by round."""
        plan, names = self._federation.plan, self._federation.recipe.names
        for report in rounds(*self._federation.roles, self._meter, workers, self._settled):
            line = round_line(report, plan, self._meter, names)
            self.history.append(line)
            if self._journal:
                self._journal.append(line)
            note = joined(self._divergence.see(report.evaluation), self._alarms.see(line))
            yield Progress(report, plan.rounds, self._meter.total(), headline(plan.loss), note)

    def _settled(self) -> None:
        """Between two rounds: keep the state of all roles if the last one is old enough."""
        if time.monotonic() - self._last >= self._seconds:
            self._keep()

    def _keep(self) -> None:
        if self._directory is None:
            return
        self._last = time.monotonic()
        server, parties = self._federation.roles
        state = between_rounds(server, self._meter) | {"parties": {party.m: party.state_dict() for party in parties}}
        self._checkpoints.save(server.t0, state)

    def fit_private(self) -> None:
        """Have the holder fit what it has for itself, if that is so; a stop while it does costs no round."""
        if self._federation.plan.private_holder:
            self._keep()
            fit_private(self._federation.roles[1])

    @property
    def _over(self) -> bool:
        """Whether all roles are done, and the holder has what it is to have for itself."""
        server, parties = self._federation.roles
        fitted = private_of(parties) is not None or not self._federation.plan.private_holder
        return fitted and all(role.done for role in (server, *parties))

    @property
    def _agreed(self) -> RunConfig:
        """The configuration as roles could agree on it: with the step size that was found."""
        return with_eta(self._config, self.tried.eta) if self.tried else self._config

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
        told = told_outputs(federation.server) if self._loaded.held else ""
        if self._over:
            self._rehearsal.end(self._meter, hashes, history, told)
        summary = summarise(self._config, self._name, federation.recipe, history, self._meter, hashes, seconds)
        summary |= {
            "completed": summary["completed"] and self._over,
            "split": split_name(self._config, self._loaded.told),
            "classes": list(self._loaded.assembled.classes),
            "alignment": alignment(self._loaded.aligned),
            "units": units_of(federation.server),
            "run": run_name(self._agreed, hashes),
        }
        if warning := joined(self._divergence.line, *self._alarms.lines):
            summary["warning"] = warning
        if self.tried:
            summary["range_test"] = self.tried.model_dump(mode="json", by_alias=True)
        if self.start:
            summary["started_from"] = self.start.told.model_dump()
        held, plan = self._loaded.held, federation.plan
        if held:
            own = scores_of(private) if (private := private_of(federation.roles[1])) else None
            account = account_of(self._config, plan, self._loaded.data.outputs, held, told, own)
            summary["label_privacy"] = account.model_dump(exclude_unset=True)
        if self._directory is None:
            return RunResult(summary, history, models)
        preparations = self._loaded.assembled.preparations
        columns = columns_of(self._config, preparations)
        analysis = analysis_of(
            by_true_labels(federation.server, held),
            federation.recipe.names,
            self._loaded.assembled.classes,
            federation.parties,
            columns,
        )
        self._directory.finish(summary, models, preparations, analysis)
        write_bundles(self._bundles(summary["run"]), self._directory.path / PARAMETERS)
        self._write_private(summary["run"], self._directory.path / PARAMETERS)
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([self._directory.path], self._directory.path / "report.html")
        self._directory.close(summary["completed"])
        return RunResult(summary, history, models, self._directory.path)

    def _write_private(self, run: str, folder: Path) -> None:
        """What the holder of labels that were told randomised scores with, if it has a model of its own."""
        federation, assembled = self._federation, self._loaded.assembled
        if private := private_of(federation.roles[1]):
            maker, data = BundleMaker(self._agreed, federation.recipe, run), assembled.data
            write_private(private, maker, data.outputs, assembled.classes, data.units, folder)

    def _bundles(self, run: str) -> Iterator[Bundle]:
        """What every role needs to predict."""
        federation, assembled = self._federation, self._loaded.assembled
        maker = BundleMaker(self._agreed, federation.recipe, run)
        of_parties, of_server = self._own_models
        categories = assembled.data.categories or ((),) * len(federation.parties)
        for party, codes in zip(federation.parties, categories, strict=True):
            preparation = assembled.preparations.get(party.holding.name)
            yield maker.of_party(party, preparation, codes, assembled.classes, of_parties, assembled.data.units)
        yield maker.of_server(federation.server, assembled.classes, of_server)


def _loaded(config: RunConfig, data: VerticalData | Loaded | None, start: Start | None) -> Loaded:
    match data:
        case None:
            return load_data(config, start=start)
        case VerticalData():
            return with_told_labels(config, Loaded(Assembled(data)))
        case Loaded():
            return with_told_labels(config, data)
