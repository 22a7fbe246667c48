"""Write the tables of a hospital, a bank and an insurer about overlapping people, from scikit-learn's diabetes data.

Each table has its own people and columns; about 300 of the 442 people are in all three. Tables of a prediction,
new_*.csv, have all people and no label.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from sklearn.datasets import load_diabetes

from cvfl.rng import stream

COLUMNS = {
    "hospital": ["bmi", "bp", "s1", "s2"],
    "bank": ["age", "sex", "s3"],
    "insurer": ["s4", "s5", "s6"],
}


def main(folder: Path) -> None:
    """Write hospital.csv (with the label), bank.csv and insurer.csv, and the same of all people to be predicted."""
    people = load_diabetes(as_frame=False, scaled=False)
    names, rows, progression = people.feature_names, people.data, people.target
    for party, columns in COLUMNS.items():
        values = [[row[names.index(column)] for column in columns] for row in rows]
        chosen = stream(1, "example", party).permutation(len(rows))[:390]
        worse = ["yes" if value > 140 else "no" for value in progression] if party == "hospital" else []
        _write(folder / f"{party}.csv", columns, values, chosen, worse)
        _write(folder / f"new_{party}.csv", columns, values, range(len(rows)))


def _write(
    path: Path, columns: list[str], values: list[list[float]], chosen: Iterable[int], worse: Sequence[str] = ()
) -> None:
    """Write the table of the chosen people, with the label if there is one."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["person", *columns, *(["worse"] if worse else [])])
        for i in chosen:
            writer.writerow([f"p{i:04d}", *values[i], *worse[i : i + 1]])


if __name__ == "__main__":
    main(Path(__file__).parent)
