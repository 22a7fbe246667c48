"""What secure aggregation costs a round: time and bytes beside the same round with open embeddings.

    python benchmarks/secure.py --json

Rounds of both kinds run in turn; the ratio is the median of the ratios of the pairs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from shown import Steps, options, show, turns
from torch import nn

from cvfl.config.files import parse_config
from cvfl.config.schema import GRID
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.models import LSTM, MLP
from cvfl.protocol import Loss
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds

PARTIES = (4, 16, 32)


@dataclass(frozen=True)
class SecureShape:
    """Rows of one party, its model, and the batch, all as in the federations of docs/results/privacy."""

    name: str
    batch: int
    row: tuple[int, ...]
    make: Callable[[], nn.Module]
    width: int = 16


SECURE_SHAPES = (
    SecureShape("credit, mlp (6 -> 16)", 256, (6,), lambda: MLP(6, 16, (32,), bounded=True)),
    SecureShape("PhysioNet, lstm (48 x 19 -> 16)", 250, (48, 19), lambda: LSTM(19, 16)),
)


@dataclass(frozen=True)
class SecureCost:
    """Milliseconds of a round and bytes of it, open and secure, all roles in one process."""

    shape: str
    parties: int
    open_ms: float
    secure_ms: float
    ratio: float
    bits: float
    open_bits: float
    download: int


def bench_secure(shape: SecureShape, M: int, repeats: int | None) -> SecureCost:
    """Rounds of both federations in turn, each role decoding for itself; medians. Bits are those of one component."""
    runs = {aggregation: _Rounds(shape, M, aggregation) for aggregation in ("open", "secure")}
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in turns(repeats):
        for key, run in runs.items():
            times[key].append(run.seconds())
    ms = {key: 1e3 * statistics.median(seconds) for key, seconds in times.items()}
    up = {key: 8 * run.up() / (M * shape.batch * shape.width) for key, run in runs.items()}
    ratio = statistics.median(b / a for a, b in zip(times["open"], times["secure"], strict=True))
    return SecureCost(
        shape.name, M, ms["open"], ms["secure"], ratio, up["secure"], up["open"], runs["secure"].down() // M
    )


class _Rounds:
    """A federation that runs a round whenever it is asked."""

    def __init__(self, shape: SecureShape, M: int, aggregation: str) -> None:
        self.meter, federation = Meter(), _federation(shape, M, aggregation)
        self._reports = rounds(federation.server, federation.parties, self.meter, workers=1)
        self._count = 0
        self.seconds()  # the first round loads what the others have at hand

    def seconds(self) -> float:
        """How long the next round takes."""
        began = time.perf_counter()
        next(self._reports)
        self._count += 1
        return time.perf_counter() - began

    def up(self) -> float:
        """Bytes of a round's uploads; those of the next round are on their way already."""
        return self.meter.total().up / (self._count + 1)

    def down(self) -> int:
        """Bytes of a round's downloads."""
        return self.meter.total().down // self._count


def _federation(shape: SecureShape, M: int, aggregation: str) -> Federation:
    count = M * shape.batch
    x = torch.from_numpy(stream(1, "bench").uniform(count * int(torch.tensor(shape.row).prod()))).float() * 2 - 1
    tables = tuple(x.reshape(M, shape.batch, *shape.row).contiguous())
    labels = (tables[0].reshape(shape.batch, -1).sum(1) > 0).float()
    names = tuple(f"party{m}" for m in range(1, M + 1))
    data = VerticalData(names, tables, tuple(t[:0] for t in tables), labels, labels[:0], loss=Loss.BINARY)
    config = parse_config(
        {
            "data": {"name": "credit_default"},
            "step_size": {"eta": 0.01},
            "rounds": 10_000,
            "batch_size": shape.batch,
            "compressor": GRID,
            "server_compressor": "identity",
            "server_model": {"name": "sum", "hidden": [16]},
            "privacy": {"aggregation": aggregation},
        }
    )
    return make_federation(recipe_for(config, data, [shape.make] * M), data, apart=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, help="rounds to measure; as many as ten seconds allow when not given")
    given = parser.parse_args()
    cases = [(shape, M) for shape in SECURE_SHAPES for M in PARTIES]

    def measure(steps: Steps) -> Iterator[SecureCost]:
        for shape, M in cases:
            steps.next(f"{shape.name}, {M} parties")
            yield bench_secure(shape, M, given.repeats)

    columns: dict[str, Callable[[SecureCost], str]] = {
        "shape": lambda cost: cost.shape,
        "parties": lambda cost: str(cost.parties),
        "open ms": lambda cost: f"{cost.open_ms:.1f}",
        "secure ms": lambda cost: f"{cost.secure_ms:.1f}",
        "ratio": lambda cost: f"{cost.ratio:.2f}",
        "bits": lambda cost: f"{cost.bits:.2f}",
        "open bits": lambda cost: f"{cost.open_bits:.2f}",
        "download a party": lambda cost: f"{cost.download:,} B",
    }
    show(given.json, len(cases), measure, columns)


if __name__ == "__main__":
    main()
