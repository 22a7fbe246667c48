import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cvfl
from cvfl.data import mimic3_tables
from cvfl.data.mimic3 import FILES, load_mimic3
from cvfl.data.mimic3_variables import CHANNELS
from cvfl.errors import DataError

START = datetime(2150, 3, 1, 10, 0, 0)
ITEMS = {  # label, dictionary; numbers are the test's own: the loader must go by label
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
MASKS = 59  # the first mask
EYE, TOTAL = 5, 25  # the first category of each
PLACE = {"Heart Rate": 51, "Height": 52, "Oxygen saturation": 54, "Temperature": 57, "Weight": 58 - 1}


@dataclass(frozen=True)
class Stay:
    id: int
    subject: int = 0
    admission: int = 0
    events: tuple[tuple[float, int, str], ...] = ((0.5, 1, "80"),)
    died: int = 0
    age: float = 60
    los: str = "3.5"
    ward: tuple[int, int] = (7, 7)
    unit: tuple[str, str] = ("MICU", "MICU")
