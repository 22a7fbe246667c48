"""Ids as they come: several columns, repeated rows, blanks and letters in two forms."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cvfl.config.files import load_config
from cvfl.data.tables.ids import BETWEEN, check_case, read_ids
from cvfl.data.tables.sources import Source, open_table
from cvfl.data.tables.table import Table
from cvfl.errors import ConfigError, DataError
from cvfl.federation.rows.load import load_data


@pytest.fixture
def from_csv(tmp_path: Path) -> Callable[[str], Table]:
    def made(text: str) -> Table:
        (tmp_path / "bank.csv").write_text(text, encoding="utf-8")
        return open_table(Source("bank", path=tmp_path / "bank.csv"))

    return made


REPEATED = "ID,x\na,1\nb,2\na,3\nc,4\na,5\nb,6\n"


@pytest.mark.parametrize(
    ("duplicates", "rows"), [("first", {"a": 0, "b": 1, "c": 3}), ("last", {"a": 4, "b": 5, "c": 3})]
)
def test_of_rows_with_one_id_one_counts(duplicates, rows, from_csv):
    found = read_ids(from_csv(REPEATED), ["ID"], duplicates=duplicates)
    assert found.rows == rows
    assert found.notes == (f"bank: bank.csv: 3 rows are left out, whose id another row has: the {duplicates} counts",)


def test_repeated_ids_are_refused_by_their_rows(from_csv):
    with pytest.raises(DataError, match=r'2 of 3 ids in column .ID. .*rows 1 and 3.*duplicates = "first" or "last"'):
        read_ids(from_csv(REPEATED), ["ID"])


def test_rows_that_cannot_be_used_are_no_duplicates(from_csv):
    """The first row of an id has no label: then the next one counts."""
    usable = np.array([False, True, True, True, False, False])
    assert read_ids(from_csv(REPEATED), ["ID"], usable=usable).rows == {"a": 2, "b": 1, "c": 3}
    assert read_ids(from_csv(REPEATED), ["ID"], duplicates="first", usable=usable).notes == ()


def test_integers_that_are_the_same_are_duplicates(from_csv):
    table = from_csv("ID,x\n007,1\n7,2\n08,3\n")
    assert read_ids(table, ["ID"], id_type="integer", duplicates="last").rows == {"7": 1, "8": 2}
    with pytest.raises(DataError, match="rows 1 and 2"):
        read_ids(table, ["ID"], id_type="integer")
    assert len(read_ids(table, ["ID"]).rows) == 3


def test_several_columns_name_a_person_together(from_csv):
    table = from_csv("name,birth,x\nAnn,1980-01-02,1\nAnn,1981-01-02,2\nBob,1980-01-02,3\n")
    found = read_ids(table, ["name", "birth"])
    assert list(found.rows) == [
        f"{name}{BETWEEN}{birth}"
        for name, birth in (("Ann", "1980-01-02"), ("Ann", "1981-01-02"), ("Bob", "1980-01-02"))
    ]
    with pytest.raises(DataError, match="1 of 2 ids in column 'name'"):
        read_ids(table, ["name"])
    assert found.rows.keys().isdisjoint(read_ids(table, ["birth", "name"], duplicates="first").rows)


def test_columns_do_not_run_into_each_other(from_csv):
    assert len(read_ids(from_csv("a,b,x\n1,23,0\n12,3,0\n"), ["a", "b"]).rows) == 2
    with pytest.raises(DataError, match="column 'a' has a control character in row 2"):
        read_ids(from_csv(f"a,b,x\n1,2,0\n1{BETWEEN}2,3,0\n"), ["a", "b"])


def test_a_gap_in_any_column_is_named(from_csv):
    with pytest.raises(DataError, match="1 of 2 rows have no id in column 'b'"):
        read_ids(from_csv("a,b,x\n1,,0\n1,2,0\n"), ["a", "b"])


def test_what_is_changed_is_noted_without_any_id(from_csv):
    table = from_csv("ID,x\n Rene\u0301 ,1\nRen\u00e9e,2\n\u00a0b\u00a0,3\n")
    found = read_ids(table, ["ID"])
    assert list(found.rows) == ["Ren\u00e9", "Ren\u00e9e", "b"]
    (note,) = found.notes
    assert note.startswith("bank: bank.csv: 2 of 3 values of column 'ID' are compared without blanks around them")
    assert "Ren" not in note
    assert read_ids(from_csv("ID,x\na,1\nb,2\n"), ["ID"]).notes == ()


CONFIG = """
epochs = 1
batch_size = 8
[data]
id = ["name", "birth"]
[step_size]
eta = 0.05
[party.bank]
table = "bank.csv"
label = "y"
duplicates = "first"
[party.shop]
table = "shop.csv"
id = ["nom", "né"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    people = [(f"n{i % 10}", f"19{50 + i}-01-01") for i in range(40)]
    bank = [f"{name},{birth},{i},{i % 2}" for i, (name, birth) in enumerate(people)]
    shop = [f"{name} ,{birth},{i * i}" for i, (name, birth) in reversed(list(enumerate(people)))]
    (tmp_path / "bank.csv").write_text("\n".join(["name,birth,x,y", *bank, bank[3]]) + "\n", encoding="utf-8")
    (tmp_path / "shop.csv").write_text("\n".join(["nom,né,z", *shop[:30]]) + "\n", encoding="utf-8")
    (tmp_path / "fed.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def test_a_federation_with_an_id_of_two_columns(folder):
    loaded = load_data(load_config(folder / "fed.toml"))
    assert loaded.aligned.common == 30
    assert [data.shape[1] for data in loaded.data.train] == [1, 1]  # neither name nor birth is a feature
    assert [note.partition(":")[0] for note in loaded.notes] == ["bank", "shop"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('party.shop.id="nom"', r"party.shop.id has 1 columns, data.id 2"),
        ('party.bank.id_type="integer"', r"party.bank.id_type = 'integer' is for an id of one column, not of 2"),
        ('party.bank.duplicates="any"', "duplicates"),
    ],
)
def test_what_does_not_go_together_is_refused(change, said, folder):
    with pytest.raises(ConfigError, match=said):
        load_config(folder / "fed.toml", [change])


def test_ids_that_differ_in_case_only(from_csv):
    table = from_csv("ID,x\nAb,1\ncd,2\n")
    assert list(read_ids(table, ["ID"], id_type="caseless").rows) == ["ab", "cd"]
    check_case({"a": ["x", "y"], "b": ["x"]})
    check_case({"a": ["x", "y"], "b": ["z"]})
    with pytest.raises(DataError) as caught:
        check_case({"a": ["X", "y"], "b": ["x", "Y"]})
    assert str(caught.value) == (
        "the parties share no id, but 2 of them differ in upper and lower case only; "
        'set id_type = "caseless" for a and b'
    )
