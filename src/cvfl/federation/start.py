"""A run that starts from the models of an earlier one: new rows, the same columns, and perhaps a further party.

    bundles of an earlier run ──take──▶ columns and label become numbers as they did there
                              ──warmed──▶ every role begins with the weights that it had there

Nothing is fitted anew: with another scaling the weights would mean something else. Compressors, rounds and step sizes
may be others. A party that was not there begins with fresh parameters, and the server model grows by its columns.

In one process the bundles of all roles are here. Where roles are apart each has its own, checks what it knows by that,
and the run is a term: roles that start from another one, or afresh, do not begin. A restart starts from the same bundle
once more, so nothing of it needs to be kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from cvfl.config.schema import RunConfig
from cvfl.config.sections import PartyModelConfig, ServerModelConfig
from cvfl.data import VerticalData
from cvfl.data.tables.encoders import Code, OneHot
from cvfl.data.tables.organisation import PartyTable
from cvfl.data.tables.spellings import listed
from cvfl.errors import ConfigError, DataError
from cvfl.protocol import Loss, Recipe, Units
from cvfl.protocol.absence import StandIns
from cvfl.protocol.fusion import Grows
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.runs.bundle import Bundle, PartyBundle, Reading, ServerBundle, read_preparation, restore, server_module
from cvfl.runs.record import StartedFrom
from cvfl.types import SERVER

_AFRESH = "or train without an earlier run"
Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a party's rows: their shape, and how many codes each of the last columns has."""


