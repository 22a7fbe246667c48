"""Bundles of a run directory of a version that wrote none: as far as its files hold what a prediction needs."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data.tables.prepare import Preparation
from cvfl.errors import DataError
from cvfl.federation.agreement.facts import Facts
from cvfl.federation.builder.recipe import make_recipe, party_maker
from cvfl.federation.results.bundles import BundleMaker, run_name
from cvfl.protocol import Loss, Units
from cvfl.protocol.learning.decision import HALF, Decided
from cvfl.runs.bundle import PREPARATION, Bundle
from cvfl.runs.directory import PARAMETERS
from cvfl.runs.read import read_run
from cvfl.runs.record import Run

_AGAIN = "train it again with this version"


def earlier_bundles(run: Path) -> list[Bundle]:
    """The bundles of all roles, or one line of what is missing."""
    config, record = run_config(run), read_run(run)
    if config.data.name is not None or not config.party:
        raise DataError(f"{run}: its rows were no tables, and it has no bundles; {_AGAIN}")
    names, loss = tuple(config.party), _loss(run, config, record)
    found = {name: Preparation.load(run / PARAMETERS / f"{name}{PREPARATION}") for name in names}
    shapes = {name: (len(preparation.columns),) for name, preparation in found.items()}
    facts = Facts(
        names=names,
        widths=tuple(config.model_of(name).width for name in names),
        compressors=tuple(config.compressor_of(name) for name in names),
        rows=(record.rows["train"], record.rows["validation"], record.rows["test"]),
        loss=loss,
        outputs=len(record.classes) if loss is Loss.MULTICLASS else 1,
    )
    makers = [party_maker(config, name, torch.empty(0, *shapes[name]), found[name].categories) for name in names]
    if missing := [role for role in ("server", *names) if role not in record.parameters]:
        raise DataError(f"{run}: there is no model of {missing[0]}; {_AGAIN}")
    maker = BundleMaker(config, make_recipe(config, facts, makers), run_name(config, record.parameters))
    units, classes = Units(**record.units) if record.units else Units(), tuple(record.classes)
    return [
        *(
            maker.party(name, record.parameters[name], shapes[name], found[name], classes=classes, units=units)
            for name in names
        ),
        maker.server(record.parameters["server"], facts.outputs, classes, units, _decided(run, record, loss)),
    ]


def run_config(run: Path) -> RunConfig:
    """The configuration that a run directory has."""
    path = run / "config.json"
    try:
        return parse_config(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError):
        raise DataError(f"{path}: cannot be read; a prediction needs the configuration of the run") from None


def _loss(run: Path, config: RunConfig, record: Run) -> Loss:
    """What kind of label it was, as far as the record shows it."""
    if config.loss is not None:
        return config.loss
    if record.classes:
        return Loss.BINARY if len(record.classes) == 2 else Loss.MULTICLASS
    if record.units:
        return Loss.SQUARED
    raise DataError(f"{run}: its summary has neither classes nor units of the label; {_AGAIN}")


def _decided(run: Path, record: Run, loss: Loss) -> Decided:
    """How outputs become probabilities: that was written down with the analysis of the run alone."""
    if loss is Loss.SQUARED or not record.rows["validation"]:
        return Decided(threshold=record.threshold or HALF)
    chosen = record.analysis.decision if record.analysis else None
    if chosen is None or chosen.calibration == "isotonic":
        raise DataError(f"{run}: the calibration of its scores was not kept; {_AGAIN}")
    threshold = HALF if chosen.threshold is None else chosen.threshold
    return Decided(chosen.calibration, threshold, chosen.temperature, fitted=chosen.fitted)
