"""Columns become numbers: fitted on training rows only, saved without pickle, and refused by name when they cannot."""

import gzip
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from cvfl.data.tables.encoders import Number, Standard, date_parts
from cvfl.data.tables.label import read_label
from cvfl.data.tables.prepare import Preparation, Settings, prepare
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.table import Kind, Table
from cvfl.errors import DataError
from cvfl.protocol import Loss, Units


def table(folder: Path, **columns: object) -> Table:
    path = folder / f"{'-'.join(columns)[:50]}.parquet"
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
    return open_table(Source("bank", path=path))


def every(n: int) -> np.ndarray:
    return np.arange(n)


def test_numbers_are_standardised_on_the_training_rows_alone(tmp_path):
    values = [1.0, 2.0, 3.0, 100.0]
    _, x = prepare(table(tmp_path, age=values), ["age"], every(4), 3, Settings())
    expected = StandardScaler().fit(np.array(values[:3])[:, None]).transform(np.array(values)[:, None])
    assert torch.equal(x, torch.from_numpy(expected).float())


def test_a_gap_is_filled_and_marked(tmp_path):
    _, x = prepare(table(tmp_path, age=[1.0, None, 3.0, 8.0]), ["age"], every(4), 4, Settings(scale="none"))
    assert x.tolist() == [[1, 0], [3, 1], [3, 0], [8, 0]]
    _, x = prepare(
        table(tmp_path, age=[1.0, None, 3.0, 8.0]), ["age"], every(4), 4, Settings(scale="none", impute="zero")
    )
    assert x.tolist()[1] == [0, 1]


def test_a_gap_that_training_never_saw_is_filled_too(tmp_path):
    _, x = prepare(table(tmp_path, age=[1.0, 3.0, 5.0, None]), ["age"], every(4), 3, Settings(scale="none"))
    assert x.tolist() == [[1], [3], [5], [3]]


def test_rare_and_unseen_categories_share_a_bucket(tmp_path):
    colours = ["red"] * 5 + ["blue"] * 4 + ["mauve", "ivory", None]
    columns = table(tmp_path, colour=colours)
    fitted, x = prepare(columns, ["colour"], every(12), 11, Settings(rare=0.2))
    assert x.shape == (12, 3)
    assert x.sum(1).tolist() == [1] * 12
    blue, red, rare = x[5], x[0], x[9]
    assert len({tuple(row.tolist()) for row in (blue, red, rare)}) == 3
    assert torch.equal(x[10], rare)
    assert torch.equal(x[11], rare)  # training never saw a missing one
    assert fitted.categories == ()


def test_without_a_bucket_what_training_never_saw_is_nothing(tmp_path):
    _, x = prepare(table(tmp_path, colour=["red", "blue", "green"]), ["colour"], every(3), 2, Settings(rare=0.0))
    assert x.tolist() == [[0, 1], [1, 0], [0, 0]]


def test_embedded_categories_are_codes_in_the_last_columns(tmp_path):
    columns = table(tmp_path, colour=["red", "blue", "red", "pink"], age=[1.0, 2.0, 4.0, 3.0], sex=["m", "f", "f", "m"])
    settings = Settings(categories="embedding", rare=0.0, scale="none")
    fitted, x = prepare(columns, ["colour", "age", "sex"], every(4), 3, settings)
    assert x.tolist() == [[1, 2, 2], [2, 1, 1], [4, 2, 1], [3, 0, 2]]  # code 0: training saw no pink
    assert fitted.categories == (3, 3)
    assert all(int(x[:, 1 + i].max()) < codes for i, codes in enumerate(fitted.categories))


def test_embedded_categories_with_a_bucket(tmp_path):
    colours = ["red"] * 4 + ["blue"] * 4 + ["mauve", "ivory"]
    fitted, x = prepare(table(tmp_path, c=colours), ["c"], every(10), 10, Settings(categories="embedding", rare=0.2))
    assert fitted.categories == (4,)  # blue, red, the bucket, and what training never saw
    assert x[8] == x[9]
    assert sorted(set(x[:, 0].tolist())) == [1, 2, 3]


