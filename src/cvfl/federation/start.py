"""A run that starts from the models of an earlier one: new rows, the same columns, and perhaps a further party.

    bundles of an earlier run ──take──▶ columns and label become numbers as they did there
                              ──warmed──▶ every role begins with the weights that it had there

Nothing is fitted anew: with another scaling the weights would mean something else. Compressors, rounds and step sizes
may be others. A party that was not there begins with fresh parameters, and the server model grows by its columns.
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
from cvfl.data.tables.organisation import PartyTable
from cvfl.data.tables.spellings import listed
from cvfl.errors import ConfigError, DataError
from cvfl.models.server import Grows
from cvfl.protocol import Recipe
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.runs.bundle import PartyBundle, ServerBundle, read_preparation, restore, server_module
from cvfl.runs.record import StartedFrom
from cvfl.types import SERVER

_AFRESH = "or train without an earlier run"


@dataclass(frozen=True)
class Start:
    """The bundles of an earlier run, all roles, each in the folder where its weights are."""

    place: Path
    """As the user names it."""
    server: ServerBundle
    parties: Mapping[str, PartyBundle]
    folders: Mapping[str, Path]

    @classmethod
    def of(
        cls, place: Path, everyone: tuple[ServerBundle, Sequence[PartyBundle]], folders: Mapping[str, Path]
    ) -> Start:
        """From the bundles of all roles, which belong together."""
        server, parties = everyone
        return cls(place, server, {bundle.role: bundle for bundle in parties}, folders)

    @property
    def told(self) -> StartedFrom:
        """What the record says of it."""
        return StartedFrom(run=self.server.run, path=str(self.place))

    def check(self, config: RunConfig, own_models: tuple[bool, bool] = (False, False)) -> None:
        """Refuse a configuration of other models; it needs no data. `own_models` are modules: of parties, of server."""
        of_parties, of_server = own_models
        self._check_key("precision", self.server.precision, config.precision)
        for name, bundle in self.parties.items():
            self._check_source(config, bundle)
            self._check_model(name, bundle.model, None if of_parties else config.model_of(name))
            self._check_key("privacy.clip", bundle.clip, config.privacy.clip)
        self._check_model("server", self.server.model, None if of_server else config.server_model)

    def take(self, tables: Sequence[PartyTable]) -> None:
        """Have columns and label of these tables become numbers as they did; refuse those that cannot."""
        self._check_names([table.party.name for table in tables])
        for table in tables:
            if bundle := self.parties.get(table.party.name):
                self._take_columns(table, bundle)
            if table.label:
                self._check_label(table)
                table.label = replace(table.label, units=self.server.units)

    def warmed(self, recipe: Recipe, data: VerticalData) -> Recipe:
        """The same roles, which begin with the weights of the earlier run."""
        self._check_names(recipe.names)
        self._check_rows(data)
        self._check_outputs(recipe, data)
        models = (self._party(recipe, m, name) for m, name in enumerate(recipe.names, start=1))
        return replace(recipe, models=tuple(models), server_model=partial(copy.deepcopy, self._server_model(recipe)))

    def _party(self, recipe: Recipe, m: int, name: str) -> MakeModel:
        make, bundle = recipe.models[m - 1], self.parties.get(name)
        if bundle is None:
            return make
        model = initialised(make, recipe.plan.seed, m)
        restore(model, bundle, self.folders[name])
        return partial(copy.deepcopy, model)

    def _server_model(self, recipe: Recipe) -> nn.Module:
        model, folder = initialised(recipe.server_model, recipe.plan.seed, SERVER), self.folders["server"]
        if recipe.names == self.server.names:
            restore(model, self.server, folder)
            return model
        was = dict(zip(self.server.names, self.server.offered, strict=True))
        now = dict(zip(recipe.names, recipe.offered or recipe.plan.widths, strict=True))
        try:
            if not isinstance(model, Grows) or self.server.model is None:
                raise ValueError(type(model).__name__)
            model.load_state_dict(model.grown(server_module(self.server, folder), was, now))
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

    def _check_label(self, table: PartyTable) -> None:
        label, was = table.label, self.server.classes
        assert label is not None
        where = f"{table.table.name}: label {label.column!r}"
        if label.loss is not self.server.loss:
            raise DataError(f"{where} is {label.loss}, in {self.place} it was {self.server.loss}; take that, {_AFRESH}")
        # As in training, case does not count.
        if was and [one.casefold() for one in label.classes] != [one.casefold() for one in was]:
            raise DataError(
                f"{where} has the classes {listed(label.classes)}, in {self.place} there were {listed(was)}; take the "
                f"same in the same order, {_AFRESH}"
            )

    def _check_names(self, names: Sequence[str]) -> None:
        if gone := [name for name in self.parties if name not in names]:
            raise ConfigError(f"party {gone[0]} of {self.place} is missing; a party may join, but not leave: add it")

    def _check_rows(self, data: VerticalData) -> None:
        categories = data.categories or ((),) * len(data.names)
        for name, rows, codes in zip(data.names, data.train, categories, strict=True):
            bundle, shape = self.parties.get(name), tuple(rows.shape[1:])
            if bundle and (bundle.shape, bundle.categories) != (shape, codes):
                raise DataError(
                    f"{name}: rows of shape {shape}, in {self.place} {bundle.shape}; take the same columns, {_AFRESH}"
                )

    def _check_outputs(self, recipe: Recipe, data: VerticalData) -> None:
        if (recipe.plan.loss, data.outputs) != (self.server.loss, self.server.outputs):
            raise DataError(
                f"labels are {recipe.plan.loss} with {data.outputs} outputs, in {self.place} {self.server.loss} with "
                f"{self.server.outputs}; take the same classes, {_AFRESH}"
            )
        if recipe.parted != self.server.first_layer:
            where = "parties" if self.server.first_layer else "server"
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
