"""Memory of the roles of a large federation, and what their checkpoints cost.

    python benchmarks/memory.py --rows 10000000 --memory-mb 256 --out FILE.json

Four parties and a server over gRPC on this machine. Embeddings are 16 wide and relayed, so that every role keeps all
four embeddings of every row. The server and the first party have a process each, and are measured; the other parties
share a third one. Features are random numbers, rows x 16: the first party has them in memory, as it would have those of
its table, the others compute the rows that they are asked for. Before the first round the two that are measured put a
value for every row where they keep them, 0 as of rows that were never sent, so that all rows are known as after an
epoch; and they compute the order of the second epoch. Then come some rounds, each kept in a checkpoint.

Measured are the peak of resident memory of the whole process (VmHWM), the seconds of a round, and of each checkpoint
the seconds, the bytes of its file and the bytes that were added on disk since the one before it. Not in it: loading a
table (`load_memory.py`), alignment, evaluation, and the page cache, which the system takes and gives back as it likes.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cvfl.compress import Feedback
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.federation.agreement import labels
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.roles.server import ServerRole
from cvfl.federation.rows.named import NamedRows
from cvfl.protocol import Codecs, Loss, Plan, Recipe
from cvfl.runtime import one_thread_a_role
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.runtime.grpc.party import attend
from cvfl.runtime.grpc.server import FederationServer

NAMES = ("hospital", "bank", "insurer", "shop")
MEASURED = ("server", NAMES[0])
COLUMNS = WIDTH = 16


class Computed:
    """Random rows that are nowhere: each is computed when it is asked for."""

    def __init__(self, count: int) -> None:
        self.shape = (count, COLUMNS)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.sin(rows[:, None] * torch.arange(1.0, COLUMNS + 1))


def make_data(count: int, own: str) -> VerticalData:
    """All parts of the data as one role sees them: its own in memory."""
    held = torch.rand(count, COLUMNS) if own == NAMES[0] else Computed(count)
    return VerticalData(
        names=NAMES,
        train=(held, *(Computed(count) for _ in NAMES[1:])),
        test=tuple(torch.empty(0, COLUMNS) for _ in NAMES),
        train_labels=(torch.arange(count) % 3 == 0).float(),
        test_labels=torch.empty(0),
        loss=Loss.BINARY,
    )


def make_config(chosen: argparse.Namespace) -> RunConfig:
    """What all roles share."""
    return parse_config(
        {
            "data": {"name": "digits", "parties": 4},  # of which only the name is used
            "rounds": chosen.rounds,
            "batch_size": chosen.batch,
            "local_iterations": 2,
            "compressor": chosen.compressor,
            "server_compressor": "identity",
            "party_model": {"width": WIDTH, "hidden": [32]},
            "step_size": {"eta": 0.1},
            "network": {"memory_mb": chosen.memory_mb, "checkpoint_every": 1},
        }
    )


def resident(key: str) -> int:
    """Resident memory of this process in bytes: VmRSS now, VmHWM at its peak."""
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found, f"/proc/self/status does not say {key}"
    return int(found[1]) * 1024


def fill(codecs: Codecs, plan: Plan) -> None:
    """Know all rows of all parties, as after an epoch."""
    for m, codec in codecs.embeddings.items():
        assert isinstance(codec.compressor, Feedback)
        known = codecs.memory.values((plan.rows, plan.widths[m - 1]), plan.dtype)
        for some in torch.split(torch.arange(plan.rows), 100_000):
            known.put(some, torch.zeros(len(some), plan.widths[m - 1]))
        codec.compressor.known = known
    plan.batch(plan.rounds_per_epoch)


class Watch:
    """Notes what the checkpoints of this process cost."""

    def __init__(self) -> None:
        self.saved: list[dict[str, float]] = []
        self._sizes: dict[str, int] = {}
        self._save = Checkpoints.save
        Checkpoints.save = self._noted()  # type: ignore[method-assign]

    def _noted(self) -> Any:
        def save(checkpoints: Checkpoints, t0: int, state: Any, twice: bool = False) -> None:
            before = time.perf_counter()
            self._save(checkpoints, t0, state, twice)
            after = time.perf_counter()
            if checkpoints.folder.name == "checkpoints":
                sizes = {path.name: path.stat().st_size for path in checkpoints.logs.glob("*.rows")}
                added = sum(size - self._sizes.get(name, 0) for name, size in sizes.items())
                size = (checkpoints.folder / f"round-{t0:08d}.safetensors").stat().st_size
                self._sizes = sizes
                self.saved.append(
                    {"t0": t0, "seconds": after - before, "bytes": size, "added": added, "before": before}
                    | {"after": after, "on_disk": sum(sizes.values()), "resident": resident("VmRSS")}
                )

        return save

    def told(self) -> dict[str, Any]:
        """The peak, and all checkpoints."""
        return {"peak": resident("VmHWM"), "checkpoints": self.saved}


def filled() -> None:
    """Let roles of this process know all rows from the start."""
    plain = Recipe.codecs

    def codecs(self: Recipe, folder: Path | None = None) -> Codecs:
        made = plain(self, folder)
        fill(made, self.plan)
        return made

    Recipe.codecs = codecs  # type: ignore[method-assign]


def serve(chosen: argparse.Namespace, folder: Path) -> None:
    """The server, in this process."""
    config, data = make_config(chosen), make_data(chosen.rows, "server")
    role = ServerRole(NAMES, terms_of(config), labels.NamedLabels(config, data), folder / "server", 1)
    FederationServer(role, f"127.0.0.1:{chosen.port}", None).run()


def take_part(chosen: argparse.Namespace, folder: Path, name: str) -> None:
    """A party, in this thread."""
    config, data = make_config(chosen), make_data(chosen.rows, name)
    role = PartyRole(NamedRows(config, name, data), terms_of(config), offer_of(config, name), folder / name, 1)
    attend(role, f"127.0.0.1:{chosen.port}", None)


def run_roles(chosen: argparse.Namespace) -> None:
    """Run roles in this process, and write down what they took."""
    watch, names = Watch(), chosen.roles.split(",")
    with one_thread_a_role():
        if names[0] in MEASURED:
            filled()
        threads = [threading.Thread(target=take_part, args=(chosen, chosen.folder, name)) for name in names[1:]]
        for thread in threads:
            thread.start()
        serve(chosen, chosen.folder) if names[0] == "server" else take_part(chosen, chosen.folder, names[0])
        for thread in threads:
            thread.join()
    (chosen.folder / f"{names[0]}.json").write_text(json.dumps(watch.told()), encoding="utf-8")


def measure(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run all roles in three processes."""
    command = [sys.executable, __file__, *arguments, "--folder", str(folder), "--roles"]
    groups = ("server", NAMES[0], ",".join(NAMES[1:]))
    children = [subprocess.Popen([*command, names]) for names in groups]
    try:
        assert not any(child.wait() for child in children), "a role has failed"
    finally:
        for child in children:
            child.kill()
    return {role: json.loads((folder / f"{role}.json").read_text(encoding="utf-8")) for role in MEASURED}


