"""A party of a federation on this machine: its role, the table that it brings, and what it writes at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.config.sections import PartyConfig
from cvfl.errors import ConfigError, suggest, writing
from cvfl.federation.agreement.terms import offer_of, started_log, terms_from, terms_of
from cvfl.federation.consent import Consent, consent_of
from cvfl.federation.results.bundles import BundleMaker, write_bundles
from cvfl.federation.results.scoring import analysis_of, columns_of, own_columns, scorer
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.rows.keeping import PartyKeeper
from cvfl.federation.rows.load import load_data, open_party, row_secret
from cvfl.federation.rows.named import NamedRows
from cvfl.federation.rows.party import PartyRows
from cvfl.federation.rows.table import TableRows
from cvfl.federation.start import Start
from cvfl.federation.state import ALIGNMENT, NOISE, State, kept_secret
from cvfl.federation.told_labels.holder import account_of
from cvfl.federation.told_labels.private import fit_private, private_of, scores_of, write_private
from cvfl.federation.told_labels.randomise import randomise_table
from cvfl.files import write_hidden
from cvfl.privacy.identity import Identity
from cvfl.privacy.relay import Holder
from cvfl.protocol import PartyMachine, Units
from cvfl.runs import directory as record
from cvfl.runs.actions import ActionLog
from cvfl.runs.analysis import Analysis, Columns, write_analysis, write_columns
from cvfl.runs.bundle import Bundle
from cvfl.runs.record import LabelAccount
from cvfl.runs.witness import Recorder
from cvfl.runtime.observed import ObservedParty
from cvfl.types import OnStep


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
    agreed: Callable[[Consent, ActionLog], None] = lambda *_: None
    """Sees to it that the owner agrees, or raises: before anything that is kept is put aside."""
    role: PartyRole = field(init=False)
    end: ObservedParty = field(init=False)
    """The role, overheard."""
    columns: Columns | None = None
    """What its columns bring, when it is over: known to this party alone."""
    _unseen: tuple[str, ...] = ()
    """What the earlier run did not know of its categories."""

    def __post_init__(self) -> None:
        config, name, terms = self.config, self.name, terms_of(self.config) | terms_from(self.start)
        if self.start:
            self.start.check(config)
        self._open = self.stack.enter_context(ExitStack())
        self.state = State(self.folder, terms | _own(config, name))
        self._open.callback(self.state.close)
        self._rows = self._party_rows()
        self._rows.start = self.start
        self.log = started_log(self.folder, name, config, self.state.path.name)
        self._recorder = Recorder(self.log, name, self._rows.names)
        self._open.callback(self._recorder.close)
        self.agreed(self.consent, self.log)
        if self.restart:
            self.state.begin_anew()
        self.role = PartyRole(
            self._rows,
            terms,
            offer_of(config, name, self._rows.classes, self.start),
            self.state.path,
            config.network.checkpoint_every,
            self.identity,
            self._row_secret(),
            self._noise_secret(),
            PartyKeeper(self.folder / ALIGNMENT, self._rows.names, wanted=self._rows.wanted),
        )
        self.end = ObservedParty(self.role, [self._recorder])

    @property
    def consent(self) -> Consent:
        """What the owner of this party agrees to by this run."""
        columns = self._rows.table.features if isinstance(self._rows, TableRows) else ()
        terms = terms_of(self.config) | terms_from(self.start)
        terms |= {f"own.{key}": value for key, value in _own(self.config, self.name).items()}
        return consent_of(self.config, self.name, self._rows.names, columns, terms)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to ids of the table, and what an earlier run never saw; no label or value: they are logged."""
        return self._unseen + (self._rows.table.notes if isinstance(self._rows, TableRows) else ())

    def _row_secret(self) -> bytes:
        """By what the first party has rows ordered: the same whenever they are settled anew for this run."""
        named = row_secret(self.config, self.name) if self.name in self.config.party else None
        return named or kept_secret(self.state.path / "row.secret")

    def _noise_secret(self) -> bytes | None:
        """What its noise comes from. Of noise that is shared each run has one of its own.

        Where one party repeats its noise in another run and one does not, the sums of both together show that one.
        """
        privacy = self.config.privacy
        if privacy.noise is None:
            return None
        return kept_secret((self.state.path if privacy.noise_shared else self.state.folder) / NOISE)

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
            self._unseen = self.start.unseen(table, named=False)
        return TableRows(self.config, table)

    def finish(self, out: Path) -> None:
        """Write the party's model, its preparation and the hash of its parameters; the state is no longer needed.

        A party that holds the labels has the server model, too, and the analysis of the run, which stays with it.
        """
        assert self.role.party is not None
        fit_private([self.role.party])
        models = self.role.party.models
        hashes = {role: record.fingerprint(model) for role, model in models.items()}
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
                write_hidden(out / f"{self.name}.row_secret", self._rows.key)
            (out / f"{self.name}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        write_bundles(self._bundles(self.role.party), out)
        self._write_private(self.role.party, out)
        if analysis := self._analysis():
            self._write_analysis(analysis, out)
        self.columns = own_columns(self.role.party, self._columns.get(self.name, ()))
        if self.columns:
            write_columns(self.columns, out)
        self._recorder.ended(run=self.role.run, rounds=self.role.party.t0)
        self.state.remove()

    @property
    def label_account(self) -> LabelAccount | None:
        """Of the party that holds labels and told randomised ones: what that guarantees, and how good the model is."""
        party = self.role.party
        if party is None or not self._rows.holds:
            return None
        own = scores_of(private) if (private := private_of([party])) else None
        return account_of(self.config, party.plan, self.role.facts.outputs, self._rows.held, self.role.outputs, own)

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

    def _write_private(self, machine: PartyMachine, out: Path) -> None:
        """What this party scores with, if it told labels randomised and has a model of its own."""
        if private := private_of([machine]):
            maker = BundleMaker(self.config, self._rows.recipe(self.role.facts), self.role.run)
            units = self._rows.units or Units()
            write_private(private, maker, self.role.facts.outputs, self._rows.classes, units, out)

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
        """Write what is to be logged yet, and let another process use the state; the stack does so, too."""
        self._open.close()


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
