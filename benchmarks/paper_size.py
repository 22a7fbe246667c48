"""What the paper's two data sets that need a login would take: seconds and memory to load them and of a round.

    python benchmarks/paper_size.py mimic3 DEMO --times 20
    python benchmarks/paper_size.py imagenet100 --local-iterations 1

The public demo of MIMIC-III has 100 patients in the tables of the full one: it is written again so many times, with
other numbers for the same patients. For ImageNet100 a folder of a hundred classes is made in the published layout, with
noise for pictures. A fresh process then runs some rounds of preset `paper` without compression, on one thread, and says
what it took. Linux only: peaks come from /proc.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from load_memory import memory
from PIL import Image

from cvfl.data.sets.imagenet100 import CLASSES
from cvfl.federation.rows.load import load_data
from cvfl.federation.train import train
from cvfl.rng import stream
from cvfl.runs.journal import last_line
from cvfl.studies.study import load_study, tasks

PEOPLE = {"subject_id", "hadm_id", "icustay_id"}
"""Columns of the tables of MIMIC-III that say who a row is of."""
STEP = 1_000_000
"""Numbers of one copy are this far from those of the next; MIMIC-III's have six digits at most."""
SIDES = (500, 375)
"""Width and height of most pictures of ImageNet."""


def write_again(demo: Path, folder: Path, times: int) -> None:
    """The tables of the demo, so many times with new numbers for its people; tables without people once."""
    for table in sorted(demo.glob("*.csv")):
        with table.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        who = [at for at, name in enumerate(header) if name.lower() in PEOPLE]
        with (folder / table.name).open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(header)
            for copy in range(times if who else 1):
                writer.writerows(_renumbered(row, who, copy * STEP) for row in rows)


def _renumbered(row: list[str], who: list[int], by: int) -> Iterator[str]:
    return (str(int(float(text)) + by) if at in who and text else text for at, text in enumerate(row))


def write_pictures(folder: Path, train_images: int, test_images: int) -> None:
    """A hundred classes of JPEG files in the folders of ImageNet, and their list."""
    names = [f"n{number:08d}" for number in range(100)]
    (folder / CLASSES).write_text("\n".join(names), encoding="utf-8")
    for split, count in (("train", train_images), ("val", test_images)):
        for number in range(count):
            name = names[number % len(names)]
            file = folder / split / name / f"{name}_{number}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            noise = (stream(0, "pictures", split, number).uniform(8 * 8 * 3) * 255).astype(np.uint8).reshape(8, 8, 3)
            Image.fromarray(noise).resize(SIDES, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)


def run(name: str, data: Path, rounds: int, local_iterations: int) -> dict[str, float]:
    """Some rounds of a study's preset `paper` without compression, in this process."""
    torch.set_num_threads(1)
    task = tasks(load_study(name), "paper", 1, data, data / "out")[0]
    started = time.perf_counter()
    loaded = load_data(task.config)
    seconds, held = time.perf_counter() - started, memory("VmHWM")
    batch = min(task.config.batch_size, len(loaded.data.train_labels))
    length = {"epochs": None, "rounds": rounds, "evaluate_every": rounds, "batch_size": batch}
    few = task.config.model_copy(update=length | {"local_iterations": local_iterations})
    train(few, loaded, task.out, task.cell, workers=1)
    line = last_line(task.out / "metrics.jsonl")
    assert line is not None
    return {
        "rows": len(loaded.data.train_labels) + len(loaded.data.test_labels),
        "load_seconds": round(seconds, 1),
        "load_gb": round(held / 1e9, 2),
        "rounds": rounds,
        "local_iterations": local_iterations,
        "batch": batch,
        "all_rounds_seconds": round(time.perf_counter() - started - seconds, 1),
        "last_round_seconds": round(line["seconds"], 2),
        "peak_gb": round(memory("VmHWM") / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["mimic3", "imagenet100"])
    parser.add_argument("demo", type=Path, nargs="?", help="folder of the demo's CSV tables, for mimic3")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--local-iterations", type=int, default=10)
    parser.add_argument("--made", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.made:
        print(json.dumps(run(chosen.name, chosen.made, chosen.rounds, chosen.local_iterations)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / chosen.name
        folder.mkdir()
        if chosen.name == "mimic3":
            if chosen.demo is None:
                parser.error("mimic3 needs the folder of the demo's tables")
            write_again(chosen.demo, folder, chosen.times)
        else:
            write_pictures(folder, 512, 100)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{chosen.name}: {size / 1e6:,.0f} MB of files", file=sys.stderr)
        command = [sys.executable, __file__, chosen.name, "--made", made, "--rounds", str(chosen.rounds)]
        subprocess.run([*command, "--local-iterations", str(chosen.local_iterations)], check=True)


if __name__ == "__main__":
    main()