def test_dates_have_a_year_a_season_and_a_weekday():
    start = np.datetime64("2024-01-01")  # a Monday
    parts = date_parts(np.array([start, start + 7, start + 1, np.datetime64("NaT")]))
    assert parts.shape == (4, 5)
    assert parts[0, 0] == pytest.approx(54, abs=0.01)
    assert parts[0, 3:].tolist() == pytest.approx(parts[1, 3:].tolist())
    assert parts[0, 3:].tolist() != pytest.approx(parts[2, 3:].tolist())
    assert np.isnan(parts[3]).all()
    year = date_parts(np.array([np.datetime64("2024-03-01"), np.datetime64("2025-03-01")]))
    assert np.allclose(year[0, 1:3], year[1, 1:3], atol=0.02)


def test_dates_from_a_table(tmp_path):
    days = [date(2020, 1, 1) + timedelta(days=30 * i) for i in range(9)]
    _, x = prepare(table(tmp_path, since=[*days, None]), ["since"], every(10), 8, Settings())
    assert x.shape == (10, 5)  # no gap in training, so none is marked
    assert torch.isfinite(x).all()
    assert x[:9, 0].diff().gt(0).all()


def test_rows_come_in_the_order_asked_for(tmp_path):
    columns = table(tmp_path, age=[1.0, 2.0, 3.0], sex=["m", "f", "m"])
    rows = np.array([2, 0, 1])
    fitted, x = prepare(columns, ["age", "sex"], rows, 3, Settings(scale="none", rare=0.0))
    assert x[:, 0].tolist() == [3, 1, 2]
    assert torch.equal(fitted.transform(columns, rows), x)
    assert torch.equal(fitted.transform(columns, np.array([1])), x[2:])


@pytest.mark.parametrize("categories", ["one-hot", "embedding"])
def test_it_is_saved_and_read_again_in_the_same_bits(tmp_path, categories):
    days = [date(2020, 1, 1) + timedelta(days=i) for i in range(6)]
    columns = table(tmp_path, age=[1.0, None, 3.0, 4.0, 5.0, 6.0], colour=list("aabbcd"), since=days)
    settings = Settings(categories=categories, rare=0.3)
    fitted, x = prepare(columns, ["age", "colour", "since"], every(6), 4, settings, torch.float64)
    fitted.save(tmp_path / "bank.preparation")
    again = Preparation.load(tmp_path / "bank.preparation")
    assert torch.equal(again.transform(columns, every(6), torch.float64), x)
    assert again.kinds == fitted.kinds
    assert again.categories == fitted.categories


numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)


@given(st.lists(numbers, min_size=2, max_size=20))
def test_what_was_learned_survives_a_file_in_the_same_bits(values):
    fitted = Number.fit(np.array(values), "mean", Standard)
    assert Number.model_validate_json(fitted.model_dump_json()) == fitted


