"""One role of a federation on this machine: the server with its records, or a party with its table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from cvfl.config.schema import RunConfig
from cvfl.config.sections import PartyConfig
from cvfl.errors import ConfigError, suggest, writing
from cvfl.federation.agreement.labels import NamedLabels, ServerRows, TableLabels
from cvfl.federation.agreement.terms import elsewhere, offer_of, read_facts, terms_from, terms_of
from cvfl.federation.alarms import Alarms, alarms_of, joined
from cvfl.federation.build import make_recipe
from cvfl.federation.bundles import BundleMaker, write_bundles
from cvfl.federation.completion import with_told
from cvfl.federation.consent import Consent, consent_of
from cvfl.federation.divergence import Divergence
from cvfl.federation.holder import account_of
from cvfl.federation.keeping import PartyKeeper, ServerKeeper
from cvfl.federation.load import load_data, open_party, row_secret
from cvfl.federation.party import PartyRole
from cvfl.federation.rows import NamedRows, PartyRows, TableRows
from cvfl.federation.scoring import analysis_of, columns_of, own_columns, scorer, units_of
from cvfl.federation.server import ServerRole
from cvfl.federation.start import Start
from cvfl.federation.state import ALIGNMENT, NOISE, State, kept_secret, write_secret
from cvfl.federation.told_labels import randomise_table
from cvfl.federation.train import RunResult
from cvfl.privacy.account import check_accountant
from cvfl.privacy.identity import Identity
from cvfl.privacy.relay import Holder
from cvfl.protocol import PartyMachine, Recipe
from cvfl.protocol.learning.metrics import headline
from cvfl.runs import directory as record
from cvfl.runs.actions import ActionLog
from cvfl.runs.analysis import Analysis, Columns, write_analysis, write_columns
from cvfl.runs.bundle import Bundle
from cvfl.runs.journal import Journal
from cvfl.runs.progress import Progress
from cvfl.runs.record import LabelAccount
from cvfl.runs.summary import summarise
from cvfl.runs.witness import Recorder
from cvfl.runtime import RoundReport
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.observed import ObservedParty, ObservedServer, Times
from cvfl.types import SERVER, OnStep

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
        self.state = State(self.folder, terms, self.restart)
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
        self.log = ActionLog(self.folder)
        self.log.append("started", role="server", **_facts(self.config, self.state))
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
        history, hashes = with_told(self._journal.lines, self.role.names, self.role.left), _hashes(models)
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
        self._recorder.flush()
        self.log.append("ended", run=self.role.run, rounds=summary["rounds"])
        self.state.remove()
        return RunResult(summary, history, models, out)

    def close(self) -> None:
        """Let another process use the state."""
        self.state.close()
        self.log.close()


@dataclass
class PartyRun:
    """The party role and what it holds; `end` goes to a carrier, `finish` writes its model."""

    config: RunConfig
    name: str
    folder: Path
    stack: ExitStack
    on_step: OnStep = lambda *_: None
    identity: Identity | None = None
    restart: bool = False
    start: Start | None = None
    """The earlier run that all roles start from, if there is one: with this party's bundle, unless it joins."""
    role: PartyRole = field(init=False)
    end: ObservedParty = field(init=False)
    """The role, overheard."""
    columns: Columns | None = None
    """What its columns bring, when it is over: known to this party alone."""

    def __post_init__(self) -> None:
        config, name, terms = self.config, self.name, terms_of(self.config) | terms_from(self.start)
        if self.start:
            self.start.check(config)
        self.state = State(self.folder, terms | _own(config, name), self.restart)
        self._rows = self._party_rows()
        self._rows.start = self.start
        self.role = PartyRole(
            self._rows,
            terms,
            offer_of(config, name, self._rows.classes, self.start),
            self.state.path,
            config.network.checkpoint_every,
            self.identity,
            self._row_secret(),
            kept_secret(self.state.folder / NOISE) if config.privacy.noise else None,
            PartyKeeper(self.folder / ALIGNMENT, self._rows.names, wanted=self._rows.wanted),
        )
        self.log = ActionLog(self.folder)
        self.log.append("started", role=name, **_facts(config, self.state))
        self._recorder = Recorder(self.log, name, self._rows.names)
        self.end = ObservedParty(self.role, [self._recorder])

    @property
    def consent(self) -> Consent:
        """What the owner of this party agrees to by this run."""
        columns = self._rows.table.features if isinstance(self._rows, TableRows) else ()
        terms = self.role.terms | {f"own.{key}": value for key, value in _own(self.config, self.name).items()}
        return consent_of(self.config, self.name, self._rows.names, columns, terms)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to ids of the table, once they are read."""
        return self._rows.table.notes if isinstance(self._rows, TableRows) else ()

    def _row_secret(self) -> bytes:
        """By what the first party has rows ordered: the same whenever they are settled anew for this run."""
        named = row_secret(self.config, self.name) if self.name in self.config.party else None
        return named or kept_secret(self.state.path / "row.secret")

    def _party_rows(self) -> PartyRows:
        if self.config.data.name is not None:
            loaded = load_data(self.config, self.on_step)
            return NamedRows(self.config, self.name, loaded.data, loaded.held)
        if self.name not in self.config.party:
            raise ConfigError(f"there is no section party.{self.name}{suggest(self.name, self.config.party)}")
        if not self.config.party[self.name].has_table:
            raise ConfigError(f"party.{self.name} has no table; give table, or url and query")
        table = open_party(self.config, self.name, self.stack, self.on_step)
        randomise_table(self.config, table)
        if self.start:
            self.start.check_names(list(self.config.party))
            self.start.take_own(table)
        return TableRows(self.config, table)

    def finish(self, out: Path) -> None:
        """Write the party's model, its preparation and the hash of its parameters; the state is no longer needed.

        A party that holds the labels has the server model, too, and the analysis of the run, which stays with it.
        """
        assert self.role.party is not None
        models = self.role.party.models
        hashes = _hashes(models)
        facts: dict[str, Any] = {"parameters": hashes.pop(self.name)} | hashes | {"versions": record.versions()}
        facts |= {"classes": list(self._rows.classes)} if self._rows.classes else {}
        facts |= {"started_from": self.start.told.model_dump()} if self.start else {}
        if account := self.label_account:
            facts["label_privacy"] = account.model_dump(exclude_unset=True)
        facts |= {"time": record.times(self.end.times.total, ("server", *self._rows.names)).model_dump()}
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            for role, model in models.items():
                (out / f"{role}.safetensors").write_bytes(record.serialised(model))
            if self._rows.preparation:
                self._rows.preparation.save(out / f"{self.name}.preparation")
            if isinstance(self._rows, TableRows):
                write_secret(out / f"{self.name}.row_secret", self._rows.key)
            (out / f"{self.name}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        write_bundles(self._bundles(self.role.party), out)
        if analysis := self._analysis():
            self._write_analysis(analysis, out)
        self.columns = own_columns(self.role.party, self._columns.get(self.name, ()))
        if self.columns:
            write_columns(self.columns, out)
        self._recorder.flush()
        self.log.append("ended", run=self.role.run, rounds=self.role.party.t0)
        self.state.remove()

    @property
    def label_account(self) -> LabelAccount | None:
        """Of the party that holds labels and told randomised ones: what that guarantees, and how good the model is."""
        party = self.role.party
        if party is None or not self._rows.holds:
            return None
        return account_of(self.config, party.plan, self.role.facts.outputs, self._rows.held, self.role.outputs)

    @property
    def _columns(self) -> dict[str, tuple[str, ...]]:
        preparations = {self.name: self._rows.preparation} if self._rows.preparation else {}
        return columns_of(self.config, preparations)

    def _bundles(self, machine: PartyMachine) -> Iterator[Bundle]:
        """What this party needs to predict, and with the server model also to score."""
        maker = BundleMaker(self.config, self._rows.recipe(self.role.facts), self.role.run)
        rows = self._rows
        yield maker.of_party(machine, rows.preparation, rows.categories, rows.classes, units=rows.units)
        if scores := scorer(machine):
            yield maker.of_server(scores, self._rows.classes)

    def _analysis(self) -> Analysis | None:
        """Of the party that holds the labels; what its own columns bring is known to it alone."""
        assert self.role.party is not None
        if not isinstance(self.role.party, Holder):
            return None
        parties = [self.role.party.party]
        return analysis_of(self.role.party, self._rows.names, self._rows.classes, parties, self._columns)

    def _write_analysis(self, analysis: Analysis, out: Path) -> None:
        from cvfl.report.analysis import write_analysis_page  # noqa: PLC0415  matplotlib is slow to load

        write_analysis(analysis, out)
        write_analysis_page(analysis, ", ".join(self._rows.names), out / "analysis.html")

    def close(self) -> None:
        """Let another process use the state."""
        self.state.close()
        self.log.close()


def _facts(config: RunConfig, state: State) -> dict[str, Any]:
    """By which terms a role takes part: their hash, by which its state's folder is named, and that of a signed file."""
    signed = {"signed": config.terms_sha256} if config.terms_sha256 else {}
    return {"cvfl": record.versions()["cvfl"], "terms": state.path.name} | signed


def _hashes(models: Mapping[str, nn.Module]) -> dict[str, str]:
    return {role: record.fingerprint(model) for role, model in models.items()}


_ELSEWHERE = {
    "table",
    "url",
    "query",
    "model",
    "compressor",
    "row_secret",
    "label_secret",
    "fingerprint",
    "tell_classes",
}


def _own(config: RunConfig, name: str) -> dict[str, Any]:
    """What a party decides for itself and its checkpoints depend on; where its table is does not matter."""
    section = config.party.get(name, PartyConfig())
    return {
        "party": section.model_dump(mode="json", exclude=_ELSEWHERE),
        "model": config.model_of(name).model_dump(mode="json"),
        "compressor": config.compressor_of(name),
        "prepare": config.data.prepare.model_dump(mode="json"),
        "id": config.data.id,
    }


def federation_names(config: RunConfig) -> tuple[str, ...]:
    """The parties of a federation in their order."""
    return tuple(config.party) if config.data.name is None else load_data(config).data.names


def _server_rows(config: RunConfig) -> ServerRows:
    if config.data.name is None:
        return TableLabels(config, tuple(config.party))
    loaded = load_data(config)
    return NamedLabels(config, loaded.data, loaded.assembled.classes)
