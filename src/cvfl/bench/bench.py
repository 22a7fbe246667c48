"""How fast the codecs and a round are, compared within one run on one machine."""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cvfl.compress import Context, build
from cvfl.data import VerticalData
from cvfl.federation.build import Federation, make_federation
from cvfl.models import LSTM, MLP, Concat, ResNet
from cvfl.protocol import Loss, Plan, Recipe, StepSize
from cvfl.protocol.layers import initialised
from cvfl.rng import stream
from cvfl.runtime import Meter, rounds
from cvfl.runtime.inprocess import one_thread_a_role
from cvfl.wire import decode_packet, encode_packet

CODECS = (
    "identity",
    *(f"{name}:bits={bits}" for name in ("scalar", "lattice") for bits in (2, 3, 4, 8, 16)),
    "topk:bits=2",
    "topk:bits=2,by=entry",
)
CODEC_SHAPES = ((64, 4096), (1000, 256), (4096, 4096))


@dataclass(frozen=True)
class CodecSpeed:
    """GB/s of float32 input or output on one core, and the peak memory of a call over the size of its tensor."""

    compressor: str
    bits: int
    shape: tuple[int, int]
    encode_gbps: float
    decode_gbps: float
    peak_ratio: float | None


@dataclass(frozen=True)
class RoundSpeed:
    """Milliseconds of a round, of the bare loop beside it, and the codec's share of the round."""

    shape: str
    round_ms: float
    bare_ms: float
    ratio: float
    codec_share: float


def bench_codec(spec: str, shape: tuple[int, int]) -> CodecSpeed:
    """Encode to packet bytes and decode again, on one core."""
    compressor = build(spec)
    h = torch.from_numpy(stream(1, "bench").uniform(math.prod(shape))).float().reshape(shape) * 2 - 1

    def encode() -> bytes:
        return encode_packet(compressor.compress(h, Context(seed=1)))  # a new context draws its dither anew

    data = encode()

    def decode() -> Tensor:
        return compressor.decompress(decode_packet(data), Context(seed=1))

    size = h.numel() * 4
    with one_thread_a_role():
        speeds = [size / _fastest(call) / 1e9 for call in (encode, decode)]
        peaks = [_peak(encode, size, size), _peak(decode, len(data), size)]
    ratio = None if None in peaks else max(peak for peak in peaks if peak is not None)
    return CodecSpeed(spec, int(compressor.nominal_bits(0)), shape, speeds[0], speeds[1], ratio)


def _fastest(call: Callable[[], object], seconds: float = 0.4) -> float:
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def _peak(call: Callable[[], object], held: int, size: int) -> float | None:
    """Peak of resident memory during a call, what it was given included, over the tensor's size; Linux only.

    What the allocator keeps is given back first, so that the call has to ask for all it needs. Below a megabyte the
    figure would be the allocator's own.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if size < 1e6 or not refs.exists():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident(status, "VmRSS")
    refs.write_text("5")  # resets the high-water mark
    result = call()
    peak = _resident(status, "VmHWM")
    del result
    return (held + max(0, peak - before)) / size


def _resident(status: Path, key: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


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


def bench_round(shape: RoundShape, compressor: str = "lattice:bits=2", repeats: int = 12) -> RoundSpeed:
    """Rounds of the real federation and of a bare loop with the same arithmetic, in turn; medians."""
    trial = _federation(shape, compressor, 10_000)
    bare = {threads: _Bare(_federation(shape, compressor, 1), threads) for threads in {1, torch.get_num_threads()}}
    reports = rounds(trial.server, trial.parties, Meter())
    for _ in range(8):  # the runtime finds out whether parties are faster side by side
        next(reports)
    ours, theirs = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        next(reports)
        ours.append(time.perf_counter() - began)
        theirs.append(min(loop.round() for loop in bare.values()))
    reports.close()  # type: ignore[attr-defined]
    round_ms, bare_ms = 1e3 * statistics.median(ours), 1e3 * statistics.median(theirs)
    share = _codec_share(_federation(shape, compressor, 10_000, apart=True))
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
    plan = Plan(1, count, shape.Q, shape.batch, shape.batch, 0, widths, Loss.BINARY, StepSize(0.01), sum_width=folded)
    replies = "auto" if folded else "identity"
    recipe = Recipe(
        plan=plan,
        names=data.names,
        models=(shape.make,) * shape.M,
        server_model=lambda: Concat(nn.Linear(sum(widths), 1)),
        compressors=(lambda: build(compressor),) * shape.M,
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


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _codec_share(federation: Federation, repeats: int = 6) -> float:
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
    for _ in range(repeats):
        next(reports)
    return spent / (time.perf_counter() - began)