@pytest.mark.parametrize(("settings", "most"), [({}, 60), ({"scale": "quantile"}, 1400)])
@pytest.mark.parametrize("rows", [600, 5000])
def test_a_file_is_small(tmp_path, rows, settings, most):
    """Bytes a column; `quantile`, which `init` writes, keeps at most 128 values of each, and their scores."""
    values = np.random.default_rng(0).normal(size=(rows, 20))
    columns = table(tmp_path, **{f"c{i}": column for i, column in enumerate(values.T)})
    fitted, _ = prepare(columns, columns.columns, every(rows), rows * 2 // 3, Settings(**settings))
    fitted.save(tmp_path / "x.preparation")
    assert (tmp_path / "x.preparation").stat().st_size < most * 20


def test_a_date_that_is_missing_is_marked_once(tmp_path):
    days = [date(2020, 1, 1), None, date(2020, 3, 1)]
    _, x = prepare(table(tmp_path, since=days), ["since"], every(3), 3, Settings())
    assert x.shape == (3, 6)


@pytest.mark.parametrize(
    ("kind", "trained", "scored"),
    [
        ("category", ["a1", "12", "a1", "12"], ["12", "12", "12", "12"]),
        ("category", ["1", "2", "x", "2"], [1, 2, 2, 2]),
        ("number", [1.0, 2.0, 3.0, 4.0], ["1", "2", "", "4"]),
        ("number", [1.0, 2.0, None, 4.0], [None, None, None, None]),
        ("1.234,5", ["1,5", "2", "1.250", "4"], ["1,5", "2", "1.250", "4"]),
        ("1.234,5", ["1,5", "2", "1.250", "4"], ["1.250", "2", "1.250", "2"]),
        ("d/m/y", ["31.1.2024", "1.2.2024", "3.4.2024", "5.6.2024"], ["1.2.2024"] * 4),
    ],
)
def test_a_column_is_read_as_it_was_in_training(tmp_path, kind, trained, scored):
    (tmp_path / "new").mkdir()
    fitted, x = prepare(table(tmp_path, c=trained), ["c"], every(4), 4, Settings())
    again = fitted.transform(table(tmp_path / "new", c=scored), every(4))
    assert fitted.kinds == {"c": kind}
    assert again.shape == x.shape
    for before, after, row in zip(trained, scored, range(4), strict=True):
        if str(before).removesuffix(".0") == str(after):
            assert torch.equal(x[row], again[row])


OTHERS = [b"", b"garbage", b"PK\x03\x04rubbish"]
INSIDE = [b"{}", b'{"kinds":{"a":"date"},"encoders":{}}', b'{"kinds":{},"encoders":{},"format":2}']


@pytest.mark.parametrize("content", OTHERS + [gzip.compress(text, mtime=0) for text in INSIDE])
def test_a_file_that_is_no_preparation(tmp_path, content):
    path = tmp_path / "x.preparation"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.preparation: not a preparation"):
        Preparation.load(path)
    with pytest.raises(DataError, match="not a preparation"):
        Preparation.load(tmp_path / "absent")


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path):
    path = tmp_path / "x.preparation"
    fitted, _ = prepare(table(tmp_path, age=[1.0, 2.0, 4.0]), ["age"], every(3), 3, Settings())
    fitted.save(path)
    whole = path.read_bytes()
    for at in range(10, len(whole)):  # the first ten bytes are gzip's header: a time and an operating system
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError, match="a damaged one"):
            Preparation.load(path)
        path.write_bytes(whole[:at])
        with pytest.raises(DataError, match="a damaged one"):
            Preparation.load(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3.0, 3.0, 3.0], "column 'x' is constant (3.0 in all 3 rows); add it to exclude"),
        (["DE", "DE", "DE"], "column 'x' is constant (DE in all 3 rows); add it to exclude"),
        ([None, None, None], "column 'x' has no value at all; add it to exclude"),
        ([date(2020, 1, 1)] * 3, "column 'x' is constant"),
    ],
)
def test_a_column_that_says_nothing_is_named(tmp_path, values, message):
    with pytest.raises(DataError) as caught:
        prepare(table(tmp_path, x=values), ["x"], every(3), 3, Settings())
    assert str(caught.value).startswith(f"bank: x.parquet: {message}")


def test_one_value_and_gaps_say_something(tmp_path):
    _, x = prepare(table(tmp_path, x=[1.0, None, 1.0]), ["x"], every(3), 3, Settings())
    assert x[0, 1] != x[1, 1]


@pytest.mark.parametrize(
    ("values", "loss", "classes", "numbers"),
    [
        (["no", "yes", "no"], Loss.BINARY, ("no", "yes"), [0, 1, 0]),
        ([1, 0, 1], Loss.BINARY, ("0", "1"), [1, 0, 1]),
        ([True, False, True], Loss.BINARY, ("0", "1"), [1, 0, 1]),
        ([10, 9, 2], Loss.MULTICLASS, ("2", "9", "10"), [2, 1, 0]),
        (["c", "a", "b"], Loss.MULTICLASS, ("a", "b", "c"), [2, 0, 1]),
        ([0.5, 1.5, 2.5], Loss.SQUARED, (), [0.5, 1.5, 2.5]),
    ],
)
def test_the_kind_of_label_is_found(tmp_path, values, loss, classes, numbers):
    label = read_label(table(tmp_path, y=values), "y")
    assert label.loss is loss
    assert label.classes == classes
    assert label.values.tolist() == numbers
    assert label.known.all()


def test_many_whole_numbers_are_a_quantity(tmp_path):
    assert read_label(table(tmp_path, y=list(range(21))), "y").loss is Loss.SQUARED
    label = read_label(table(tmp_path, y=list(range(21))), "y", loss=Loss.MULTICLASS)
    assert len(label.classes) == 21


