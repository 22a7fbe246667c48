"""How long a round takes in process, beside a bare PyTorch loop that does the same arithmetic; Q = 10.

    python benchmarks/round.py --compressor scalar:bits=4 --json

Both run in turn, so that a busy moment meets both; the ratio of their medians is what to look at.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from shown import Steps, options, show, turns
from torch import Tensor, nn

from cvfl.compress import build
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.models import LSTM, MLP, Concat, ResNet
from cvfl.protocol import Loss, Plan, Recipe, StepSize
from cvfl.protocol.learning.layers import initialised
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds

WARM_UP = 8  # rounds in which the runtime finds out whether parties are faster side by side


@dataclass(frozen=True)
class RoundSpeed:
    """Milliseconds of a round, of the bare loop beside it, and the codec's share of the round."""

    shape: str
    round_ms: float
    bare_ms: float
    ratio: float
    codec_share: float


@dataclass(frozen=True)
class RoundShape:
    """M parties with rows of one shape, their model, and the width of its embedding."""

    name: str
    batch: int
    row: tuple[int, ...]
    width: int
    make: Callable[[], nn.Module]
    M: int = 4
    Q: int = 10


ROUND_SHAPES = (
    RoundShape("lstm 4 x (1000 x 48 x 19 -> 16)", 1000, (48, 19), 16, lambda: LSTM(19, 16)),
    RoundShape("resnet 4 x (100 x 3 x 16 x 16 -> 16)", 100, (3, 16, 16), 16, lambda: ResNet(3, 16, 8, 1, 3)),
    RoundShape("mlp 4 x (1000 x 20 -> 64)", 1000, (20,), 64, lambda: MLP(20, 64, (64,), bounded=True)),
)


def bench_round(shape: RoundShape, compressor: str, repeats: int | None, steps: Steps) -> RoundSpeed:
    """Rounds of the real federation and of a bare loop with the same arithmetic, in turn; medians."""
    steps.next(f"{shape.name}: warming up")
    trial = _federation(shape, compressor, 10_000)
    bare = _fastest_bare(lambda: _federation(shape, compressor, 1))
    reports = rounds(trial.server, trial.parties, Meter())
    for _ in range(WARM_UP):
        next(reports)
    steps.next(f"{shape.name}: rounds and bare loop in turn")
    ours, theirs = [], []
    for _ in turns(repeats):
        began = time.perf_counter()
        next(reports)
        ours.append(time.perf_counter() - began)
        theirs.append(bare.round())
    reports.close()  # type: ignore[attr-defined]
    round_ms, bare_ms = 1e3 * statistics.median(ours), 1e3 * statistics.median(theirs)
    steps.next(f"{shape.name}: share of the codecs")
    share = _codec_share(_federation(shape, compressor, 10_000, apart=True), repeats)
    return RoundSpeed(shape.name, round_ms, bare_ms, round_ms / bare_ms, share)


def _federation(shape: RoundShape, compressor: str, count: int, apart: bool = False) -> Federation:
    x = torch.from_numpy(stream(1, "bench").uniform(shape.M * shape.batch * math.prod(shape.row))).float() * 2 - 1
    tables = tuple(x.reshape(shape.M, shape.batch, *shape.row).contiguous())
    labels = (tables[0].reshape(shape.batch, -1).sum(1) > 0).float()
    data = VerticalData(
        names=tuple(f"party{m}" for m in range(1, shape.M + 1)),
        train=tables,
        test=tuple(table[:0] for table in tables),
        train_labels=labels,
        test_labels=labels[:0],
        loss=Loss.BINARY,
    )
    widths = (shape.width,) * shape.M
    folded = int(compressor == "auto")  # to one number a row, as the server model has one output
    plan = Plan(
        1, count, shape.Q, shape.batch, shape.batch, 0, widths, Loss.BINARY, StepSize(eta=0.01), sum_width=folded
    )
    replies = "auto" if folded else "identity"
    recipe = Recipe(
        plan=plan,
        names=data.names,
        models=(shape.make,) * shape.M,
        server_model=lambda: Concat(nn.Linear(sum(widths), 1)),
        compressors=(lambda: build(compressor),) * shape.M,
        evaluation_compressors=(lambda: build("identity"),) * shape.M,
        server_compressor=lambda: build(replies, "model"),
        gradient_compressor=lambda: build("identity"),
        partial_compressor=lambda: build(replies, "partial"),
    )
    return make_federation(recipe, data, apart)


