"""The server of a federation on this machine: its role, and what it records of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cvfl.config.schema import RunConfig
from cvfl.errors import writing
from cvfl.federation.agreement.facts import read_facts
from cvfl.federation.agreement.labels import NamedLabels, ServerRows, TableLabels
from cvfl.federation.agreement.terms import started_log, terms_from, terms_of
from cvfl.federation.builder.recipe import elsewhere, make_recipe
from cvfl.federation.results.bundles import BundleMaker, write_bundles
from cvfl.federation.results.completion import with_told
from cvfl.federation.results.scoring import analysis_of, scorer, units_of
from cvfl.federation.roles.server import ServerRole
from cvfl.federation.rows.keeping import ServerKeeper
from cvfl.federation.rows.load import load_data
from cvfl.federation.start import Start
from cvfl.federation.state import ALIGNMENT, State
from cvfl.federation.told_labels.holder import account_of
from cvfl.federation.train import RunResult
from cvfl.federation.watch.divergence import Divergence
from cvfl.privacy.account import check_accountant
from cvfl.protocol import Recipe
from cvfl.protocol.learning.metrics import headline
from cvfl.runs import directory as record
from cvfl.runs.alarms import Alarms, alarms_of, joined
from cvfl.runs.journal import Journal
from cvfl.runs.progress import Progress
from cvfl.runs.summary import summarise
from cvfl.runs.witness import Recorder
from cvfl.runtime import RoundReport
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.observed import ObservedServer, Times
from cvfl.types import SERVER

OnRound = Callable[[Progress], None]


@dataclass
class ServerRun:
    """The server role and what it records; `end` goes to a carrier, `finish` writes the run directory."""

    config: RunConfig
    name: str
    folder: Path
    on_round: OnRound = lambda progress: None
    restart: bool = False
    start: Start | None = None
    """The earlier run that all roles start from, if there is one."""
    role: ServerRole = field(init=False)
    end: ObservedServer = field(init=False)
    """The role, overheard."""

    def __post_init__(self) -> None:
        check_accountant(self.config.privacy.noise)
        self._rows = rows = _server_rows(self.config)
        rows.start, terms = self.start, terms_of(self.config) | terms_from(self.start)
        if self.start:
            self.start.check(self.config)
            self.start.check_names(rows.names)
        self.state = State(self.folder, terms)
        if self.restart:
            self.state.begin_anew()
        path = self.state.path
        self._journal = Journal(path / "metrics.jsonl")
        # A round whose line was lost with the power is run again.
        Checkpoints(path / "checkpoints").drop_after(len(self._journal.lines))
        self._alarms = Alarms()
        self._divergence: Divergence | None = None  # of a run that has begun, where the labels are
        self._began = time.perf_counter()
        self._times: Times | None = None
        self.role = ServerRole(
            rows.names,
            terms,
            rows,
            path,
            self.config.network.checkpoint_every,
            self._record,
            self._back,
            ServerKeeper(self.folder / ALIGNMENT, rows.names),
        )
        self.log = started_log(self.folder, "server", self.config, self.state.path.name)
        self._recorder = Recorder(self.log, "server", rows.names)
        self.end = ObservedServer(self.role, [self._recorder])
        self._times = self.end.times

    @property
    def lines(self) -> Path:
        """The file of the lines so far, while there is no run directory."""
        return self._journal.path

    def _record(self, report: RoundReport) -> None:
        assert self.role.rounds.server is not None
        plan, meter = self.role.rounds.server.plan, self.role.rounds.meter
        report = replace(report, spent={SERVER: self.end.times.take()})
        with writing(self.state.path):
            line = record.round_line(report, plan, meter, self.role.names)
            self._journal.append(line)
        if self._divergence is None and (server := scorer(self.role.rounds.server)):
            self._divergence = Divergence(plan, server.labels)
        note = self._divergence.see(report.evaluation) if self._divergence else ""
        note = joined(note, self._alarms.see(line))
        self.on_round(Progress(report, plan.rounds, meter.total(), headline(plan.loss), note))

    def _back(self, t0: int) -> None:
        if self._times:
            self._times.take()  # of rounds that count no longer
        with writing(self.state.path):
            self._journal.back(t0)
        self._alarms = alarms_of(self._journal.lines)

    def recipe(self) -> Recipe:
        """The recipe of the run that has begun."""
        facts = read_facts(self.role.facts)
        return make_recipe(self.config, facts, [elsewhere] * len(facts.names))

    def finish(self, out: Path) -> RunResult:
        """Write the run directory; the state is no longer needed. A server that only relays has no model to write."""
        rounds = self.role.rounds
        assert rounds.server is not None
        models, seconds = dict(rounds.server.models), time.perf_counter() - self._began
        history = with_told(self._journal.lines, self.role.names, self.role.left)
        hashes = {role: record.fingerprint(model) for role, model in models.items()}
        for left in self.role.left.values():
            hashes |= left.parameters
        hashes = {role: hashes[role] for role in ("server", *self.role.names) if role in hashes}
        summary = summarise(self.config, self.name, self.recipe(), history, rounds.meter, hashes, seconds)
        summary["split"] = record.split_name(self.config, self._rows.parts)
        summary["alignment"] = record.alignment(self.role.aligned)
        classes = self._rows.classes
        summary |= {"sent_again": rounds.meter.sent_again, "units": units_of(rounds.server), "classes": list(classes)}
        summary["run"] = self.role.run
        if self.config.privacy.randomised:
            account = account_of(self.config, self.recipe().plan, read_facts(self.role.facts).outputs)
            summary["label_privacy"] = account.model_dump(exclude_unset=True)
        diverged = self._divergence.line if self._divergence else ""
        if warning := joined(diverged, *self._alarms.lines):
            summary["warning"] = warning
        started = self.start.told if self.start else None
        if started:
            summary["started_from"] = started.model_dump()
        directory = record.RunDirectory(out, resume=True, start=started)  # a crash may have stopped it here before
        directory.begin(self.config).replace(history)
        directory.finish(summary, models, analysis=analysis_of(rounds.server, self.role.names, classes))
        if scores := scorer(rounds.server):
            maker = BundleMaker(self.config, self.recipe(), self.role.run)
            write_bundles([maker.of_server(scores, classes)], out / record.PARAMETERS)
        from cvfl.report.report import write_report  # noqa: PLC0415  matplotlib is slow to load

        write_report([out], out / "report.html")
        directory.close(completed=True)
        self._recorder.ended(run=self.role.run, rounds=summary["rounds"])
        self.state.remove()
        return RunResult(summary, history, models, out)

    def close(self) -> None:
        """Write what is to be logged yet, and let another process use the state."""
        try:
            self._recorder.close()
        finally:
            self.state.close()


def _server_rows(config: RunConfig) -> ServerRows:
    if config.data.name is None:
        return TableLabels(config, tuple(config.party))
    loaded = load_data(config)
    return NamedLabels(config, loaded.data, loaded.assembled.classes)
