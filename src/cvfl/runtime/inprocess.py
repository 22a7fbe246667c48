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
from typing import Any, TypeVar

import torch

from cvfl.protocol import Certificate, Evaluated, Measured, PartyMachine, ServerMachine
from cvfl.runtime.meter import Meter
from cvfl.runtime.observed import Spent
from cvfl.stopwatch import coded
from cvfl.types import SERVER, Direction
from cvfl.wire import Message, decode, encode
from cvfl.wire.frame import round_of

T = TypeVar("T")


@dataclass(frozen=True)
class RoundReport:
    """What one round did; evaluation, measured errors and certificates are there on the rounds that have them."""

    t0: int
    loss: float
    seconds: float
    evaluation: Evaluated | None = None
    measured: dict[int, Measured] = field(default_factory=dict)
    certified: dict[int, Certificate] = field(default_factory=dict)
    spent: dict[int, Spent] = field(default_factory=dict)
    """Where the time went, of the roles whose clock is here."""


def rounds(
    server: ServerMachine,
    parties: Sequence[PartyMachine],
    meter: Meter,
    workers: int | None = None,
    on_settled: Callable[[], None] = lambda: None,
) -> Iterator[RoundReport]:
    """Run the federation round by round; `workers` = 1 runs one role after another, None finds out what is faster.

    `on_settled` is called between rounds, where the state of all roles is complete and a run can start from it again.
    Messages go in waves: to the parties, and back to the server. A round is one wave, or two or three when the server
    only passes on what a label holder and the others write to each other.
    """
    with (
        one_thread_a_role(),
        _Crew(workers or min(os.cpu_count() or 1, 1 + len(parties)), workers is None) as crew,
    ):
        replies = _deliver(server, [_sent(meter, party, party.start()) for party in parties])
        while replies:
            began, t0 = time.perf_counter(), server.t0
            spent = {m: Spent() for m in range(1 + len(parties))}
            deliver = partial(_timed, spent[SERVER], _deliver, server)
            measured = _measured(server, parties)
            crew.begin()
            later: list[list[bytes]] = []
            train: Callable[[], None] = partial(_timed, spent[SERVER], server.train)
            while replies:
                down = _sent_down(meter, replies)
                up = crew.run(
                    train,
                    [partial(_timed, spent[m], _answer, meter, parties[m - 1], down[m]) for m in sorted(down)],
                )
                later += [[frame for frame in frames if round_of(frame) > t0] for frames in up]
                replies = deliver([[frame for frame in frames if round_of(frame) == t0] for frames in up])
                train = _nothing
            loss, certified = server.loss, _certified(server, parties)
            if server.settled and all(party.settled for party in parties):
                on_settled()
            replies = deliver(later)
            evaluated = server.evaluation if server.evaluation and server.evaluation.t0 == t0 else None
            yield RoundReport(t0, loss, time.perf_counter() - began, evaluated, measured, certified, spent)
            if server.done:
                for m, frames in _sent_down(meter, replies).items():
                    _answer(meter, parties[m - 1], frames)
                return


def _timed(spent: Spent, work: Callable[..., T], *arguments: Any) -> T:
    """Do a role's work, in whatever thread, and add up how long it took."""
    began, before = time.perf_counter(), coded()
    result = work(*arguments)
    codec = coded() - before
    spent.add(Spent(time.perf_counter() - began - codec, codec))
    return result


def _answer(meter: Meter, party: PartyMachine, frames: Sequence[bytes]) -> list[bytes]:
    return [answer for frame in frames for answer in _sent(meter, party, party.receive(decode(frame)))]


def _nothing() -> None:
    """The server has taken its steps of this round."""


def _sent_down(meter: Meter, replies: Iterable[tuple[int, Message]]) -> dict[int, list[bytes]]:
    down: dict[int, list[bytes]] = {}
    for m, message in replies:
        frame = encode(message)
        meter.add(m, Direction.DOWN, frame)
        down.setdefault(m, []).append(frame)
    return down


def _sent(meter: Meter, party: PartyMachine, messages: Iterable[Message]) -> list[bytes]:
    frames = [encode(message) for message in messages]
    for frame in frames:
        meter.add(party.m, Direction.UP, frame)
    return frames


def _deliver(server: ServerMachine, up: Iterable[list[bytes]]) -> list[tuple[int, Message]]:
    return [reply for frames in up for frame in frames for reply in server.receive(decode(frame))]


def _measured(server: ServerMachine, parties: Sequence[PartyMachine]) -> dict[int, Measured]:
    roles = {SERVER: server.measured} | {party.m: party.measured for party in parties}
    return {m: measured for m, measured in roles.items() if measured}


def _certified(server: ServerMachine, parties: Sequence[PartyMachine]) -> dict[int, Certificate]:
    roles = {SERVER: server.certified} | {party.m: party.certified for party in parties}
    return {m: certificate for m, certificate in roles.items() if certificate}


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
        self._trial: bool | None = None
        self._spent = 0.0

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()

    def begin(self) -> None:
        """A new round: see how long the last one took, and choose how to run this one."""
        if self._trial is not None:
            self._best[self._trial] = min(self._best[self._trial], self._spent)
            self._concurrent = self._best[True] <= self._best[False]
        self._trial, self._spent = self._trials.pop() if self._trials else None, 0.0

    def run(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        """The results of the tasks, in order; the server trains meanwhile."""
        concurrent = self._concurrent if self._trial is None else self._trial
        began = time.perf_counter()
        results = self._side_by_side(train, tasks) if concurrent else self._in_turn(train, tasks)
        self._spent += time.perf_counter() - began
        return results

    def _in_turn(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        train()
        return [task() for task in tasks]

    def _side_by_side(self, train: Callable[[], None], tasks: Sequence[Callable[[], list[bytes]]]) -> list[list[bytes]]:
        trained = self._pool.submit(train)
        results = list(self._pool.map(lambda task: task(), tasks))
        trained.result()
        return results
