import csv
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cvfl.data.sets import mimic3_tables
from cvfl.data.sets.mimic3 import load_mimic3
from cvfl.errors import DataError
from hospital import OTHERS, Event, Stay, rows, write_tables

# Places among the 76 features, as the public benchmark orders them.
REFILL, FIO2, EYE, TOTAL, GLUCOSE, RATE = 0, 3, 4, 24, 49, 50
HEIGHT, SATURATION, TEMPERATURE, WEIGHT, RATE_MASK, GLUCOSE_MASK = 51, 53, 56, 57, 59 + 8, 59 + 7


def one(path: Path, *events: Event) -> Tensor:
    """48 x 76: a stay with these events."""
    return rows(write_tables(path, Stay(100, events), *OTHERS))[0]


def test_four_parties_hold_19_consecutive_features_of_48_hours_each(tmp_path: Path) -> None:
    data = load_mimic3(write_tables(tmp_path, *(Stay(i, died=i % 2) for i in range(100, 140))))
    assert data.names == ("party1", "party2", "party3", "party4")
    assert {tuple(part.shape[1:]) for part in (*data.train, *data.test)} == {(48, 19)}
    assert len(data.train_labels) + len(data.test_labels) == 40
    assert len(data.test_labels) > 0
    assert data.train_labels.dtype == torch.float32


@pytest.mark.parametrize("parties", [1, 3, 8, 76])
def test_another_number_of_parties_shares_the_features_evenly_and_in_order(tmp_path: Path, parties: int) -> None:
    write_tables(tmp_path, *OTHERS)
    data = load_mimic3(tmp_path, parties=parties, test_share=0.0)
    widths = [part.shape[2] for part in data.train]
    assert max(widths) - min(widths) <= 1
    assert torch.equal(rows(tmp_path, parties=parties), rows(tmp_path))


@pytest.mark.parametrize("parties", [0, 77])
def test_more_parties_than_features_are_refused(tmp_path: Path, parties: int) -> None:
    with pytest.raises(DataError, match=f"76 features cannot be divided among {parties} parties"):
        load_mimic3(tmp_path, parties=parties)


def test_values_are_kept_until_the_next_and_start_at_normal(tmp_path: Path) -> None:
    stay = one(tmp_path, Event(2.5, 1, "120"), Event(2.2, 1, "50"), Event(6, 1, "86"))
    rate, mask = stay[:, RATE], stay[:, RATE_MASK]
    assert mask.nonzero().flatten().tolist() == [2, 5]
    assert len(rate[2:5].unique()) == 1
    assert rate[0] == rate[1] == rate[5] == rate[47]  # 86 is the normal rate
    assert rate[2] > rate[5]


def test_numbers_are_standardised_over_training_rows(tmp_path: Path) -> None:
    rate = rows(write_tables(tmp_path, *OTHERS))[..., RATE]
    assert float(rate.mean()) == pytest.approx(0, abs=1e-5)
    assert float(rate.std(correction=0)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("place", "one_way", "other_way"),
    [
        (TEMPERATURE, Event(1.5, 2, "100.4"), Event(1.5, 3, "38")),
        (WEIGHT, Event(1.5, 4, "154.3236"), Event(1.5, 5, "70")),
        (HEIGHT, Event(1.5, 6, "70"), Event(1.5, 7, "177.8")),
        (FIO2, Event(1.5, 8, "40"), Event(1.5, 8, "0.4")),
        (SATURATION, Event(1.5, 9, "0.95"), Event(1.5, 9, "95")),
    ],
)
def test_units_are_converted(tmp_path: Path, place: int, one_way: Event, other_way: Event) -> None:
    table = rows(write_tables(tmp_path, Stay(100, (one_way,)), Stay(101, (other_way,)), *OTHERS))
    assert torch.allclose(table[0], table[1], atol=1e-4)
    assert table[0, 0, place] != table[0, 1, place]