def shown(role: str, found: dict[str, Any]) -> str:
    """One line. The first checkpoint brings what was filled in to the disk, the last one needs nothing of it."""
    first, *some, _ = found["checkpoints"]
    middle = {key: statistics.median(one[key] for one in some) for key in ("seconds", "bytes", "added")}
    took = statistics.median(one["before"] - other["after"] for one, other in zip(some[1:], some[:-1], strict=True))
    return (
        f"{role}: peak {found['peak'] / 1e9:.2f} GB; a round {took:.2f} s; a checkpoint {middle['seconds']:.3f} s (the "
        f"first {first['seconds']:.1f}), a file of {middle['bytes'] / 1e6:.2f} MB and {middle['added'] / 1e6:.2f} MB "
        f"more on disk, where {first['on_disk'] / 1e9:.2f} GB are"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--memory-mb", type=int, default=256)
    parser.add_argument("--compressor", default="feedback(entropy(shaped))")
    parser.add_argument("--port", type=int, default=18443)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--roles", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.roles:
        run_roles(chosen)
        return
    with tempfile.TemporaryDirectory() as name:
        found = measure(sys.argv[1:], Path(name))
    for role, one in found.items():
        print(shown(role, one))
    if chosen.out:
        chosen.out.write_text(json.dumps({"roles": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
