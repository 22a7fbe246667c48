"""Data as a federation holds it: the same rows at every party, different columns, and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cvfl.errors import DataError
from cvfl.protocol import Augment, Loss, Presence, Rows, Units


@dataclass(frozen=True)
class VerticalData:
    """Aligned rows: party m holds train[m - 1], test[m - 1] and, if any, validation[m - 1]; labels belong to them.

    A party's rows are a tensor, or anything that reads rows when asked for. `categories` says of each party how many
    values each of its last columns takes when those hold category codes. `augment` is drawn alike at all parties.
    `units` are those that labels had which are a quantity. `present` says which rows each party holds, if not all: what
    its table has in place of others is not used.
    """

    names: tuple[str, ...]
    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    train_labels: Tensor
    test_labels: Tensor
    loss: Loss
    validation: tuple[Rows, ...] = ()
    validation_labels: Tensor = field(default_factory=lambda: torch.empty(0))
    categories: tuple[tuple[int, ...], ...] = ()
    augment: Augment | None = None
    units: Units = field(default_factory=Units)
    present: Presence | None = None

    def __post_init__(self) -> None:
        if not self.names or not len(self.names) == len(self.train) == len(self.test):
            raise DataError(f"{len(self.names)} names for {len(self.train)} training and {len(self.test)} test tables")
        for name, train, test in zip(self.names, self.train, self.test, strict=True):
            _check_rows(name, "training", train, self.train_labels)
            _check_rows(name, "test", test, self.test_labels)
        for name, validation in zip(self.names, self.validation, strict=bool(self.validation)):
            _check_rows(name, "validation", validation, self.validation_labels)
        if self.present is not None:
            _check_presence(self.present, self.names, len(self.train_labels), self._held_out)
        if len(self.train_labels) == 0:
            raise DataError("there are no training rows")
        if self.loss is not Loss.SQUARED:
            held_out = torch.cat([self.validation_labels.to(self.test_labels.dtype), self.test_labels])
            _check_classes(self.train_labels, held_out, self.loss)

    @property
    def _held_out(self) -> int:
        return len(self.validation_labels) + len(self.test_labels)

    @property
    def outputs(self) -> int:
        """Width of the server model's output: classes, or one."""
        return int(self.train_labels.max()) + 1 if self.loss is Loss.MULTICLASS else 1

    def of_training_rows(self, chosen: Tensor) -> VerticalData:
        """The same data with only these training rows."""
        train = tuple(rows[chosen] if isinstance(rows, Tensor) else _Chosen(rows, chosen) for rows in self.train)
        present = self.present and replace(self.present, train=tuple(held[chosen] for held in self.present.train))
        return replace(self, train=train, train_labels=self.train_labels[chosen], present=present)

    def without_test_rows(self) -> VerticalData:
        """The same data with nothing left to test on."""
        none, kept = torch.arange(0), len(self.validation_labels)
        test = tuple(rows[none] for rows in self.test)
        present = self.present and replace(self.present, held_out=tuple(held[:kept] for held in self.present.held_out))
        return replace(self, test=test, test_labels=self.test_labels[none], present=present)


@dataclass(frozen=True)
class _Chosen:
    """Some of a party's rows, read when asked for."""

    rows: Rows
    chosen: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.chosen), *self.rows.shape[1:])

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        return self.rows[self.chosen[rows]]


def _check_rows(name: str, split: str, table: Rows, labels: Tensor) -> None:
    if len(table) != len(labels):
        raise DataError(f"{name}: {len(table)} {split} rows, but there are {len(labels)} {split} labels")
    if not isinstance(table, Tensor):
        return
    for start in range(0, len(table), _CHECKED):
        finite = torch.isfinite(table[start : start + _CHECKED]).flatten(1).all(1)
        if not bool(finite.all()):
            row = start + int((~finite).nonzero()[0])
            raise DataError(f"{name}: {split} row {row} holds a NaN or an infinite value; impute or drop it")


def _check_presence(present: Presence, names: Sequence[str], rows: int, held_out: int) -> None:
    for split, part, count in (("training", present.train, rows), ("held-out", present.held_out, held_out)):
        if len(part) != len(names) or any(len(held) != count for held in part):
            raise DataError(f"presence: it is not of {count} {split} rows of {len(names)} parties")
        if count and not bool(torch.stack(part).any(0).all()):
            raise DataError(f"presence: a {split} row is held by nobody; leave it out")


_CHECKED = 1 << 16  # rows looked at together: a check of all at once would take the memory of the table again


def _check_classes(train: Tensor, test: Tensor, loss: Loss) -> None:
    classes = set(torch.cat([train, test]).to(torch.int64).tolist()) | ({0, 1} if loss is Loss.BINARY else set())
    allowed = range(2) if loss is Loss.BINARY else range(max(classes) + 1)
    if odd := sorted(classes - set(allowed)):
        raise DataError(f"labels: {odd[0]} is not a class of a {loss} task (classes are 0 to {allowed[-1]})")
    if missing := sorted(set(allowed) - set(train.to(torch.int64).tolist())):
        raise DataError(f"labels: class {missing[0]} is missing from the training rows")


def split_columns(table: Tensor, parties: int) -> list[Tensor]:
    """Deal the columns out to the parties as evenly as they go, in order."""
    if not 1 <= parties <= table.shape[1]:
        raise DataError(f"{table.shape[1]} columns cannot be divided among {parties} parties")
    return list(torch.tensor_split(table, parties, dim=1))


def quadrants(images: Tensor) -> list[Tensor]:
    """Four parties, each with a quarter of every image: top left, top right, bottom left, bottom right."""
    half_h, half_w = images.shape[-2] // 2, images.shape[-1] // 2
    rows: Sequence[slice] = (slice(0, half_h), slice(half_h, None))
    columns: Sequence[slice] = (slice(0, half_w), slice(half_w, None))
    return [images[..., r, c] for r in rows for c in columns]
