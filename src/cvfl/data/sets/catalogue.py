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

from cvfl.data.sets.builtin import BUILTIN, load_builtin
from cvfl.data.tables.organisation import Assembled
from cvfl.data.vertical import VerticalData
from cvfl.errors import ConfigError, DataError
from cvfl.registry import Registry
from cvfl.rng import SPLIT, stream

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """Which data set, where its files are, and how it is divided."""

    name: str
    path: Path | None = None
    parties: int | None = None
    seed: int = 0
    test_share: float = 0.25
    dtype: torch.dtype = torch.float32
    augment: bool = True
    limit: int | None = None
    on_progress: OnProgress = lambda done, total: None


@dataclass(frozen=True)
class Reader:
    """How a data set is read: a function, which fields of `Wanted` it takes beside `dtype`, and its parties.

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
    return load_named(Wanted(name, Path(path) if path else None, parties, seed, test_share, dtype)).data


def load_named(wanted: Wanted) -> Assembled:
    """The same with all that is known about it."""
    found = _load_named(wanted)
    rows = len(found.data.train_labels)
    if wanted.limit is None or wanted.limit >= rows:
        return found
    chosen = torch.from_numpy(np.sort(stream(wanted.seed, SPLIT, "limit").permutation(rows)[: wanted.limit]))
    return replace(found, data=found.data.of_training_rows(chosen))


def _load_named(wanted: Wanted) -> Assembled:
    name, path, reader = wanted.name, wanted.path, READERS[wanted.name]
    if "path" in reader.takes and path is None:
        raise ConfigError(
            f"data.path: say where the files of {name} are; `cvfl data fetch {name}` tells how to get them"
        )
    if "path" in reader.takes and path and not path.is_dir():
        raise DataError(
            f"data.path: there is no folder {path}; `cvfl data fetch {name} {path}` tells how to get the files"
        )
    if "parties" not in reader.takes and wanted.parties not in (None, reader.parties):
        raise ConfigError(f"data.parties: {name} has {reader.parties} parties, not {wanted.parties}")
    wanted = replace(wanted, parties=wanted.parties or reader.parties)
    found = reader.read(dtype=wanted.dtype, **{key: getattr(wanted, key) for key in reader.takes})
    assembled = found if isinstance(found, Assembled) else Assembled(found)
    return assembled if wanted.augment else replace(assembled, data=replace(assembled.data, augment=None))


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
