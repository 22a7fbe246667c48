"""The bundles that roles leave at the end of a run: what each needs to predict, and nothing of another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cvfl.analysis.analyse import decided_of
from cvfl.compress import Scalar, build
from cvfl.compress.masked import finest
from cvfl.config.schema import RunConfig
from cvfl.config.sections import id_columns
from cvfl.data.tables.prepare import Preparation
from cvfl.federation.agreement.terms import digest_of, terms_of
from cvfl.privacy.sealed_party import party_of
from cvfl.protocol import Loss, PartyMachine, Recipe, Server, Units
from cvfl.protocol.absence import StandIns
from cvfl.protocol.learning.decision import Decided
from cvfl.runs.bundle import Bundle, PartyBundle, Reading, ServerBundle, columns_of, write_bundle
from cvfl.runs.directory import fingerprint, versions

UNTAUGHT = "scalar:bits=8"
"""In place of a compressor that follows the loss. Its error is about a ten-thousandth of the variance of embeddings,
as much as `auto` allows itself of held-out rows."""


def run_name(config: RunConfig, parameters: Mapping[str, str]) -> str:
    """A name for a run in one process: the same for the same terms and weights. Roles apart have agreed on one."""
    text = "\n".join(
        [digest_of(terms_of(config)), *(f"{role} {digest}" for role, digest in sorted(parameters.items()))]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_bundles(bundles: Iterable[Bundle], folder: Path) -> None:
    """Write them beside the weights and preparations."""
    for bundle in bundles:
        write_bundle(bundle, folder)


@dataclass(frozen=True)
class BundleMaker:
    """Makes the bundles of one run."""

    config: RunConfig
    recipe: Recipe
    run: str

    def of_party(
        self,
        machine: PartyMachine,
        preparation: Preparation | None = None,
        categories: tuple[int, ...] = (),
        classes: tuple[str, ...] = (),
        own_model: bool = False,
        units: Units | None = None,
    ) -> PartyBundle:
        """That of a party which has trained; a module of the user's own cannot be made again from a file."""
        party = party_of(machine)
        name, shape = party.holding.name, tuple(party.holding.train.shape[1:])
        parameters = fingerprint(party.models[name])
        return self.party(name, parameters, shape, preparation, categories, classes, own_model, units)

    def party(
        self,
        name: str,
        parameters: str,
        shape: tuple[int, ...],
        preparation: Preparation | None,
        categories: tuple[int, ...] = (),
        classes: tuple[str, ...] = (),
        own_model: bool = False,
        units: Units | None = None,
    ) -> PartyBundle:
        """That of a party whose weights have this hash, and whose rows this shape; `units` are those of its label."""
        config, at = self.config, self.recipe.names.index(name)
        own_table = preparation is not None and config.data.name is None  # some data sets by name are prepared, too
        return PartyBundle(
            **self._common(name, parameters),
            model=None if own_model else config.model_of(name),
            shape=shape,
            categories=preparation.categories if preparation else categories,
            width=self.recipe.plan.widths[at],
            first_layer=self.recipe.parted,
            absence=self.recipe.plan.stands_in,
            clip=config.privacy.clip,
            compressor=_compressor(config, self.recipe, at),
            table=_reading(config, name, classes, self._quantity(units)) if own_table else None,
            columns=columns_of(preparation) if preparation else {},
        )

    def of_server(self, server: Server, classes: Iterable[str] = (), own_model: bool = False) -> ServerBundle:
        """That of the role that scores, which has trained the server model."""
        model: nn.Module = server.models["server"]
        blank = [torch.zeros(1, width, dtype=server.plan.dtype, device=server.plan.device) for width in self._widths]
        with torch.no_grad():
            outputs = model.eval()(blank).numel()
        units, decided = server.labels.units, decided_of(server)
        return self.server(fingerprint(model), outputs, classes, units, decided, own_model, self._learned(model))

    def server(
        self,
        parameters: str,
        outputs: int,
        classes: Iterable[str],
        units: Units,
        decided: Decided,
        own_model: bool = False,
        learned: tuple[str, ...] | None = None,
    ) -> ServerBundle:
        """That of a server model whose weights have this hash; it was `learned` what stands for these parties."""
        return ServerBundle(
            **self._common("server", parameters),
            model=None if own_model else self.config.server_model,
            offered=self.recipe.offered or self._widths,
            widths=self._widths,
            first_layer=self.recipe.parted,
            stand_ins=self.recipe.plan.stands_in,
            learned=learned,
            outputs=outputs,
            loss=self.recipe.plan.loss,
            classes=tuple(classes),
            units=units,
            decided=decided,
            scored_by=self.config.privacy.labels if self.config.privacy.private_model else "",
        )

    def _learned(self, model: nn.Module) -> tuple[str, ...] | None:
        if not isinstance(model, StandIns):
            return None
        return tuple(name for name, trained in zip(self.recipe.names, model.learned, strict=True) if trained)

    @property
    def _widths(self) -> tuple[int, ...]:
        return self.recipe.plan.widths

    def _quantity(self, units: Units | None) -> Units | None:
        """Classes have no units."""
        return units if self.recipe.plan.loss is Loss.SQUARED else None

    def _common(self, role: str, parameters: str) -> dict[str, Any]:
        return {
            "role": role,
            "run": self.run,
            "terms": digest_of(terms_of(self.config)),
            "names": self.recipe.names,
            "parameters": parameters,
            "precision": self.config.precision,
            "versions": versions(),
        }


def _compressor(config: RunConfig, recipe: Recipe, at: int) -> str:
    """Of new rows: that of held-out rows, unless it learns from training, which is over.

    Under secure aggregation it is the finest grid whose sums fit.
    """
    if not config.privacy.secure:
        spec = config.evaluation_compressor_of(config.compressor_of(recipe.names[at]))
        return UNTAUGHT if build(spec, "evaluation").follows else spec
    grid = recipe.compressors[at]()
    assert isinstance(grid, Scalar)
    assert grid.range.fixed is not None  # or it could not be masked
    low, high = grid.range.fixed
    return f"scalar:bits={finest(recipe.plan.M)},low={low:g},high={high:g}"


def _reading(config: RunConfig, name: str, classes: tuple[str, ...], units: Units | None) -> Reading:
    section = config.party[name]
    return Reading(
        alignment="aligned" if config.data.alignment == "aligned" else "private",
        id=id_columns(section.id or config.data.id),
        id_type=section.id_type,
        duplicates=section.duplicates,
        delimiter=section.delimiter,
        encoding=section.encoding,
        missing=section.missing,
        label=section.label,
        classes=classes if section.label else (),
        units=units if section.label else None,
    )
