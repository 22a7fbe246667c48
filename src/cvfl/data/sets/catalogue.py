"""Data sets by name: small ones that ship with scikit-learn, and those of the paper and of UCI from a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from cvfl.data.sets import Progress
from cvfl.data.sets.builtin import BUILTIN, load_builtin
from cvfl.data.tables.organisation import Assembled
from cvfl.data.vertical import VerticalData
from cvfl.errors import ConfigError, DataError
from cvfl.registry import Registry
from cvfl.rng import SPLIT, stream
from cvfl.types import Section


class NamedSet(Section):
    """A data set by name, where its files are if it does not ship with the software, and how it is divided.

    `limit` takes that many training rows, drawn at random, for trying out.
    """

    name: str | None = None
    """A data set by name (`cvfl data list` shows them); leave it out when parties have tables of their own."""
    path: Path | None = None
    """The folder with the files of the data set, for those that do not ship with cvfl."""
    parties: int | None = Field(default=None, ge=1, le=64)
    """How many parties share the columns; each data set has its usual number."""
    test_share: float = Field(default=0.25, ge=0, lt=1)
    """Share of the rows that are held out for the test."""
    split_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Which rows are held out follows from it, for all seeds alike; parties that are apart have a secret instead."""
    augment: bool = True
    """Whether training images are shifted and mirrored, where the data set does so."""
    limit: int | None = Field(default=None, ge=1)
    """Take only this many training rows, drawn at random, for trying out."""


@dataclass(frozen=True)
class Reader:
    """How a data set is read: a function, what it takes of a `NamedSet`, `seed` and `on_progress`, and its parties.

    One that takes no `path` needs no files. One that takes no `parties` always has the same ones.
    """

    read: Callable[..., VerticalData | Assembled]
    takes: tuple[str, ...] = ("path",)
    parties: int = 4


READERS = Registry[Reader]("data set", "data.name")
register = READERS.register


def load(
    name: str,
    parties: int | None = None,
    seed: int = 0,
    test_share: float = 0.25,
    dtype: torch.dtype = torch.float32,
    path: Path | str | None = None,
) -> VerticalData:
    """A data set by name, divided among parties; those that do not ship with the software are read from `path`."""
    chosen = NamedSet(
        name=name, path=Path(path) if path else None, parties=parties, test_share=test_share, split_seed=seed
    )
    return load_named(chosen, dtype).data


def load_named(
    chosen: NamedSet,
    dtype: torch.dtype = torch.float32,
    on_progress: Progress = lambda done, total: None,
) -> Assembled:
    """A data set with all that is known about it."""
    found = _read(chosen, dtype, on_progress)
    rows = len(found.data.train_labels)
    if chosen.limit is None or chosen.limit >= rows:
        return found
    some = torch.from_numpy(np.sort(stream(chosen.split_seed, SPLIT, "limit").permutation(rows)[: chosen.limit]))
    return replace(found, data=found.data.of_training_rows(some))


def _read(chosen: NamedSet, dtype: torch.dtype, on_progress: Progress) -> Assembled:
    name, path, reader = chosen.name, chosen.path, READERS[chosen.name or ""]
    if "path" in reader.takes and path is None:
        raise ConfigError(
            f"data.path: say where the files of {name} are; `cvfl data fetch {name}` tells how to get them"
        )
    if "path" in reader.takes and path and not path.is_dir():
        raise DataError(
            f"data.path: there is no folder {path}; `cvfl data fetch {name} {path}` tells how to get the files"
        )
    if "parties" not in reader.takes and chosen.parties not in (None, reader.parties):
        raise ConfigError(f"data.parties: {name} has {reader.parties} parties, not {chosen.parties}")
    given = dict(chosen) | {
        "parties": chosen.parties or reader.parties,
        "seed": chosen.split_seed,
        "on_progress": on_progress,
    }
    found = reader.read(dtype=dtype, **{key: given[key] for key in reader.takes})
    assembled = found if isinstance(found, Assembled) else Assembled(found)
    return assembled if chosen.augment else replace(assembled, data=replace(assembled.data, augment=None))


def _imported(module: str, name: str, **given: Any) -> VerticalData | Assembled:
    """Read by a module that is imported only now, since each brings libraries of its own."""
    read: Callable[..., VerticalData | Assembled] = getattr(import_module(f"cvfl.data.sets.{module}"), f"load_{name}")
    return read(**given)


for _name in BUILTIN:
    register(_name, Reader(partial(load_builtin, _name), ("parties", "seed", "test_share")))
for _name, _module, _parties, _takes in (
    ("adult", "uci", 4, ()),
    ("cifar10", "cifar10", 4, ("parties",)),
    ("credit_default", "uci", 4, ("seed", "test_share")),
    ("imagenet100", "imagenet100", 4, ("parties",)),
    ("mfeat", "uci", 6, ("seed", "test_share")),
    ("mimic3", "mimic3", 4, ("parties", "seed", "test_share", "on_progress")),
    ("modelnet10", "modelnet10", 4, ("parties", "on_progress")),
    ("physionet2012", "physionet2012", 4, ("parties", "on_progress")),
):
    register(_name, Reader(partial(_imported, _module, _name), ("path", *_takes), _parties))