def test_classes_are_compared_without_case_and_unknown_ones_are_no_label(tmp_path):
    values = ["yes", "Yes ", " YES", "no", "yes", "Unknown", "n/a", None, "no"]
    label = read_label(table(tmp_path, y=values), "y", positive="No")
    assert label.classes == ("yes", "no")
    assert label.counts == {"yes": 4, "no": 2}
    assert label.without == 3
    assert label.known.tolist() == [True] * 5 + [False] * 3 + [True]
    assert label.notes == (
        "bank: y.parquet: label 'y': 'YES' counts as 'yes'",
        "bank: y.parquet: label 'y': 'Yes' counts as 'yes'",
        "bank: y.parquet: label 'y': 1 rows with 'Unknown' are left out, as without a label; "
        'for a class of its own set types.y = "category"',
    )


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["Yes", "no", "YES", "yes", "Yes"], ("no", "Yes")),
        (["yes", "No", "no", "No"], ("No", "yes")),
        (["N", "y"], ("N", "y")),
        (["B", "a", "C"], ("a", "B", "C")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_classes_are_in_the_alphabets_order_whatever_their_case(tmp_path, values, classes):
    label = read_label(table(tmp_path, y=values), "y")
    assert label.classes == classes
    assert label.positive == (classes[1] if len(classes) == 2 else None)
    if label.positive:
        assert label.said == f"label 'y': {classes[1]!r} is the positive class, {classes[0]!r} the other"


def test_classes_keep_the_order_of_an_earlier_run(tmp_path):
    label = read_label(table(tmp_path, y=["Yes", None, "no"]), "y")
    assert (label.classes, label.values.tolist()) == (("no", "Yes"), [1, -1, 0])
    old = label.renumbered(["YES", "no"])
    assert (old.classes, old.values.tolist()) == (("Yes", "no"), [0, -1, 1])
    assert old.known.tolist() == label.known.tolist()
    assert label.renumbered(["maybe", "no"]) is label


def test_the_user_may_say_whether_a_label_is_a_class(tmp_path):
    path = tmp_path / "y.parquet"
    pq.write_table(
        pa.table({"y": [str(i % 60) for i in range(120)], "few": [1, 2, 3] * 40, "w": ["a", "A"] * 60}), path
    )
    told = {"y": Kind.CATEGORY, "few": Kind.NUMBER, "w": Kind.CATEGORY}
    with open_table(Source("bank", path=path, types=told)) as answers:
        assert len(read_label(answers, "y").classes) == 60
        assert read_label(answers, "few").loss is Loss.SQUARED
        assert read_label(answers, "w").classes == ("A", "a")


def test_the_user_may_say_what_is_positive_and_which_loss(tmp_path):
    answers = table(tmp_path, y=["alive", "dead", "alive"], n=[1, 2, 1])
    assert read_label(answers, "y", positive="alive").values.tolist() == [1, 0, 1]
    assert read_label(answers, "n", loss=Loss.SQUARED).values.tolist() == [1, 2, 1]
    with pytest.raises(DataError, match=r"label 'y' has no class 'ded'; did you mean 'dead'\?"):
        read_label(answers, "y", positive="ded")


def test_quantities_are_standardised_on_the_training_rows(tmp_path):
    label = read_label(table(tmp_path, y=[1.5, 3.5, 100.5]), "y")
    values, units = label.tensor(every(3), 2, torch.float64)
    assert values[:2].tolist() == [-1, 1]
    assert units == Units(2.5, 1.0)


def test_rows_without_a_label_are_known(tmp_path):
    assert read_label(table(tmp_path, y=["a", None, "b"]), "y").known.tolist() == [True, False, True]
    assert read_label(table(tmp_path, z=[1.0, None, 0.0]), "z").known.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("values", "loss", "message"),
    [
        (["a", "a"], None, "label 'y' has only 'a' in all rows; two classes are needed"),
        ([1, 1], None, "label 'y' has only '1' in all rows; two classes are needed"),
        ([None, None], None, "label 'y' has no value in all rows"),
        ([date(2020, 1, 1), date(2020, 1, 2)], None, "label 'y' is a date; it must be a class or a number"),
        (["a", "b"], Loss.SQUARED, "label 'y' is a category"),
        (["a", "b", "c"], Loss.BINARY, "label 'y' has 3 classes"),
        ([0.5, 0.7], Loss.BINARY, "label 'y' is a quantity, not a class"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(tmp_path, values, loss, message):
    with pytest.raises(DataError) as caught:
        read_label(table(tmp_path, y=values), "y", loss=loss)
    assert message in str(caught.value)
    assert str(caught.value).startswith("bank: y.parquet: ")
