"""The 17 channels of the in-hospital mortality task on MIMIC-III, and where its tables have them.

Names, categories, their order and normal values are those of the public project YerevaNN/mimic3-benchmarks
(discretizer_config.json), labels mostly of its itemid_to_variable_map.csv, and ranges close to its variable_ranges.csv.
Beyond it, capillary refill is also read from MetaVision and FiO2 from "FiO2 Set"; glucose and pH of urine are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Convert = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _as_it_is(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x


def _celsius(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """No temperature that a patient can have is read as one in both units."""
    return np.where(x > 60, (x - 32) / 1.8, x)


def _fraction(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(x > 1, x / 100, x)


def _per_cent(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(x <= 1, x * 100, x)


def _from_inches(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * 2.54


def _from_pounds(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * 0.45359237


@dataclass(frozen=True)
class Source:
    """Items of a dictionary table, by label in any case, and how their numbers become the channel's unit."""

    labels: tuple[str, ...]
    convert: Convert = _as_it_is
    table: str = "D_ITEMS"


@dataclass(frozen=True)
class Channel:
    """A variable: a number within a range, or one of some categories; `normal` is assumed until it is measured."""

    name: str
    normal: float | str
    sources: tuple[Source, ...]
    low: float = 0.0
    high: float = 0.0
    categories: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, str], ...] = ()
    unsaid: str = ""

    @property
    def features(self) -> int:
        """How many values it takes: one, or one a category."""
        return len(self.categories) or 1

    @cached_property
    def codes(self) -> dict[str, int]:
        """The place of each category, under every spelling."""
        places = {category: place for place, category in enumerate(self.categories)}
        return places | {word: places[category] for word, category in self.synonyms}

    def code(self, word: str) -> int:
        """The place of the category that is spelt so. Raises ValueError."""
        if word.strip() not in self.codes:
            raise ValueError(f"{word!r} is not a value of {self.name}")
        return self.codes[word.strip()]

    @property
    def start(self) -> float:
        """The normal value as a number."""
        return self.codes[self.normal] if isinstance(self.normal, str) else self.normal


def _pressures(kind: str) -> tuple[str, ...]:
    """Labels of blood pressures in CareVue and MetaVision; `kind` is Systolic, Diastolic or Mean."""
    places = ("BP Cuff", "BP Left Arm", "BP Right Arm", "BP Left Leg", "BP Right Leg")
    means = ("Arterial BP Mean", "Arterial BP Mean #2", "NBP Mean", "IABP Mean")
    others = ("Arterial BP", "Arterial BP #2", "NBP", "Manual BP")
    return (
        *(f"{place} [{kind}]" for place in places),
        *(means if kind == "Mean" else (f"{other} [{kind}]" for other in others)),
        *(f"{way} Blood Pressure {kind}" for way in ("Arterial", "Non Invasive")),
        *(f"Manual Blood Pressure {kind} {side}" for side in ("Left", "Right")),
        f"ART BP {kind}",
    )


_LAB = "D_LABITEMS"  # of blood only

