import os
import shutil
from pathlib import Path

import pytest
import torch

from cvfl.config.files import parse_config
from cvfl.data import VerticalData
from cvfl.data.sets.fetch import DATASETS
from cvfl.data.sets.physionet2012 import load_physionet2012
from cvfl.errors import DataError
from cvfl.federation.train import train
from publishers import PHYSIONET_DESCRIPTORS, SET_A, physionet_outcomes, physionet_record, write_physionet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_physionet(tmp_path / "challenge")


def feature(data: VerticalData, party: str, place: int, row: int = 0) -> list[float]:
    values: list[float] = data.train[data.names.index(party)][torch.tensor([row])][0, :, place].tolist()
    return values


def test_four_organisations_hold_19_features_of_48_hours_each(folder: Path) -> None:
    data = load_physionet2012(folder)
    assert data.names == ("monitor", "chemistry", "haematology", "ward")
    assert [tuple(part.shape) for part in data.train] == [(4, 48, 19)] * 4
    assert [tuple(part.shape) for part in data.test] == [(2, 48, 19)] * 4
    assert data.train_labels.tolist() == [0, 1, 0, 1]
    assert data.test_labels.tolist() == [1, 0]
    assert data.train_labels.dtype == data.train[0][torch.tensor([0])].dtype == torch.float32


def test_a_value_is_kept_until_the_next_and_its_mask_says_when_it_was_measured(folder: Path) -> None:
    data = load_physionet2012(folder)
    rate, mask = feature(data, "monitor", 0), feature(data, "monitor", 1)
    assert rate[0] == 0  # the mean, before the first measurement
    assert len(set(rate[1:4])) == 1
    assert len(set(rate[4:])) == 1
    assert rate[3] < rate[4]
    assert [hour for hour, known in enumerate(mask) if known] == [1, 4]


def test_series_are_standardised_on_the_measured_training_values(folder: Path) -> None:
    rates = torch.tensor([60.0, 80.0, 110.0, 90.0, 70.0])  # the last of every hour
    first = feature(load_physionet2012(folder), "monitor", 0)[1]
    assert first == pytest.approx(float((60 - rates.mean()) / rates.std(correction=0)), abs=1e-5)


def test_test_records_do_not_change_what_training_sees(folder: Path, tmp_path: Path) -> None:
    other = write_physionet(tmp_path / "other", set_b={201: ("04:15,HR,20", "05:15,Urine,900"), 202: ()})
    for one, two in zip(load_physionet2012(folder).train, load_physionet2012(other).train, strict=True):
        assert torch.equal(one[torch.arange(4)], two[torch.arange(4)])


@pytest.mark.parametrize(
    ("line", "party", "changed"),
    [("09:00,HR,75", "monitor", 2), ("09:00,TroponinT,0.3", "haematology", 2), ("09:00,MechVent,1", "ward", 1)],
)
def test_a_series_and_its_mask_are_at_one_party(tmp_path: Path, line: str, party: str, changed: int) -> None:
    known = (*SET_A[104], "08:00,TroponinT,0.1")
    before = load_physionet2012(write_physionet(tmp_path / "one", set_b={201: known, 202: ()}))
    after = load_physionet2012(write_physionet(tmp_path / "two", set_b={201: (*known, line), 202: ()}))
    for name, one, two in zip(before.names, before.test, after.test, strict=True):
        rows = torch.arange(2)
        places = int((one[rows] != two[rows]).any(0).any(0).sum())
        # A series that no training record has is not standardised, but never lost.
        assert places == (changed if name == party else 0)


def test_an_implausible_value_is_no_measurement(folder: Path) -> None:
    data = load_physionet2012(folder)
    assert sum(feature(data, "ward", 15, row=0)) == 1
    assert sum(feature(data, "ward", 15, row=1)) == 0  # a pH of 735


def test_a_record_without_measurements_is_kept_at_the_mean(folder: Path) -> None:
    data = load_physionet2012(folder)
    assert feature(data, "monitor", 0, row=2) == [0.0] * 48
    assert feature(data, "monitor", 1, row=2) == [0.0] * 48


def test_an_unknown_descriptor_is_the_mean_and_a_known_one_is_not(folder: Path) -> None:
    for number, age in ((101, 50), (102, 90), (103, -1)):
        descriptors = (f"00:00,Age,{age}", *PHYSIONET_DESCRIPTORS[1:])
        (folder / f"set-a/{number}.txt").write_text(
            physionet_record(number, SET_A[number], descriptors), encoding="utf-8"
        )
    data = load_physionet2012(folder)
    ages = [feature(data, "chemistry", 18, row)[0] for row in range(4)]
    assert ages[0] < 0 < ages[1]
    assert ages[2] == 0
    assert feature(data, "chemistry", 18) == [ages[0]] * 48


@pytest.mark.parametrize("parties", [1, 2, 3, 7, 8, 40])
def test_another_number_of_parties_shares_all_features_evenly(folder: Path, parties: int) -> None:
    data = load_physionet2012(folder, parties=parties)
    widths = [part.shape[2] for part in data.train]
    assert len(data.names) == parties
    assert sum(widths) == 76
    assert max(widths) - min(widths) <= 3