def test_categories_are_one_hot_in_the_order_of_the_benchmark(tmp_path: Path) -> None:
    stay = one(tmp_path, Event(1.5, 10, "To Speech"), Event(1.5, 11, "3"), Event(1.5, 12, "Delayed"))
    for first, count in ((REFILL, 2), (EYE, 8), (12, 12), (TOTAL, 13), (37, 12)):
        assert torch.equal(stay[:, first : first + count].sum(1), torch.ones(48))
    assert [int(stay[hour, EYE : EYE + 8].argmax()) for hour in (0, 1)] == [3, 5]  # 4 Spontaneously, To Speech
    assert [int(stay[hour, TOTAL : TOTAL + 13].argmax()) for hour in (0, 1)] == [4, 6]  # 15, 3
    assert [int(stay[hour, REFILL : REFILL + 2].argmax()) for hour in (0, 1)] == [0, 1]


def test_eyes_that_open_to_nothing_are_known_by_word_or_by_score(tmp_path: Path) -> None:
    said, unsaid = Event(1.5, 10, "None", "1"), Event(1.5, 10, "", "1.0")
    table = rows(write_tables(tmp_path, Stay(100, (said,)), Stay(101, (unsaid,)), *OTHERS))
    assert torch.equal(table[0], table[1])
    assert int(table[0, 1, EYE : EYE + 8].argmax()) == 4


@pytest.mark.parametrize(
    "event",
    [
        Event(2.5, 1, "70", error="1"),
        Event(2.5, 1, "70", error="1.0"),
        Event(2.5, 1, "9000"),
        Event(2.5, 1, "see note"),
        Event(-0.5, 1, "70"),
        Event(48.5, 1, "70"),
        Event(2.5, 10, "Sometimes"),
        Event(2.5, 13, "70"),
        Event(2.5, 14, "70"),
        Event(2.5, 52, "300"),
    ],
    ids=repr,
)
def test_what_is_no_measurement_changes_nothing(tmp_path: Path, event: Event) -> None:
    before, known = Event(0.5, 1, "80"), Event(2.5, 1, "70")
    plain = one(tmp_path, before)
    assert torch.equal(one(tmp_path / "with", before, event), plain)
    assert not torch.equal(one(tmp_path / "with", before, known), plain)


def test_laboratory_values_of_blood_count_whatever_its_case(tmp_path: Path) -> None:
    stay = one(tmp_path, Event(3.5, 51, "200"), Event(3.5, 53, "7.2"))
    assert stay[:, GLUCOSE_MASK].nonzero().flatten().tolist() == [3]
    assert stay[:, 75].nonzero().flatten().tolist() == [3]
    assert stay[3, GLUCOSE] > stay[2, GLUCOSE]


@pytest.mark.parametrize(
    ("stay", "belongs"),
    [
        (Stay(100), True),
        (Stay(100, age=18.1), True),
        (Stay(100, age=17.9), False),
        (Stay(100, age=300), True),  # how the publisher hides ages above 89
        (Stay(100, los="2.0"), True),
        (Stay(100, los="1.99"), False),
        (Stay(100, los=""), False),
        (Stay(100, ward=(7, 8)), False),
        (Stay(100, unit=("MICU", "SICU")), False),
        (Stay(100, admission=9010), False),  # that of stay 901
        (Stay(100, events=()), False),
        (Stay(100, events=(Event(50, 1, "80"),)), False),
    ],
    ids=repr,
)
def test_who_belongs_to_the_task(tmp_path: Path, stay: Stay, belongs: bool) -> None:
    others = (*OTHERS, Stay(903), Stay(904, died=1))
    shared = stay.admission == 9010
    table = rows(write_tables(tmp_path, replace(stay, subject=901 if shared else 0), *others))
    assert len(table) == len(others) + belongs - shared


def test_upper_or_lower_case_compressed_or_not_is_the_same(tmp_path: Path) -> None:
    stays = (Stay(100, (Event(1.5, 10, "To Pain"), Event(2.5, 51, "300"))), *OTHERS)
    release = rows(write_tables(tmp_path / "release", *stays, compressed=True))
    demo = rows(write_tables(tmp_path / "demo", *stays, lower=True, iso=True))
    assert torch.equal(release, demo)


