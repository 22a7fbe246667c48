"""Memory of each role of a large federation, and what its checkpoints cost.

    python benchmarks/memory.py --rows 10000000 --memory-mb 256 --out FILE.json

Four parties with a Parquet table each, rows x 16 columns of random floats, and a server: five processes over gRPC on
this machine, started by `cvfl party` and `cvfl server` themselves. Embeddings are 16 wide and relayed, so that every
role keeps all four embeddings of every row. The run is an epoch and a tenth: all rows are known at its end, and some
have been sent again. Of each role there are two peaks of resident memory (VmHWM of the whole process): until its rows
are settled and its table is loaded, and from then on to its end; and of each checkpoint the seconds that it took, the
bytes of its file, and the bytes that were added to what is known on disk since the one before it. Linux only.

Not in it: private alignment (row i is the same person everywhere), and the page cache, which the system takes and
gives back as it likes.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cvfl.cli import app
from cvfl.rng import stream
from cvfl.runtime.checkpoint import Checkpoints

NAMES = ("hospital", "bank", "insurer", "shop")
COLUMNS = WIDTH = 16
PIECE = 200_000


def write_table(path: Path, rows: int, labelled: bool) -> None:
    """Write a table of random columns, some at a time; the label follows from the first two."""
    names = [f"x{j}" for j in range(COLUMNS)] + ["y"] * labelled
    with pq.ParquetWriter(path, pa.schema([(name, pa.float32()) for name in names])) as writer:
        for start in range(0, rows, PIECE):
            n = min(PIECE, rows - start)
            x = stream(0, path.stem, start).uniform(n * COLUMNS).astype(np.float32).reshape(COLUMNS, n)
            columns = [*x, (x[0] + x[1] > 1).astype(np.float32)] if labelled else [*x]
            writer.write_table(pa.table(columns, names=names))


def write_config(folder: Path, rows: int, batch: int, memory_mb: int, port: int) -> Path:
    """Write a configuration that all roles share, on one machine."""
    text = f"""
    rounds = {round(1.1 * 0.99 * rows / batch)}
    batch_size = {batch}
    local_iterations = 2
    compressor = "auto"
    server_compressor = "identity"
    party_model = {{ width = {WIDTH}, hidden = [32] }}
    evaluate_every = 1000000
    data = {{ alignment = "aligned", test_share = 0.01 }}
    step_size = {{ eta = 0.1 }}
    network = {{ address = "127.0.0.1:{port}", memory_mb = {memory_mb}, checkpoint_every = 10 }}
    """
    for name in NAMES:
        text += f'\n[party.{name}]\ntable = "{name}.parquet"\n' + 'label = "y"\n' * (name == NAMES[0])
    path = folder / "memory.toml"
    path.write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE), encoding="utf-8")
    return path


def resident(key: str) -> int:
    """Resident memory of this process in bytes: VmRSS now, VmHWM at its peak."""
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found, f"/proc/self/status does not say {key}"
    return int(found[1]) * 1024


def run_role(arguments: list[str], told: Path) -> None:
    """Run a command of cvfl in this process, and write down what it took."""
    saved: list[dict[str, float]] = []
    began, plain, on_disk = time.perf_counter(), Checkpoints.save, dict[str, int]()
    peaks: dict[str, int] = {}

    def save(self: Checkpoints, t0: int, state: Any, twice: bool = False) -> None:
        """As it is, with a clock."""
        start = time.perf_counter()
        plain(self, t0, state, twice)
        seconds = time.perf_counter() - start
        if self.folder.name != "checkpoints":
            if "setup" not in peaks:
                peaks["setup"] = resident("VmHWM")
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
            return
        sizes = {path.name: path.stat().st_size for path in self.logs.glob("*.rows")}
        added = sum(max(0, size - on_disk.get(name, 0)) for name, size in sizes.items())
        on_disk.update(sizes)
        file = self.folder / f"round-{t0:08d}.safetensors"
        at = {"t0": t0, "seconds": seconds, "bytes": file.stat().st_size, "added": added, "clock": start - began}
        saved.append(at | {"on_disk": sum(sizes.values()), "resident": resident("VmRSS")})

    Checkpoints.save = save  # type: ignore[method-assign]
    try:
        app(arguments, standalone_mode=False)
    finally:
        peaks["training"] = resident("VmHWM")
        told.write_text(json.dumps({"peaks": peaks, "checkpoints": saved}), encoding="utf-8")


def measure(folder: Path, config: Path) -> dict[str, Any]:
    """Run all roles in processes of their own."""
    roles = {"server": ["server", str(config), "--out", str(folder / "run")]}
    roles |= {name: ["party", str(config), "--name", name, "--out", str(folder / "models")] for name in NAMES}
    children = {}
    for role, arguments in roles.items():
        command = [sys.executable, __file__, "--told", str(folder / f"{role}.json"), "--role"]
        log = (folder / f"{role}.log").open("w", encoding="utf-8")
        children[role] = subprocess.Popen(
            [*command, *arguments, "--state", str(folder / "state" / role), "--insecure", "--log-json"],
            stdout=log,
            stderr=log,
        )
    try:
        codes = {role: child.wait() for role, child in children.items()}
    finally:
        for child in children.values():
            child.kill()
    assert not any(codes.values()), f"{codes}: {(folder / 'server.log').read_text(encoding='utf-8')[-2000:]}"
    return {role: json.loads((folder / f"{role}.json").read_text(encoding="utf-8")) for role in roles}


def shown(role: str, found: dict[str, Any]) -> str:
    """One line of figures."""
    *earlier, _ = found["checkpoints"]  # the last one needs nothing of what is known
    median = {key: statistics.median(one[key] for one in earlier) for key in ("seconds", "bytes", "added")}
    first, last = earlier[0], earlier[-1]
    rounds = (last["clock"] - first["clock"]) / (last["t0"] - first["t0"])
    return (
        f"{role:9} peak {found['peaks']['setup'] / 1e9:.2f} GB until rows are settled, then "
        f"{found['peaks']['training'] / 1e9:.2f} GB; checkpoint {median['seconds']:.2f} s "
        f"(at most {max(one['seconds'] for one in earlier):.2f}), file {median['bytes'] / 1e6:.2f} MB, "
        f"added on disk {median['added'] / 1e6:.1f} MB; {rounds:.2f} s a round; "
        f"on disk at most {max(one['on_disk'] for one in earlier) / 1e9:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=25_000)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--port", type=int, default=18443)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="where tables and states go; a temporary folder if not given")
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--role", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        run_role(chosen.role, chosen.told)
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        for party in NAMES:
            write_table(folder / f"{party}.parquet", chosen.rows, party == NAMES[0])
        found = measure(folder, write_config(folder, chosen.rows, chosen.batch, chosen.memory_mb, chosen.port))
    for role, one in found.items():
        print(shown(role, one))
    if chosen.out:
        chosen.out.write_text(json.dumps(vars(chosen) | {"roles": found}, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
