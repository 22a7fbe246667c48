from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cvfl.data import VerticalData, load, quadrants, split_columns
from cvfl.data.sets.catalogue import NamedSet, load_named
from cvfl.errors import ConfigError, DataError
from cvfl.protocol import Loss


def table(loss: Loss, train_labels: list[float], test_labels: list[float]) -> VerticalData:
    return VerticalData(
        ("org",),
        (torch.zeros(len(train_labels), 2),),
        (torch.zeros(len(test_labels), 2),),
        torch.tensor(train_labels),
        torch.tensor(test_labels),
        loss,
    )


@pytest.mark.parametrize(
    ("name", "loss"), [("digits", Loss.MULTICLASS), ("breast_cancer", Loss.BINARY), ("diabetes", Loss.SQUARED)]
)
@pytest.mark.parametrize("parties", [1, 2, 4, 5])
def test_built_in_data_is_divided_standardised_and_repeatable(name: str, loss: Loss, parties: int) -> None:
    data = load(name, parties, seed=1)
    assert data.loss is loss
    assert len(data.names) == len(set(data.names)) == parties
    again, other = load(name, parties, seed=1), load(name, parties, seed=2)
    assert torch.equal(data.train[0], again.train[0])
    assert not torch.equal(data.train_labels, other.train_labels)
    x = torch.cat([part.flatten(1) for part in data.train], 1)  # type: ignore[attr-defined]
    assert float(x.mean(0).abs().max()) < 1e-4
    assert float(x.std(0).max()) == pytest.approx(1, abs=1e-3)


def test_quadrants_make_up_the_image() -> None:
    image = torch.arange(2 * 8 * 8).reshape(2, 8, 8)
    a, b, c, d = quadrants(image)
    assert torch.equal(torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1), image)


def test_columns_are_dealt_out_evenly() -> None:
    parts = split_columns(torch.arange(10).reshape(1, 10), 3)
    assert [part.shape[1] for part in parts] == [4, 3, 3]
    with pytest.raises(DataError, match="3 columns cannot be divided among 4 parties"):
        split_columns(torch.zeros(2, 3), 4)


def test_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        load("digit")


@pytest.mark.parametrize(
    ("loss", "train", "test", "message"),
    [
        (Loss.MULTICLASS, [0, 1, 3], [2], "class 2 is missing from the training rows"),
        (Loss.MULTICLASS, [0, -1], [0], "-1 is not a class"),
        (Loss.BINARY, [1, 1], [0], "class 0 is missing from the training rows"),
        (Loss.BINARY, [0, 2], [1], "2 is not a class of a binary task"),
        (Loss.SQUARED, [], [1], "there are no training rows"),
    ],
)
def test_labels_that_cannot_be_trained_on(loss: Loss, train: list[float], test: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(loss, train, test)


def test_bad_rows_name_the_party() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(DataError, match="org: 2 training rows, but there are 3"):
        VerticalData(("org",), (x[:2],), (x,), y, y, Loss.BINARY)
    x = x.clone()
    x[1, 0] = float("nan")
    with pytest.raises(DataError, match="org: training row 1 holds a NaN"):
        VerticalData(("org",), (x,), (x,), y, y, Loss.BINARY)
    with pytest.raises(DataError, match="2 names for 1"):
        VerticalData(("a", "b"), (x,), (x,), y, y, Loss.BINARY)


def test_a_limit_takes_some_training_rows_and_all_test_rows() -> None:
    whole = load_named(NamedSet(name="wine", parties=2, split_seed=4)).data
    some = load_named(NamedSet(name="wine", parties=2, limit=40, split_seed=4)).data
    again = load_named(NamedSet(name="wine", parties=2, limit=40, split_seed=4)).data
    assert len(some.train_labels) == len(some.train[0]) == 40
    assert torch.equal(some.test[0], whole.test[0])
    assert torch.equal(some.train[1], again.train[1])
    rows = [(whole.train[0] == row).all(1).nonzero()[0, 0] for row in some.train[0]]  # type: ignore[attr-defined]
    assert torch.equal(whole.train[1][rows], some.train[1])
    assert torch.equal(whole.train_labels[rows], some.train_labels)
    assert len(load_named(NamedSet(name="wine", limit=10**6)).data.train_labels) == len(whole.train_labels)


def test_rows_that_are_read_when_asked_for_can_be_limited() -> None:
    data = load_named(NamedSet(name="wine", parties=2)).data
    lazy = replace(data, train=tuple(Reader(rows) for rows in data.train))
    one, two, three = ((data.train_labels == label).nonzero()[0, 0] for label in (2, 0, 1))  # every class once
    some = lazy.of_training_rows(torch.stack([one, two, three]))
    assert some.train[0].shape == (3, data.train[0].shape[1])
    assert torch.equal(some.train[0][torch.tensor([2, 0])], data.train[0][torch.stack([three, one])])


class Reader:
    """Rows that are read when asked for."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.rows[rows]
