"""Labels that are randomised before anything else is done with them, and the true ones, which stay with their holder.

    true labels ──the holder's draw──▶ told labels ──▶ rows, batches, weights, losses, metrics: all that others see
         └──▶ metrics at the holder, when the run is over

To everybody but their holder such a run is one with shared labels, which happen to be these. Data sets by name are
files that all roles have: there nothing is private, and draws come from the run's seed, so that they can be studied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.label import Label
from cvfl.data.tables.organisation import PartyTable
from cvfl.errors import ConfigError
from cvfl.federation.told_labels.secret import SUFFIX, Release, told_before
from cvfl.privacy.label_draw import tell_classes, tell_quantities
from cvfl.protocol import Labels, Loss, Units
from cvfl.protocol.learning.randomised import Randomised
from cvfl.rng import stream

DRAWN = "labels told"


@dataclass(frozen=True)
class Held:
    """What a holder keeps of labels that it told randomised: the true ones, and with which epsilons it told them."""

    labels: Labels
    epsilons: tuple[float, ...]
    """Of every release so far, this one among them; nothing for a data set by name."""


def randomise_table(config: RunConfig, table: PartyTable) -> None:
    """Put told labels in the place of the true ones of a holder's table, which go to `held`."""
    noise, label = config.privacy.randomised, table.label
    if noise is None or label is None:
        return
    _check_range(noise, label.loss)
    path = _secret_file(config, table.party.name)
    secret, releases = told_before(path, _release(noise, label))
    table.held, table.label = label, replace(label, values=_told(secret, noise, label, _ids(config, table)))
    table.epsilons = tuple(one.epsilon for one in releases)


def held_of(
    table: PartyTable, places: NDArray[np.int64], sizes: Sequence[int], units: Units, dtype: torch.dtype
) -> Held | None:
    """The true labels of these places, so many for training, validation and the test, in the units of the told ones."""
    if table.held is None:
        return None
    own, _ = replace(table.held, units=units).tensor(places, 0, dtype)
    train, validation, test = torch.split(own, list(sizes))
    return Held(Labels(train, test, validation, units), table.epsilons)


def randomise_data(config: RunConfig, data: VerticalData) -> tuple[VerticalData, Held | None]:
    """The same for rows that every role has anyway: drawn from the seed, by the number of each row."""
    noise = config.privacy.randomised
    if noise is None:
        return data, None
    _check_range(noise, data.loss)
    secret = stream(config.seed, DRAWN).words(4).tobytes()
    parts = (data.train_labels, data.validation_labels, data.test_labels)
    whole = torch.cat([part.double() for part in parts]).numpy()
    names = tuple(map(str, range(max(2, data.outputs))))
    ids = map(str, range(len(whole)))
    if noise.range is None:
        told = tell_classes(secret, noise, "label", ids, whole.astype(np.int64), names).astype(np.float64)
    else:
        own = data.units.offset + data.units.scale * whole
        told = (tell_quantities(secret, noise, "label", ids, own) - data.units.offset) / data.units.scale
    typed = torch.from_numpy(told).to(data.train_labels.dtype)
    train, validation, test = torch.split(typed, [len(part) for part in parts])
    randomised = replace(data, train_labels=train, validation_labels=validation, test_labels=test)
    return randomised, Held(Labels(parts[0], parts[2], parts[1], data.units), ())


def _check_range(noise: Randomised, loss: Loss) -> None:
    """Before anything is drawn: limits belong to quantities, and must not come from the labels."""
    if noise.range is None and loss is Loss.SQUARED:
        raise ConfigError(
            "privacy.label_range: the label is a quantity; give its limits, [low, high], by what you know"
        )
    if noise.range is not None and loss is not Loss.SQUARED:
        raise ConfigError(
            "privacy.label_range is for a label that is a quantity; of classes all that there are are told"
        )


def _release(noise: Randomised, label: Label) -> Release:
    names = tuple(sorted(label.classes)) if noise.range is None else ()
    return Release(column=label.column, epsilon=noise.epsilon, labels=names, range=noise.range)


def _secret_file(config: RunConfig, name: str) -> Path:
    """Where the holder's secret is: where its section says, or beside its table."""
    section = config.party[name]
    if section.label_secret is not None:
        return section.label_secret
    if section.table is None:
        raise ConfigError(f"party.{name}.label_secret: name a file for the secret that labels are randomised by")
    return section.table.with_name(section.table.name + SUFFIX)


def _ids(config: RunConfig, table: PartyTable) -> list[str]:
    """Of every row its id; its number where rows have none, or where another row counts for its id."""
    ids = [f"row {number}" for number in range(table.table.rows)]
    if config.data.alignment != "aligned":
        for text, place in table.ids().items():
            ids[place] = f"id {text}"
    return ids


def _told(secret: bytes, noise: Randomised, label: Label, ids: list[str]) -> NDArray[np.float64] | NDArray[np.int64]:
    """Told labels of all rows that have one; the others stay without."""
    known = np.flatnonzero(label.known)
    own, some = label.values[known], [ids[place] for place in known.tolist()]
    told = label.values.copy()
    if noise.range is None:
        told[known] = tell_classes(secret, noise, label.column, some, own.astype(np.int64), label.classes)
    else:
        told[known] = tell_quantities(secret, noise, label.column, some, own.astype(np.float64))
    return told