@dataclass(frozen=True)
class Start:
    """The bundles of an earlier run that are here, each in the folder where its weights are: of all roles or of one."""

    place: str
    """As the user names it."""
    run: str
    names: tuple[str, ...]
    """Its parties; one that joins does not know them."""
    server: ServerBundle | None
    """That of the server model: with the role that scores."""
    parties: Mapping[str, PartyBundle]
    folders: Mapping[str, Path]

    @classmethod
    def of(
        cls, place: Path, everyone: tuple[ServerBundle, Sequence[PartyBundle]], folders: Mapping[str, Path]
    ) -> Start:
        """From the bundles of all roles, which belong together."""
        server, parties = everyone
        return cls(str(place), server.run, server.names, server, {bundle.role: bundle for bundle in parties}, folders)

    @classmethod
    def joining(cls, run: str) -> Start:
        """Of a party that was not in the run from which the others start: it has no bundle."""
        return cls(f"run {run}", run, (), None, {}, {})

    @property
    def told(self) -> StartedFrom:
        """What the record says of it."""
        return StartedFrom(run=self.run, path=self.place)

    @property
    def _bundles(self) -> list[Bundle]:
        return [*self.parties.values(), *([self.server] if self.server else [])]

    def check(self, config: RunConfig, own_models: tuple[bool, bool] = (False, False)) -> None:
        """Refuse a configuration of other models; it needs no data. `own_models` are modules: of parties, of server."""
        of_parties, of_server = own_models
        for one in self._bundles:
            self._check_key("precision", one.precision, config.precision)
        for name, bundle in self.parties.items():
            self._check_source(config, bundle)
            self._check_model(name, bundle.model, None if of_parties else config.model_of(name))
            self._check_key("privacy.clip", bundle.clip, config.privacy.clip)
        if self.server:
            self._check_model("server", self.server.model, None if of_server else config.server_model)

    def take(self, tables: Sequence[PartyTable]) -> None:
        """Have columns and label of all tables become numbers as they did; refuse those that cannot."""
        self.check_names([table.party.name for table in tables])
        for table in tables:
            self.take_own(table)

    def take_own(self, table: PartyTable) -> None:
        """The same of one party's table."""
        if bundle := self.parties.get(table.party.name):
            self._take_columns(table, bundle)
        if table.label:
            units = self._units(table, bundle.table if bundle else None)
            table.label = replace(table.label, units=units)

    def unseen(self, table: PartyTable, named: bool = True) -> tuple[str, ...]:
        """A line for each column of a table with categories that the earlier run never saw, `named` or only counted."""
        lines = []
        for column, encoder in table.preparation.encoders.items() if table.preparation else ():
            if isinstance(encoder, OneHot | Code):
                known = {*encoder.values, *encoder.rare}
                if new := [value for value in table.table.categories(column).values if value not in known]:
                    taken = "rare ones" if encoder.rare else "none of those that it knows"
                    which = f"{listed(new)}; they" if named else f"{len(new):,} of them, which"
                    lines.append(
                        f"{table.table.name}: column {column!r} has categories that {self.place} never saw: "
                        f"{which} are taken as {taken}; train afresh to tell them apart"
                    )
        return tuple(lines)

    def warmed(self, recipe: Recipe, data: VerticalData) -> Recipe:
        """All roles, which begin with the weights of the earlier run."""
        categories = data.categories or ((),) * len(data.names)
        shapes = [tuple(rows.shape[1:]) for rows in data.train]
        rows = dict(zip(data.names, zip(shapes, categories, strict=True), strict=True))
        return self.warmed_role(recipe, data.outputs, rows)

    def warmed_role(self, recipe: Recipe, outputs: int, rows: Mapping[str, Row] | None = None) -> Recipe:
        """Those whose bundles are here, with these rows; the others are as they were."""
        self.check_names(recipe.names)
        self._check_rows(rows or {})
        self._check_first_layer(recipe)
        models = tuple(self._party(recipe, m, name) for m, name in enumerate(recipe.names, start=1))
        started = frozenset(m for m, name in enumerate(recipe.names, start=1) if name in self.parties)
        recipe = replace(recipe, models=models, started=started)
        if self.server is None:
            return recipe
        self._check_outputs(self.server, recipe, outputs)
        model = self._server_model(self.server, recipe)
        # Where roles are apart a party has no theta_0 but that of the seed, which its compressor may begin with.
        return replace(recipe, server_model=partial(copy.deepcopy, model), guess=recipe.server_model)

    def _party(self, recipe: Recipe, m: int, name: str) -> MakeModel:
        make, bundle = recipe.models[m - 1], self.parties.get(name)
        if bundle is None:
            return make
        model = initialised(make, recipe.plan.seed, m)
        restore(model, bundle, self.folders[name])
        return partial(copy.deepcopy, model)

    def _server_model(self, bundle: ServerBundle, recipe: Recipe) -> nn.Module:
        model, folder = initialised(recipe.server_model, recipe.plan.seed, SERVER), self.folders["server"]
        was = dict(zip(bundle.names, bundle.offered, strict=True))
        now = dict(zip(recipe.names, recipe.offered or recipe.plan.widths, strict=True))
        for name, width in was.items():
            self._check_key(f"{name}: width of its embedding", width, now[name])
        # What stands for parties that are away is new where the earlier run had none, and left where this one has none.
        own = model if bundle.stand_ins or not isinstance(model, StandIns) else model.inner
        if bundle.stand_ins and not isinstance(model, StandIns):
            own = StandIns(model, recipe.plan.widths, bundle.dtype)
        if recipe.names == bundle.names:
            restore(own, bundle, folder)
            return model
        try:
            if not isinstance(own, Grows) or bundle.model is None:
                raise ValueError(type(own).__name__)
            own.load_state_dict(own.grown(server_module(bundle, folder), was, now))
        except (RuntimeError, ValueError):
            raise ConfigError(
                f"server model: it cannot go on from {self.place}, which had the parties {', '.join(was)}, with "
                f"{', '.join(now)}; take the same in the same order, {_AFRESH}"
            ) from None
        return model

    def _take_columns(self, table: PartyTable, bundle: PartyBundle) -> None:
        name = table.table.name
        if bundle.table is None:
            raise DataError(f"{name}: {self.place} was not trained on tables; take its rows, {_AFRESH}")
        if missing := [column for column in bundle.columns if column not in table.features]:
            raise DataError(f"{name}: missing, but in {self.place}: {listed(missing)}; add what is missing, {_AFRESH}")
        if new := [column for column in table.features if column not in bundle.columns]:
            raise DataError(f"{name}: not in {self.place}: {listed(new)}; add to exclude what is new, {_AFRESH}")
        table.preparation = read_preparation(bundle, self.folders[bundle.role])

    def _units(self, table: PartyTable, reading: Reading | None) -> Units | None:
        """Those that the label had, by the bundle of the server model, or of the party itself; another is refused."""
        label = table.label
        assert label is not None
        where = f"{table.table.name}: label {label.column!r}"
        if self.server is None and (reading is None or reading.label is None):
            raise DataError(
                f"{where}: in {self.place} it was not with {table.party.name}; leave it where it was, {_AFRESH}"
            )
        classes, units = (reading.classes, reading.units) if reading else ((), None)
        # A party that does not score knows whether it was a quantity; the role that scores knows the loss.
        was, now = ("a quantity" if one else "classes" for one in (units, label.loss is Loss.SQUARED))
        if self.server:
            classes, units = self.server.classes or classes, self.server.units
            was, now = self.server.loss, label.loss
        if now != was:
            raise DataError(f"{where} is {now}, in {self.place} it was {was}; take that, {_AFRESH}")
        if classes and table.party.positive is None:
            table.renumber(classes)
            label = table.label or label
        # As in training, case does not count.
        if classes and [one.casefold() for one in label.classes] != [one.casefold() for one in classes]:
            raise DataError(
                f"{where} has the classes {listed(label.classes)}, in {self.place} there were {listed(classes)}; take "
                f"the same in the same order, {_AFRESH}"
            )
        return units

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse to go on without a party."""
        if gone := [name for name in self.names if name not in names]:
            raise ConfigError(f"party {gone[0]} of {self.place} is missing; a party may join, but not leave: add it")

    def _check_rows(self, rows: Mapping[str, Row]) -> None:
        for name, (shape, codes) in rows.items():
            bundle = self.parties.get(name)
            if bundle and (bundle.shape, bundle.categories) != (shape, codes):
                raise DataError(
                    f"{name}: rows of shape {shape}, in {self.place} {bundle.shape}; take the same columns, {_AFRESH}"
                )

    def _check_outputs(self, server: ServerBundle, recipe: Recipe, outputs: int) -> None:
        if (recipe.plan.loss, outputs) != (server.loss, server.outputs):
            raise DataError(
                f"labels are {recipe.plan.loss} with {outputs} outputs, in {self.place} {server.loss} with "
                f"{server.outputs}; take the same classes, {_AFRESH}"
            )

    def _check_first_layer(self, recipe: Recipe) -> None:
        for bundle in self._bundles:
            if recipe.parted != bundle.first_layer:
                where = "parties" if bundle.first_layer else "server"
                raise ConfigError(
                    f"first_layer: in {self.place} it was with the {where}; set first_layer = {where!r}, {_AFRESH}"
                )

    def _check_source(self, config: RunConfig, bundle: PartyBundle) -> None:
        section = config.party.get(bundle.role)
        if bundle.table and section and section.table is None and section.url is None:
            raise ConfigError(f"{bundle.role}: {self.place} was trained on tables; give its table, {_AFRESH}")

    def _check_model(
        self,
        role: str,
        was: PartyModelConfig | ServerModelConfig | None,
        now: PartyModelConfig | ServerModelConfig | None,
    ) -> None:
        if was is None or now is None:
            if was is not now:
                kind = "a module of your own" if was is None else f"{was.name!r}, by name"
                raise ConfigError(f"{role}: its model in {self.place} was {kind}; take the same, {_AFRESH}")
            return
        for key in type(was).model_fields:
            if key != "dropout":  # no weight depends on it
                self._check_key(f"{role}: {key} of its model", getattr(was, key), getattr(now, key))

    def _check_key(self, what: str, was: object, now: object) -> None:
        if was != now:
            shown = [list(value) if isinstance(value, tuple) else value for value in (was, now)]
            raise ConfigError(f"{what}: {shown[1]!r} here, {shown[0]!r} in {self.place}; set it back, {_AFRESH}")