CHANNELS = (
    Channel(
        "Capillary refill rate",
        "0.0",
        (
            Source(("Capillary Refill", "Capillary Refill [Left]", "Capillary Refill [Right]")),
            Source(("Capillary Refill L", "Capillary Refill R")),
        ),
        categories=("0.0", "1.0"),
        synonyms=(
            *(("0", "0.0"), ("Brisk", "0.0"), ("Normal <3 secs", "0.0"), ("Normal <3 Seconds", "0.0")),
            *(("1", "1.0"), ("Delayed", "1.0"), ("Abnormal >3 secs", "1.0"), ("Abnormal >3 Seconds", "1.0")),
        ),
    ),
    Channel("Diastolic blood pressure", 59, (Source(_pressures("Diastolic")),), 1, 375),
    Channel(
        "Fraction inspired oxygen",
        0.21,
        (
            Source(("FiO2", "FiO2 Set", "FiO2 [Meas]", "FiO2 (Analyzed)", "Vision FiO2"), _fraction),
            Source(("Inspired O2 Fraction",), _fraction),
        ),
        0.2,
        1,
    ),
    Channel(
        "Glascow coma scale eye opening",
        "4 Spontaneously",
        (Source(("Eye Opening", "GCS - Eye Opening")),),
        categories=(
            *("To Pain", "3 To speech", "1 No Response", "4 Spontaneously"),
            *("None", "To Speech", "Spontaneously", "2 To pain"),
        ),
        unsaid="None",
    ),
    Channel(
        "Glascow coma scale motor response",
        "6 Obeys Commands",
        (Source(("Motor Response", "GCS - Motor Response")),),
        categories=(
            *("1 No Response", "3 Abnorm flexion", "Abnormal extension", "No response"),
            *("4 Flex-withdraws", "Localizes Pain", "Flex-withdraws", "Obeys Commands"),
            *("Abnormal Flexion", "6 Obeys Commands", "5 Localizes Pain", "2 Abnorm extensn"),
        ),
    ),
    Channel(
        "Glascow coma scale total",
        "15",
        (Source(("GCS Total",)),),
        categories=("11", "10", "13", "12", "15", "14", "3", "5", "4", "7", "6", "9", "8"),
        synonyms=tuple((f"{score}.0", str(score)) for score in range(3, 16)),
    ),
    Channel(
        "Glascow coma scale verbal response",
        "5 Oriented",
        (Source(("Verbal Response", "GCS - Verbal Response")),),
        categories=(
            *("1 No Response", "No Response", "Confused", "Inappropriate Words"),
            *("Oriented", "No Response-ETT", "5 Oriented", "Incomprehensible sounds"),
            *("1.0 ET/Trach", "4 Confused", "2 Incomp sounds", "3 Inapprop words"),
        ),
    ),
    Channel(
        "Glucose",
        128,
        (
            Source(("Glucose", "Glucose (70-105)", "Fingerstick Glucose", "BloodGlucose")),
            Source(("Glucose (serum)", "Glucose (whole blood)", "Glucose finger stick")),
            Source(("Glucose",), table=_LAB),
        ),
        5,
        2200,
    ),
    Channel("Heart Rate", 86, (Source(("Heart Rate",)),), 1, 390),
    Channel(
        "Height",
        170,
        (Source(("Height", "Height Inches"), _from_inches), Source(("Height (cm)",))),
        90,
        275,
    ),
    Channel("Mean blood pressure", 77, (Source(_pressures("Mean")),), 1, 375),
    Channel(
        "Oxygen saturation",
        98,
        (
            Source(("SpO2", "SaO2", "O2 sat [Post]"), _per_cent),
            Source(("O2 saturation pulseoxymetry", "Arterial O2 Saturation"), _per_cent),
            Source(("Oxygen Saturation",), _per_cent, _LAB),
        ),
        10,
        100,
    ),
    Channel(
        "Respiratory rate",
        19,
        (
            Source(("Respiratory Rate", "Respiratory Rate (spontaneous)", "Respiratory Rate (Total)", "Spont RR")),
            Source(("Resp Rate", "Resp Rate (Spont)", "Resp Rate (Total)", "Spon RR (Mech.)")),
        ),
        0,
        150,
    ),
    Channel("Systolic blood pressure", 118, (Source(_pressures("Systolic")),), 1, 375),
    Channel(
        "Temperature",
        36.6,
        (
            Source(("Temperature C", "Temperature C (calc)", "Temp Skin [C]", "Temperature Celsius"), _celsius),
            Source(("Temperature F", "Temperature F (calc)", "Temp Rectal [F]", "Temperature Fahrenheit"), _celsius),
        ),
        14.2,
        47,
    ),
    Channel(
        "Weight",
        81,
        (
            Source(("Daily Weight", "Admission Weight (Kg)", "Present Weight (kg)", "Weight Kg")),
            Source(("Admission Weight (lbs.)", "Present Weight (lb)"), _from_pounds),
        ),
        20,
        300,
    ),
    Channel(
        "pH",
        7.4,
        (
            Source(("PH", "Arterial pH", "Art.pH", "pH (Art)", "PH (Arterial)")),
            Source(("Venous pH", "PH (Venous)", "pH (cap)", "ph (other)")),
            Source(("pH",), table=_LAB),
        ),
        6.3,
        8.4,
    ),
)
LOW = np.array([0 if channel.categories else channel.low for channel in CHANNELS])
HIGH = np.array([len(channel.categories) - 1 if channel.categories else channel.high for channel in CHANNELS])