def test_batches_of_the_stream_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tuple(Event(hour / 7, 1 + hour % 3, str(50 + hour % 40)) for hour in range(300))
    write_tables(tmp_path, Stay(100, events), *OTHERS)
    whole, steps = rows(tmp_path), []
    monkeypatch.setattr(mimic3_tables, "_BLOCK", 2000)
    assert torch.equal(rows(tmp_path, on_progress=lambda done, total: steps.append((done, total))), whole)
    total = sum((tmp_path / name).stat().st_size for name in ("CHARTEVENTS.csv", "LABEVENTS.csv"))
    assert len(steps) > 5
    assert steps == sorted(steps)
    assert steps[-1] == (total, total)


def test_a_patient_is_never_on_both_sides(tmp_path: Path) -> None:
    def stays(order: int) -> list[Stay]:
        # Patient p was there p % 3 + 1 times; a rate tells them apart.
        visits = [(p, v) for p in range(30) for v in range(p % 3 + 1)]
        return [
            Stay(1000 + 10 * p + v, (Event(1, 1, str(50 + p)),), died=p % 2, subject=100 + p)
            for p, v in visits[::order]
        ]

    forth, back = write_tables(tmp_path / "forth", *stays(1)), write_tables(tmp_path / "back", *stays(-1))
    sides = []
    for seed in range(3):
        data = load_mimic3(forth, parties=1, seed=seed, test_share=0.4)
        held = [set(part[torch.arange(len(part))][:, 0, RATE].tolist()) for part in (data.train[0], data.test[0])]
        assert len(held[0]) + len(held[1]) == 30
        again = load_mimic3(back, parties=1, seed=seed, test_share=0.4)
        assert torch.equal(data.test[0][torch.arange(5)], again.test[0][torch.arange(5)])
        sides.append(len(data.test_labels))
    assert min(sides) > 0
    assert len(set(sides)) > 1


@pytest.fixture(scope="module")
def demo() -> Path:
    folder = Path(os.environ.get("CVFL_DATA", "")) / "mimic3_demo"
    if "CVFL_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("CVFL_DATA names no folder with mimic3_demo")
    return folder


def test_the_published_demo_is_read_from_end_to_end(demo: Path) -> None:
    data = load_mimic3(demo)
    assert len(data.train_labels) + len(data.test_labels) == 57
    assert int(data.train_labels.sum() + data.test_labels.sum()) == 17
    assert [tuple(part.shape[1:]) for part in data.train] == [(48, 19)] * 4
    masks = rows(demo)[..., 59:]
    assert (masks.amax((0, 1)) == 1).all()  # each of the 17 channels was measured in someone


def test_a_slow_reader_finds_the_same_heart_rates_in_the_demo(demo: Path) -> None:
    stays = mimic3_tables.read_stays(demo)
    stay = stays[7]
    with (demo / "D_ITEMS.csv").open(encoding="utf-8") as file:
        items = {row["itemid"] for row in csv.DictReader(file) if row["label"] == "Heart Rate"}
    last: dict[int, tuple[float, float]] = {}
    with (demo / "CHARTEVENTS.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["hadm_id"] == str(stay.admission) and row["itemid"] in items and row["valuenum"]:
                at = datetime.fromisoformat(row["charttime"]).timestamp() - stay.start
                if 0 < at <= 48 * 3600 and row["error"] != "1.0":
                    hour = -(-int(at) // 3600) - 1
                    last[hour] = max(last.get(hour, (0.0, 0.0)), (at, float(row["valuenum"])))
    table = rows(demo)[7]
    hours = table[:, RATE_MASK].nonzero().flatten().tolist()
    assert hours == sorted(last)
    found, expected = table[hours, RATE], torch.tensor([last[hour][1] for hour in hours])
    # Standardised alike in every hour: the two differ by a scale and a shift only.
    assert float(torch.corrcoef(torch.stack([found, expected]))[0, 1]) == pytest.approx(1, abs=1e-5)
