"""A prediction of roles that are apart: what each brings to the handshake of a federation, and what it leaves.

The handshake and its terms are those of training, with the run whose models are used as one more term: roles with
bundles of other runs do not begin. New ids are aligned privately and none of it is kept. The scores are written by the
party that had the label, which alone hears them beside the role that computes them. With models that do without some
parties, the roles may agree that some take no part, which is a term, too.

    FOLDER/actions.jsonl    what the role did: which run, who came and went, how many rows, what was sent
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cvfl.config.modes import does_without, scoring_party
from cvfl.config.schema import RunConfig
from cvfl.data.tables.sources import open_table
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, CvflError, DataError, suggest
from cvfl.federation.agreement.terms import digest_of, started_log, terms_of
from cvfl.federation.consent import Consent, Use
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.roles.server import ServerRole
from cvfl.federation.state import kept_secret
from cvfl.runs.bundle import PartyBundle, ServerBundle, needed, server_module
from cvfl.runs.witness import PredictionRecorder
from cvfl.runtime import RoundReport
from cvfl.runtime.observed import ObservedParty, ObservedServer
from cvfl.scratch import Scratch
from cvfl.serving.bundles import Bundles, read_bundles, recorded_run
from cvfl.serving.consent import prediction_consent
from cvfl.serving.earlier import run_config
from cvfl.serving.newrows import NewLabels, NewRows
from cvfl.serving.rows import DOES, LEARN, source_of
from cvfl.types import OnStep
from cvfl.wire.control import Offer

NEVER = 1 << 30
"""Batches between two checkpoints: nothing is kept, a role that comes back begins with the first batch."""


MOST_KEYS = 3
"""Keys of other terms that are named."""


def check_predicts(config: RunConfig) -> None:
    """Refuse a federation that cannot predict with its roles apart."""
    if config.data.name is not None:
        raise ConfigError(f"--predict is for tables of the parties; {config.data.name} is a data set by name")
    if config.privacy.noise is not None:
        raise ConfigError("--predict: with privacy.noise rows are not predicted apart yet; scores would be noise, too")


@dataclass
class PartyPrediction:
    """The party role of a prediction; `end` goes to a carrier, `rows.batches` has the scores where they may be seen."""

    config: RunConfig
    name: str
    model: Path
    folder: Path
    """Where its log is."""
    stack: ExitStack
    on_step: OnStep = lambda *_: None
    without: Sequence[str] = ()
    """Parties that take no part."""
    role: PartyRole = field(init=False)
    end: ObservedParty = field(init=False)
    """The role, overheard."""
    recorder: PredictionRecorder = field(init=False)
    rows: NewRows = field(init=False)

    def __post_init__(self) -> None:
        check_predicts(self.config)
        if self.name not in self.config.party:
            raise ConfigError(f"there is no section party.{self.name}{suggest(self.name, self.config.party)}")
        check_without(self.config, self.without, self.name)
        # Others may have theirs in the same folder, which is none of this party's business.
        bundles = read_bundles([self.model], {self.name, "server"} if self._scores else {self.name})
        if self.name not in bundles.parties:
            raise DataError(f"{self.model}: there is no model of {self.name}; name its folder with --model")
        bundle, folder = bundles.parties[self.name], self.stack.enter_context(Scratch()).path
        check_terms(self.config, bundle, self.model)
        check_needed(bundles, self.without)
        self.rows = NewRows(self.config, bundles, self.name, self._table(bundle), self.on_step, self.without)
        offer = Offer(width=bundle.width, compressor=bundle.compressor, label=self.rows.label)
        terms = prediction_terms(self.config, bundle.run, self.without)
        secret = kept_secret(folder / "row.secret")
        self.role = PartyRole(self.rows, terms, offer, folder, NEVER, row_secret=secret)
        self.recorder = _recorder(self.folder, self.name, self.config, bundle.run, terms, self.rows)
        self.stack.callback(self.recorder.close)
        self.end = ObservedParty(self.role, [self.recorder])

    @property
    def consent(self) -> Consent:
        """What the owner of this party agrees to by this prediction."""
        terms = prediction_terms(self.config, None, self.without)
        return prediction_consent(self.config, self.rows.bundle, self.rows.names, terms)

    @property
    def _scores(self) -> bool:
        """Whether this party alone scores."""
        return self.config.privacy.scores_at(self.name)

    def _table(self, bundle: PartyBundle) -> Table:
        section = self.config.party[self.name]
        if not section.has_table or bundle.table is None:
            raise ConfigError(f"party.{self.name} has no table; give table, or url and query, of the new rows")
        place = section.table if section.table else (section.url or "", section.query or "")
        report: Callable[[str, int], None] = lambda what, rows: self.on_step(f"{what}: reading", rows, 0)  # noqa: E731
        return self.stack.enter_context(open_table(source_of(bundle, place), report))


@dataclass
class ServerPrediction:
    """The server role of a prediction."""

    config: RunConfig
    model: Path
    folder: Path
    """Where its log is."""
    stack: ExitStack
    on_batch: Callable[[int, int], None] = lambda done, total: None
    without: Sequence[str] = ()
    """Parties that take no part."""
    role: ServerRole = field(init=False)
    end: ObservedServer = field(init=False)
    """The role, overheard."""
    recorder: PredictionRecorder = field(init=False)

    def __post_init__(self) -> None:
        check_predicts(self.config)
        check_without(self.config, self.without)
        names = tuple(name for name in self.config.party if name not in self.without)
        passes = bool(scoring_party(self.config, names))
        bundles = None if passes else read_bundles([self.model], {"server"})
        if bundles is not None and bundles.server is None:
            raise DataError(f"{self.model}: there is no server model; name the run directory with --model")
        if bundles is not None and bundles.server is not None:
            check_terms(self.config, bundles.server, self.model)
            check_needed(bundles, self.without)
        run = bundles.server.run if bundles and bundles.server else recorded_run(self.model)[0]
        rows, folder = NewLabels(self.config, names, bundles), self.stack.enter_context(Scratch()).path
        terms = prediction_terms(self.config, run, self.without)
        self.role = ServerRole(names, terms, rows, folder, NEVER, self._batch)
        self.recorder = _recorder(self.folder, "server", self.config, run, terms, rows)
        self.stack.callback(self.recorder.close)
        self.end = ObservedServer(self.role, [self.recorder])

    @property
    def counted(self) -> dict[str, int]:
        """What the prediction took: rows, and bytes by what they were for."""
        sent = self.role.meter.total()
        counts = {f"{part}_bytes": getattr(sent, part) for part in ("prediction", "alignment", "setup")}
        return {"rows": self.role.facts["rows"][2], **counts}

    def _batch(self, report: RoundReport) -> None:
        assert self.role.rounds.server is not None
        self.on_batch(report.t0 + 1, self.role.rounds.server.plan.rounds)


def _recorder(
    folder: Path, own: str, config: RunConfig, run: str, terms: dict[str, Any], rows: NewRows | NewLabels
) -> PredictionRecorder:
    """The log of a role, which says that it starts."""
    log = started_log(folder, own, config, digest_of(terms), use=str(Use.PREDICTION), run=run)
    return PredictionRecorder(log, own, rows.names, run, lambda: (rows.sizes() or [0])[-1])


def prediction_terms(config: RunConfig, run: str | None, without: Sequence[str] = ()) -> dict[str, Any]:
    """The terms of a prediction: those of the training, the run whose models are used, and who takes no part.

    What an owner approves is of whichever run.
    """
    named = {"predict": run} if run else {}
    return terms_of(config) | named | ({"without": sorted(without)} if without else {})


def check_without(config: RunConfig, without: Sequence[str], own: str = "") -> None:
    """Refuse to leave out parties that are needed, or that there are not."""
    if not without:
        return
    if strange := [name for name in without if name not in config.party]:
        raise ConfigError(f"--without: there is no party {strange[0]!r}{suggest(strange[0], config.party)}")
    if not does_without(config):
        raise ConfigError(f"--without: this model needs every party: {DOES}")
    rest = [name for name in config.party if name not in without]
    if own in without or not rest:
        raise ConfigError(f"--without: {own or 'every party'} is left out, and would have nothing to do")
    if config.privacy.relayed and rest == [config.privacy.labels]:
        raise ConfigError(f"--without: {rest[0]} alone has all that it needs: take `cvfl predict` there")


def check_needed(bundles: Bundles, without: Sequence[str]) -> None:
    """Refuse to leave out parties that the model of the role that scores never learned to do without."""
    if without and bundles.server is not None:
        never = needed(bundles.server, server_module(bundles.server, bundles.folders["server"]))
        if lost := [name for name in without if name in never]:
            raise ConfigError(f"--without: this model needs {lost[0]}, whom every row of its training had; {LEARN}")


def check_terms(config: RunConfig, bundle: PartyBundle | ServerBundle, model: Path) -> None:
    """Refuse a model that was trained with other terms."""
    terms = terms_of(config)
    if bundle.terms != digest_of(terms):
        raise DataError(
            f"{model}: the model of {bundle.role} was trained with other terms than this configuration has"
            f"{_differing(terms, bundle, model)}; take that of the training, with the new table"
        )


def _differing(terms: Mapping[str, Any], bundle: PartyBundle | ServerBundle, model: Path) -> str:
    """The keys that differ, and both values, where the run's own configuration is beside the model."""
    for folder in (model, model.parent):
        try:
            before = terms_of(run_config(folder))
        except CvflError:
            continue
        if digest_of(before) == bundle.terms:
            was, now = _flat(before), _flat(terms)
            keys = [key for key in {**now, **was} if was.get(key) != now.get(key)]
            told = [f"{key} = {_shown(now.get(key))} here, {_shown(was.get(key))} in training" for key in keys]
            more = f", and {len(told) - MOST_KEYS} more" if len(told) > MOST_KEYS else ""
            return f": {', '.join(told[:MOST_KEYS])}{more}"
    return ""


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A value for each key as it is written in a command."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
