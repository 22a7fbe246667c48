"""All roles in this process: the embedded default, and the reference for the other runtimes.

Messages become frames and frames become messages exactly as between machines; only the carrier is a function call.
Roles compute with one thread each, so that a run has the same bits on every machine and runtime; parties run side by
side on the cores there are when that is faster, which the first rounds find out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from cvfl.protocol import Evaluated, Measured, Party, Server
from cvfl.runtime.meter import Meter
from cvfl.types import SERVER, Direction
from cvfl.wire import Message, decode, encode
from cvfl.wire.frame import kind_of
from cvfl.wire.message import EVALUATION


@dataclass(frozen=True)
class RoundReport:
    """What one round did; evaluation and measured errors are there on the rounds that have them."""

    t0: int
    loss: float
    seconds: float
    evaluation: Evaluated | None = None
    measured: dict[int, Measured] = field(default_factory=dict)


def rounds(
    server: Server,
    parties: Sequence[Party],
    meter: Meter,
    workers: int | None = None,
    on_settled: Callable[[], None] = lambda: None,
) -> Iterator[RoundReport]:
    """Run the federation round by round; `workers` = 1 runs one role after another, None finds out what is faster.

    `on_settled` is called between rounds, when the state of all roles is complete and a run can start from it again.
    """
    with (
        one_thread_a_role(),
        _Crew(workers or min(os.cpu_count() or 1, 1 + len(parties)), workers is None) as crew,
    ):
        replies = _deliver(server, [_sent(meter, party, party.start()) for party in parties])
        while replies:
            began, t0 = time.perf_counter(), server.t0
            measured = _measured(server, parties)
            down = {m: encode(message) for m, message in replies}
            for m, frame in down.items():
                meter.add(m, Direction.DOWN, frame)
            tasks = [partial(_answer, meter, party, down[party.m]) for party in parties]
            up = crew.run(server.train, tasks)
            loss = server.loss
            _deliver(server, [[frame for frame in frames if kind_of(frame) == EVALUATION] for frames in up])
            on_settled()
            replies = _deliver(server, [[frame for frame in frames if kind_of(frame) != EVALUATION] for frames in up])
            evaluated = server.evaluation if server.evaluation and server.evaluation.t0 == t0 else None
            yield RoundReport(t0, loss, time.perf_counter() - began, evaluated, measured)


def _answer(meter: Meter, party: Party, frame: bytes) -> list[bytes]:
    return _sent(meter, party, party.receive(decode(frame)))


def _sent(meter: Meter, party: Party, messages: Iterable[Message]) -> list[bytes]:
    frames = [encode(message) for message in messages]
    for frame in frames:
        meter.add(party.m, Direction.UP, frame)
    return frames


def _deliver(server: Server, up: Iterable[list[bytes]]) -> list[tuple[int, Message]]:
    return [reply for frames in up for frame in frames for reply in server.receive(decode(frame))]


def _measured(server: Server, parties: Sequence[Party]) -> dict[int, Measured]:
    roles = {SERVER: server.measured} | {party.m: party.measured for party in parties}
    return {m: measured for m, measured in roles.items() if measured}


@contextmanager
def one_thread_a_role() -> Iterator[None]:
    """Set torch to one thread, since sums depend on how they are split; put it back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Crew:
    """Runs the work of a round on several threads or on one, whichever the first rounds show to be faster."""

    _TRIALS = 3

    def __init__(self, workers: int, compare: bool) -> None:
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
        self._best = {True: float("inf"), False: float("inf")}
        # One round to warm up, then both ways in turn.
        self._trials = [True, *([True, False] * self._TRIALS)] if compare and workers > 1 else []
        self._concurrent = workers > 1

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()

    def run(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        """The results of the tasks, in order; the server trains meanwhile."""
        trial = self._trials.pop() if self._trials else None
        concurrent = self._concurrent if trial is None else trial
        began = time.perf_counter()
        results = self._side_by_side(train, tasks) if concurrent else self._in_turn(train, tasks)
        if trial is not None:
            self._best[trial] = min(self._best[trial], time.perf_counter() - began)
            self._concurrent = self._best[True] <= self._best[False]
        return results

    def _in_turn(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        train()
        return [task() for task in tasks]

    def _side_by_side(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        trained = self._pool.submit(train)
        results = list(self._pool.map(lambda task: task(), tasks))
        trained.result()
        return results
