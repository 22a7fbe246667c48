import gzip
from pathlib import Path

import pytest
import torch

from cvfl.data.sets.fetch import DATASETS
from cvfl.data.sets.mimic3 import load_mimic3
from cvfl.data.sets.mimic3_tables import TABLES
from cvfl.errors import DataError
from hospital import CHANNELS, OTHERS, Event, Stay, line, rows, write_benchmark, write_tables

SIGNS = (
    line(0.5, Heart_Rate="60.0", pH="7.3"),
    line(1.0, Heart_Rate="62.0"),
    line(30.25, Glascow_coma_scale_total="7"),
)
TRAIN = {"3_episode1_timeseries.csv": (SIGNS, 0), "8_episode2_timeseries.csv": ((line(2.5, Heart_Rate="90"),), 1)}
TEST = {"5_episode1_timeseries.csv": ((line(3.5, Glascow_coma_scale_eye_opening="None"),), 1)}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path, TRAIN, TEST) / "in-hospital-mortality"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return write_tables(tmp_path, *OTHERS)


def test_folders_of_the_benchmark_keep_their_split_and_order(made: Path) -> None:
    data = load_mimic3(made)
    assert [tuple(part.shape) for part in (*data.train, *data.test)] == [(2, 48, 19)] * 4 + [(1, 48, 19)] * 4
    assert data.train_labels.tolist() == [0, 1]
    assert data.test_labels.tolist() == [1]


def test_seed_and_share_do_not_touch_the_split_of_the_benchmark(made: Path) -> None:
    assert torch.equal(rows(made, seed=1), rows(made, seed=2))


def test_the_folder_or_the_one_above_it_will_do(made: Path) -> None:
    assert torch.equal(rows(made), rows(made.parent))


def test_a_listfile_may_have_more_columns(made: Path) -> None:
    before = rows(made)
    write_benchmark(made.parent, TRAIN, TEST, header="stay,period_length,y_true")
    assert torch.equal(rows(made), before)


def test_both_layouts_give_the_same_features(tmp_path: Path) -> None:
    events = (Event(0.5, 1, "60"), Event(2.25, 11, "7"), Event(2.25, 51, "200"), Event(5, 10, "To Pain"))
    events += (Event(7.5, 12, "Delayed"), Event(7.5, 8, "40"), Event(7.5, 2, "100.4"), Event(8.5, 5, "70.5"))
    tables = write_tables(tmp_path / "tables", Stay(100, events), *OTHERS)
    lines = (
        line(0.5, Heart_Rate="60.0"),
        line(2.25, Glascow_coma_scale_total="7.0", Glucose="200.0"),
        line(5.0, Glascow_coma_scale_eye_opening="To Pain"),
        line(7.5, Capillary_refill_rate="1.0", Fraction_inspired_oxygen="0.4", Temperature="38.0"),
        line(8.5, Weight="70.5"),
    )
    others = {f"{i}_episode1_timeseries.csv": ((line(1.5, Heart_Rate=rate),), i) for i, rate in ((0, "60"), (1, "100"))}
    made = write_benchmark(tmp_path / "made", {"7_episode1_timeseries.csv": (lines, 0)} | others, TEST)
    assert torch.allclose(rows(tables), rows(made), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train/8_episode2_timeseries.csv", f"Hours,{CHANNELS}\n1.5,2\n", "Expected 18 columns, got 2"),
        ("train/8_episode2_timeseries.csv", f"Hours,{CHANNELS}\n" + line(1, pH="acid") + "\n", "invalid value 'acid'"),
        (
            "test/5_episode1_timeseries.csv",
            f"Hours,{CHANNELS}\n" + line(1, Glascow_coma_scale_total="16"),
            "'16' is not a value of Glascow coma scale total",
        ),
        ("test/5_episode1_timeseries.csv", "Hours,Heart Rate\n1,80\n", "column Capillary refill rate is missing"),
        ("test/5_episode1_timeseries.csv", f"{CHANNELS},Hours\n", "its columns are not Hours, Capillary"),
        ("test/5_episode1_timeseries.csv", b"\x80\xff" * 40, "column Hours is missing"),
        ("test/listfile.csv", "stay\n5_episode1_timeseries.csv\n", "column y_true is missing"),
        ("test/listfile.csv", "stay,y_true\n5_episode1_timeseries.csv,2\n", "y_true is 2 for a stay, not 0 or 1"),
        ("test/listfile.csv", "stay,y_true\n5_episode1_timeseries.csv,1\n" * 2, "Failed to parse string: 'y_true'"),
        ("test/listfile.csv", "stay,y_true\na,1\na,1\n", "a is listed twice"),
        ("test/listfile.csv", b"", "Empty CSV file"),
    ],
)
def test_a_bad_file_of_the_benchmark_is_one_line_that_names_it(
    made: Path, name: str, content: str | bytes, said: str
) -> None:
    (made / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_mimic3(made)
    assert str(caught.value).startswith(f"{made / name}: ")
    assert said in str(caught.value)
    assert "make it again with mimic3-benchmarks" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["test/5_episode1_timeseries.csv", "train/listfile.csv"])