class _Bare:
    """The same steps as one plain loop: no messages, no compression, one role after another."""

    def __init__(self, federation: Federation, threads: int) -> None:
        self.plan, self.threads = federation.plan, threads
        self.tables = [party.holding.train for party in federation.parties]
        self.y = federation.server.labels.train
        self.models = [party.model for party in federation.parties]
        self.server_model = initialised(federation.recipe.server_model, 1, 0)
        roles = [self.server_model, *self.models]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in roles]

    def round(self) -> float:
        """Seconds of one round."""
        with _threads(self.threads):
            began = time.perf_counter()
            self._round()
            return time.perf_counter() - began

    def _round(self) -> None:
        rows = self.plan.batch(0)
        y = self.y[rows]
        x = [table[rows] for table in self.tables]
        h = [model(part) for model, part in zip(self.models, x, strict=True)]
        stale = [value.detach() for value in h]
        self.server_model.requires_grad_(True)
        for _ in range(self.plan.Q):
            self._step(self.optimizers[0], stale, y)
        self.server_model.requires_grad_(False)
        for m, model in enumerate(self.models):
            phi = list(stale)
            for q in range(self.plan.Q):
                phi[m] = h[m] if q == 0 else model(x[m])
                self._step(self.optimizers[m + 1], phi, y)

    def _step(self, optimizer: torch.optim.Optimizer, phi: list[Tensor], y: Tensor) -> None:
        loss = self.plan.loss(self.server_model(phi), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _fastest_bare(make: Callable[[], Federation]) -> _Bare:
    """The bare loop with one thread or all, whichever is faster in the second of two rounds."""
    loops = [_Bare(make(), threads) for threads in sorted({1, torch.get_num_threads()})]
    return min(loops, key=lambda loop: [loop.round() for _ in range(2)][-1])


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _codec_share(federation: Federation, repeats: int | None) -> float:
    """Time inside encode and decode over the time of the rounds, all roles on one thread, each decoding for itself."""
    spent = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                spent += time.perf_counter() - began

        return wrapper

    server, parties = federation.server, federation.parties
    codecs = [*server.exchange.codecs.embeddings.values(), *server.exchange.codecs.replies.values()]
    codecs += [
        codec
        for party in parties
        for codec in (*party.exchange.codecs.embeddings.values(), party.exchange.codecs.replies[party.m])
    ]
    models = {id(model): model for model in server.exchange.codecs.models.values()}
    for codec in codecs:
        setattr(codec, "encode", timed(codec.encode))  # noqa: B010
        setattr(codec, "decode", timed(codec.decode))  # noqa: B010
        setattr(codec, "observe", timed(codec.observe))  # noqa: B010
    for model in (*models.values(), *(party.exchange.codecs.models[party.m] for party in parties)):
        setattr(model, "encode", timed(model.encode))  # noqa: B010
        setattr(model, "decode_into", timed(model.decode_into))  # noqa: B010
    reports = rounds(federation.server, federation.parties, Meter(), workers=1)
    next(reports)
    spent, began = 0.0, time.perf_counter()
    for _ in range(repeats or 2):
        next(reports)
    return spent / (time.perf_counter() - began)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--compressor", default="lattice:bits=2", help="compressor of the parties")
    parser.add_argument("--repeats", type=int, help="rounds to measure; as many as ten seconds allow when not given")
    given = parser.parse_args()

    def measure(steps: Steps) -> Iterator[RoundSpeed]:
        for shape in ROUND_SHAPES:
            yield bench_round(shape, given.compressor, given.repeats, steps)

    columns: dict[str, Callable[[RoundSpeed], str]] = {
        "shape": lambda speed: speed.shape,
        "round ms": lambda speed: f"{speed.round_ms:.1f}",
        "bare ms": lambda speed: f"{speed.bare_ms:.1f}",
        "ratio": lambda speed: f"{speed.ratio:.2f}",
        "codec share": lambda speed: f"{speed.codec_share:.1%}",
    }
    show(given.json, 3 * len(ROUND_SHAPES), measure, columns)


if __name__ == "__main__":
    main()
