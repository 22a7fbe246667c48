"""Small hospitals in the layouts of MIMIC-III: its tables as published, and folders as mimic3-benchmarks makes them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import torch
from torch import Tensor

from cvfl.data.sets.mimic3 import load_mimic3

START = datetime(2150, 3, 1, 10)
# The numbers are the tests' own: items are to be found by their labels.
ITEMS = {
    1: ("Heart Rate", "chartevents"),
    2: ("Temperature F", "chartevents"),
    3: ("TEMPERATURE  Celsius", "chartevents"),
    4: ("Admission Weight (lbs.)", "chartevents"),
    5: ("Daily Weight", "chartevents"),
    6: ("Height", "chartevents"),
    7: ("Height (cm)", "chartevents"),
    8: ("Inspired O2 Fraction", "chartevents"),
    9: ("SpO2", "chartevents"),
    10: ("GCS - Eye Opening", "chartevents"),
    11: ("GCS Total", "chartevents"),
    12: ("Capillary Refill", "chartevents"),
    13: ("Heart Rate", "inputevents_cv"),
    14: ("Heart Rate Alarm - Low", "chartevents"),
}
LAB_ITEMS = {51: ("Glucose", "Blood"), 52: ("Glucose", "Urine"), 53: ("pH", "BLOOD")}
CHANNELS = (
    "Capillary refill rate,Diastolic blood pressure,Fraction inspired oxygen,Glascow coma scale eye opening,"
    "Glascow coma scale motor response,Glascow coma scale total,Glascow coma scale verbal response,Glucose,Heart Rate,"
    "Height,Mean blood pressure,Oxygen saturation,Respiratory rate,Systolic blood pressure,Temperature,Weight,pH"
)


@dataclass(frozen=True)
class Event:
    hours: float
    item: int
    value: str
    number: str | None = None
    error: str = ""


@dataclass(frozen=True)
class Stay:
    id: int
    events: tuple[Event, ...] = (Event(0.5, 1, "80"),)
    died: int = 0
    subject: int = 0
    admission: int = 0
    age: float = 60
    los: str = "3.5"
    ward: tuple[int, int] = (7, 7)
    unit: tuple[str, str] = ("MICU", "MICU")


OTHERS = (Stay(901, (Event(1.5, 1, "60"),)), Stay(902, (Event(1.5, 1, "100"),), died=1))


def _write_table(
    path: Path, name: str, header: str, rows: Iterable[Sequence[object]], compressed: bool = False
) -> None:
    text = "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"
    if compressed:
        (path / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (path / f"{name}.csv").write_text(text, encoding="utf-8")


def write_tables(path: Path, *stays: Stay, lower: bool = False, compressed: bool = False, iso: bool = False) -> Path:
    path.mkdir(exist_ok=True)
    stays = tuple(
        replace(stay, subject=stay.subject or stay.id, admission=stay.admission or stay.id * 10) for stay in stays
    )

    def time(hours: float) -> str:
        return (START + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ" if iso else "%Y-%m-%d %H:%M:%S")

    def table(name: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
        header = f"ROW_ID,{columns}".lower() if lower else f"ROW_ID,{columns}"
        _write_table(path, name, header, ((place, *row) for place, row in enumerate(rows)), compressed)

    events = [(stay, event, time(event.hours)) for stay in stays for event in stay.events]
    numbers = {event: event.number if event.number is not None else event.value for _, event, _ in events}
    numbers = {event: number if number.replace(".", "").isdigit() else "" for event, number in numbers.items()}
    born = {stay.subject: time(-stay.age * 365.25 * 24) for stay in stays}
    table("PATIENTS", "SUBJECT_ID,GENDER,DOB,DOD", ((subject, "F", dob, "") for subject, dob in born.items()))
    died = {stay.admission: (stay.subject, stay.died) for stay in stays}
    table(
        "ADMISSIONS",
        "SUBJECT_ID,HADM_ID,DIAGNOSIS,HOSPITAL_EXPIRE_FLAG",
        ((subject, admission, '"SEPSIS, ""severe"""', flag) for admission, (subject, flag) in died.items()),
    )
    table(
        "ICUSTAYS",
        "SUBJECT_ID,HADM_ID,ICUSTAY_ID,FIRST_CAREUNIT,LAST_CAREUNIT,FIRST_WARDID,LAST_WARDID,INTIME,OUTTIME,LOS",
        ((s.subject, s.admission, s.id, *s.unit, *s.ward, time(0), "", s.los) for s in stays),
    )
    table("D_ITEMS", "ITEMID,LABEL,LINKSTO", ((item, *rest) for item, rest in ITEMS.items()))
    table("D_LABITEMS", "ITEMID,LABEL,FLUID", ((item, *rest) for item, rest in LAB_ITEMS.items()))
    table(
        "CHARTEVENTS",
        "SUBJECT_ID,HADM_ID,ICUSTAY_ID,ITEMID,CHARTTIME,VALUE,VALUENUM,VALUEUOM,ERROR",
        (
            (s.subject, s.admission, f"{s.id}.0", e.item, at, e.value, numbers[e], "", e.error)
            for s, e, at in events
            if e.item < 50
        ),
    )
    table(
        "LABEVENTS",
        "SUBJECT_ID,HADM_ID,ITEMID,CHARTTIME,VALUE,VALUENUM",
        [(s.subject, s.admission, e.item, at, e.value, numbers[e]) for s, e, at in events if e.item >= 50]
        + [(1, "", 51, time(1), "90", "90")],  # an outpatient's
    )
    return path


def rows(path: Path, **options: object) -> Tensor:
    """All stays, by id, with all 76 features."""
    data = load_mimic3(path, test_share=0.0, **options)  # type: ignore[arg-type]
    return torch.cat([part[torch.arange(len(part))] for part in data.train], dim=2)


def line(hours: float, **values: str) -> str:
    """A line of an episode; channels are spelt with _ for a space."""
    return ",".join([str(hours), *(values.get(name.replace(" ", "_"), "") for name in CHANNELS.split(","))])


Episodes = Mapping[str, tuple[Sequence[str], int]]


def write_benchmark(path: Path, train: Episodes, test: Episodes, header: str = "stay,y_true") -> Path:
    """In-hospital-mortality folders of episodes (lines, death)."""
    for part, episodes in (("train", train), ("test", test)):
        folder = path / "in-hospital-mortality" / part
        folder.mkdir(parents=True, exist_ok=True)
        for name, (lines, _) in episodes.items():
            (folder / name).write_text("\n".join([f"Hours,{CHANNELS}", *lines]) + "\n", encoding="utf-8")
        middle = ",48.0" * (header.count(",") - 1)
        listed = [header, *(f"{name}{middle},{died}" for name, (_, died) in episodes.items())]
        (folder / "listfile.csv").write_text("\n".join(listed) + "\n", encoding="utf-8")
    return path
