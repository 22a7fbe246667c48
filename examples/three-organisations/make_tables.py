"""Write the tables of a hospital, a bank and an insurer about overlapping people, from scikit-learn's diabetes data.

Each table has its own people and columns; about 300 of the 442 people are in all three.
"""

from __future__ import annotations

import csv
from pathlib import Path

from sklearn.datasets import load_diabetes

from cvfl.rng import stream

COLUMNS = {
    "hospital": ["bmi", "bp", "s1", "s2"],
    "bank": ["age", "sex", "s3"],
    "insurer": ["s4", "s5", "s6"],
}


def main(folder: Path) -> None:
    """Write hospital.csv (with the label), bank.csv and insurer.csv."""
    people = load_diabetes(as_frame=False, scaled=False)
    names, rows, progression = people.feature_names, people.data, people.target
    for party, columns in COLUMNS.items():
        chosen = stream(1, "example", party).permutation(len(rows))[:390]
        with (folder / f"{party}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            label = ["worse"] if party == "hospital" else []
            writer.writerow(["person", *columns, *label])
            for i in chosen:
                values = [rows[i][names.index(column)] for column in columns]
                worse = ["yes" if progression[i] > 140 else "no"] if label else []
                writer.writerow([f"p{i:04d}", *values, *worse])


if __name__ == "__main__":
    main(Path(__file__).parent)
