"""Memory and time that loading a table takes, against the bytes of the tensor that comes of it.

    python benchmarks/load_memory.py --rows 10000000 --format parquet --format csv

A file of random floats is written in pieces. A fresh process then opens it, reads column after column into one float32
tensor (with --prepare: as a party does, imputed, standardised and split; the last column is the label), and measures
its peak of resident memory above what it had before it opened the table. Linux only: the peak comes from /proc, because
getrusage hands a process the peak of its parent.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from cvfl.config.files import parse_config
from cvfl.data.tables.sources import Source, open_table
from cvfl.federation.rows.load import load_data
from cvfl.rng import stream

PIECE = 100_000


class Load(NamedTuple):
    """What loading took."""

    tensor_bytes: int
    extra_bytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        """The peak of memory, in tensors."""
        return self.extra_bytes / self.tensor_bytes


def write(path: Path, rows: int, columns: int) -> None:
    """Write a table of floats, never holding more than a piece of it."""
    schema = pa.schema([(f"x{j}", pa.float64()) for j in range(columns)])
    writers = {".parquet": pq.ParquetWriter, ".csv": pyarrow.csv.CSVWriter}
    with writers[path.suffix](path, schema) as writer:
        for start in range(0, rows, PIECE):
            x = stream(0, "load_memory", start).uniform(min(PIECE, rows - start) * columns).reshape(columns, -1)
            writer.write_table(pa.table([pa.array(np.round(column, 6)) for column in x], schema=schema))


def memory(key: str) -> int:
    """Resident memory of this process in bytes: VmRSS now, VmHWM at its peak."""
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found, f"/proc/self/status does not say {key}"
    return int(found[1]) * 1024


def load(path: Path) -> Load:
    """Load a table into a tensor, in this process."""
    before = memory("VmRSS")
    started = time.perf_counter()
    with open_table(Source("party", path=path)) as table:
        x = torch.empty(table.rows, len(table.columns))
        for j, name in enumerate(table.columns):
            table.kind(name)  # as every caller asks for it
            x[:, j] = torch.from_numpy(table.numbers(name))
    seconds = time.perf_counter() - started
    peak = memory("VmHWM")
    assert float(x.min()) >= 0, "a value is missing"
    assert 0.4 < float(x.mean()) < 0.6, "these are not the values that were written"
    return Load(x.numel() * x.element_size(), peak - before, seconds)


def prepare(path: Path, columns: int) -> Load:
    """Load a table all the way to the training and test rows of a party, in this process."""
    party = {"bank": {"table": str(path), "label": f"x{columns - 1}"}}
    config = parse_config({"data": {"alignment": "aligned"}, "step_size": {"eta": 0.1}, "epochs": 1, "party": party})
    before = memory("VmRSS")
    started = time.perf_counter()
    data = load_data(config).data
    seconds = time.perf_counter() - started
    rows = [part for part in (*data.train, *data.test) if isinstance(part, torch.Tensor)]
    return Load(sum(x.numel() * x.element_size() for x in rows), memory("VmHWM") - before, seconds)


def measure(path: Path, columns: int, prepared: bool) -> Load:
    """Load a table in a process of its own."""
    command = [sys.executable, __file__, "--load", str(path), "--columns", str(columns)]
    command += ["--prepare"] if prepared else []
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return Load(**json.loads(found.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--format", action="append", choices=["parquet", "csv"])
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        took = prepare(chosen.load, chosen.columns) if chosen.prepare else load(chosen.load)
        print(json.dumps(took._asdict()))
        return
    for suffix in chosen.format or ["parquet"]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"table.{suffix}"
            write(path, chosen.rows, chosen.columns)
            took = measure(path, chosen.columns, chosen.prepare)
            print(
                f"{suffix}: {chosen.rows:,} x {chosen.columns}, file {path.stat().st_size / 1e6:,.0f} MB: "
                f"peak {took.extra_bytes / 1e6:,.0f} MB = {took.ratio:.2f} x the tensor's "
                f"{took.tensor_bytes / 1e6:,.0f} MB, {took.seconds:.1f} s"
            )


if __name__ == "__main__":
    main()
