"""Data sets by name: small ones that ship with scikit-learn, and those of the paper and of UCI from a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from cvfl.data.sets.builtin import BUILTIN, load_builtin
from cvfl.data.tables.organisation import Assembled
from cvfl.data.vertical import VerticalData
from cvfl.errors import ConfigError, DataError, suggest
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
class _Reader:
    """Reads one data set from its folder: the module and what it takes besides path and dtype."""

    module: str
    parties: int
    takes: tuple[str, ...]


_READERS = {
    "adult": _Reader("uci", 4, ()),
    "cifar10": _Reader("cifar10", 4, ("parties",)),
    "credit_default": _Reader("uci", 4, ("seed", "test_share")),
    "imagenet100": _Reader("imagenet100", 4, ("parties",)),
    "mfeat": _Reader("uci", 6, ("seed", "test_share")),
    "mimic3": _Reader("mimic3", 4, ("parties", "seed", "test_share", "on_progress")),
    "modelnet10": _Reader("modelnet10", 4, ("parties", "on_progress")),
    "physionet2012": _Reader("physionet2012", 4, ("parties", "on_progress")),
}
NAMES = (*BUILTIN, *_READERS)


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
    name, path, parties = wanted.name, wanted.path, wanted.parties
    if name in BUILTIN:
        return Assembled(load_builtin(name, parties or 4, wanted.seed, wanted.test_share, wanted.dtype))
    if name not in _READERS:
        raise ConfigError(f"data.name: unknown data set {name!r}{suggest(name, NAMES)}")
    reader = _READERS[name]
    if path is None:
        raise ConfigError(
            f"data.path: say where the files of {name} are; `cvfl data fetch {name}` tells how to get them"
        )
    if not path.is_dir():
        raise DataError(
            f"data.path: there is no folder {path}; `cvfl data fetch {name} {path}` tells how to get the files"
        )
    if "parties" not in reader.takes and parties not in (None, reader.parties):
        raise ConfigError(f"data.parties: {name} has {reader.parties} parties, not {parties}")
    # Each reader brings libraries of its own, so only the one that is needed is loaded.
    read = getattr(import_module(f"cvfl.data.sets.{reader.module}"), f"load_{name}")
    wanted = replace(wanted, parties=parties or reader.parties)
    found: VerticalData | Assembled = read(
        path, dtype=wanted.dtype, **{key: getattr(wanted, key) for key in reader.takes}
    )
    assembled = found if isinstance(found, Assembled) else Assembled(found)
    return assembled if wanted.augment else replace(assembled, data=replace(assembled.data, augment=None))