@pytest.mark.parametrize("parties", [0, 41])
def test_more_parties_than_series_are_refused(folder: Path, parties: int) -> None:
    with pytest.raises(DataError, match=f"cannot be divided among {parties} parties"):
        load_physionet2012(folder, parties=parties)


def test_the_same_files_give_the_same_bits_in_any_precision(folder: Path) -> None:
    one, two, double = (
        load_physionet2012(folder, dtype=dtype) for dtype in (torch.float32, torch.float32, torch.float64)
    )
    rows = torch.arange(4)
    for first, second, wide in zip(one.train, two.train, double.train, strict=True):
        assert torch.equal(first[rows], second[rows])
        assert torch.equal(first[rows].double(), wide[rows])


def test_progress_ends_when_all_is_read(folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    load_physionet2012(folder, on_progress=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("set-a/101.txt", physionet_record(101, ("07:00,HR",)), "Expected 3 columns, got 2"),
        ("set-a/101.txt", physionet_record(101, ("07:00,HR,abc",)), "invalid value 'abc'"),
        ("set-a/101.txt", physionet_record(101, ("07:0x,HR,80",)), "'07:0x' is not a time such as 07:30"),
        (
            "set-a/101.txt",
            physionet_record(101, ("07:00,Lactat,2",)),
            "unknown parameter 'Lactat'; did you mean 'Lactate'?",
        ),
        ("set-a/101.txt", physionet_record(101, ("07:00,RecordID,7",)), "2 lines with a RecordID"),
        ("set-a/101.txt", physionet_record(102, ()), "does not start with Time,Parameter,Value and 00:00,RecordID,101"),
        ("set-a/101.txt", b"", "does not start with"),
        ("set-b/202.txt", b"\x80\x81\xff\x00" * 50, "does not start with"),
        ("set-b/202.txt", physionet_record(202, ()).encode() + b"07:00,\xff\xfe,2\n", "invalid UTF8"),
        ("set-a/notes.txt", "read me", "does not start with"),
        ("Outcomes-a.txt", physionet_outcomes({101: 0, 102: 1, 104: 1}), "record 103 has no outcome (1 in all)"),
        ("Outcomes-b.txt", physionet_outcomes({201: 0, 202: 1, 203: 1}), "there is no record 203"),
        ("Outcomes-a.txt", physionet_outcomes(dict.fromkeys(SET_A, 0)), "In-hospital_death is 0 for all 4 records"),
        ("Outcomes-b.txt", physionet_outcomes({201: 0, 202: -1}), "In-hospital_death is -1"),
        ("Outcomes-b.txt", "RecordID,Survival\n201,0\n202,1\n", "column In-hospital_death is missing"),
        ("Outcomes-b.txt", "RecordID,In-hospital_death\n201\n", "Expected 2 columns, got 1"),
        ("Outcomes-b.txt", "RecordID,In-hospital_death\n201,yes\n", "Failed to parse string: 'yes'"),
        ("Outcomes-b.txt", b"", "Empty CSV file"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(folder: Path, name: str, content: str | bytes, said: str) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_physionet2012(folder)
    assert str(caught.value).startswith(f"{folder / name}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "file"), [("set-b", "set-b.tar.gz"), ("Outcomes-b.txt", "Outcomes-b.txt")])
def test_an_absent_file_says_where_it_is_to_be_had(folder: Path, name: str, file: str) -> None:
    place = folder / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    address = next(listed.address for listed in DATASETS["physionet2012"].downloads if listed.file == file)
    with pytest.raises(DataError) as caught:
        load_physionet2012(folder)
    assert str(caught.value).startswith(f"{place}: ")
    assert f"get {file} from {address} (see https://physionet.org/content/challenge-2012/1.0.0/)" in str(caught.value)


@pytest.fixture(scope="module")
def real() -> VerticalData:
    folder = Path(os.environ.get("CVFL_DATA", "")) / "physionet2012"
    if "CVFL_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("CVFL_DATA names no folder with physionet2012")
    return load_physionet2012(folder)


def test_the_published_sets_are_read_whole(real: VerticalData) -> None:
    assert [tuple(part.shape) for part in (*real.train, *real.test)] == [(4000, 48, 19)] * 8
    assert int(real.train_labels.sum()) == 554
    assert int(real.test_labels.sum()) == 568


@pytest.mark.slow
def test_four_parties_learn_to_foresee_death(real: VerticalData) -> None:
    config = parse_config(
        {
            "data": {"name": "physionet2012"},
            "epochs": 5,
            "batch_size": 128,
            "local_iterations": 5,
            "compressor": "identity",
            "server_compressor": "identity",
            "step_size": {"eta": 0.03},
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "party_model": {"name": "lstm", "width": 16},
        }
    )
    assert train(config, real).summary["metrics"]["test"]["roc_auc"] >= 0.82