def test_an_absent_file_of_the_benchmark_is_named(made: Path, name: str) -> None:
    (made / name).unlink()
    with pytest.raises(DataError, match=rf"^{made / name}: .*No such file or directory"):
        load_mimic3(made)


def test_an_empty_folder_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_mimic3(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: put PATIENTS.csv.gz, ADMISSIONS.csv.gz, ICUSTAYS.csv.gz")
    assert "https://physionet.org/content/mimiciii/1.4/" in str(caught.value)
    assert "in-hospital-mortality" in str(caught.value)


@pytest.mark.parametrize("file", [f"{table}.csv.gz" for table in TABLES])
def test_an_absent_table_says_where_it_is_to_be_had(tables: Path, file: str) -> None:
    address = next(download.address for download in DATASETS["mimic3"].downloads if download.file == file)
    (tables / file.removesuffix(".gz")).unlink()
    with pytest.raises(DataError) as caught:
        load_mimic3(tables)
    assert str(caught.value).startswith(f"{tables / file}: no such file; get it from {address}, ")
    assert "https://physionet.org/content/mimiciii/1.4/" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "old", "new", "said"),
    [
        ("CHARTEVENTS", "VALUENUM", "NUMBER", "column VALUENUM is missing"),
        ("CHARTEVENTS", ",60,60,", ",60,sixty,", "invalid value 'sixty'"),
        ("CHARTEVENTS", "2150-03-01 11:30:00", "2150-03-01 11h30", "11h30"),
        ("LABEVENTS", ",90,90", ",90", "Expected 7 columns, got 6"),
        ("ICUSTAYS", "LOS", "LENGTH", "column LOS is missing"),
        ("ICUSTAYS", "3.5", "long", "invalid value 'long'"),
        ("ICUSTAYS", "3.5", "1.5", "no adult's only stay of 48 hours or more among 2 stays"),
        ("ICUSTAYS", ",901,", ",,", "a row has no ICUSTAY_ID"),
        ("PATIENTS", ",902,", ",77,", "no SUBJECT_ID 902, of which ICUSTAYS has a stay"),
        ("PATIENTS", ",F,", ",F,born ", "born 20"),
        ("ADMISSIONS", ",9010,", ",77,", "no HADM_ID 9010, of which ICUSTAYS has a stay"),
        ("ADMISSIONS", ",1\n", ",3\n", "HOSPITAL_EXPIRE_FLAG is 3.0, not 0 or 1"),
        ("D_ITEMS", "chartevents", "elsewhere", "no item has a label such as 'capillary refill'"),
        ("D_LABITEMS", "LABEL", "NAME", "column LABEL is missing"),
    ],
)
def test_a_bad_table_is_one_line_that_names_it(tables: Path, table: str, old: str, new: str, said: str) -> None:
    file = tables / f"{table}.csv"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_mimic3(tables)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("table", ["ICUSTAYS", "CHARTEVENTS"])
@pytest.mark.parametrize("damage", ["truncated", "not gzip", "empty"])
def test_a_damaged_archive_is_one_line_that_names_it(tables: Path, table: str, damage: str) -> None:
    text = (tables / f"{table}.csv").read_bytes()
    (tables / f"{table}.csv").unlink()
    whole = gzip.compress(text)
    damaged = {"truncated": whole[: len(whole) - 12], "not gzip": text, "empty": b""}[damage]
    (tables / f"{table}.csv.gz").write_bytes(damaged)
    with pytest.raises(DataError) as caught:
        load_mimic3(tables)
    assert str(caught.value).startswith(f"{tables / table}.csv.gz: ")
    assert "\n" not in str(caught.value)


def test_tables_without_any_measurement_are_refused(tmp_path: Path) -> None:
    write_tables(tmp_path, Stay(100, ()), Stay(101, (), died=1))
    with pytest.raises(DataError, match="no measurement of any of 2 stays"):
        load_mimic3(tmp_path)
