"""A short run of a federation, to see what a setting costs and how far it gets: every role timed as if it were alone.

Roles take turns on one thread, each with codecs of its own, so that what one takes is what it would take on its own
machine of this kind. Loss and bytes have nothing to do with the clock: they are those of `cvfl train`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.federation.build import Federation, make_federation, recipe_for
from cvfl.runtime import Meter, Traffic, rounds
from cvfl.theory import computing
from cvfl.types import SERVER

Clock = Callable[[], float]
"""Seconds since some moment."""

_RELAY = -1
"""The server's key for what it does before it trains: decode what came, encode what goes out."""


@dataclass(frozen=True)
class Calibration:
    """What a short run showed: loss and bytes of every round, bytes of one evaluation, and the computing of a round.

    `validation` has the metrics on the validation rows after the last round, if there are such rows.
    """

    losses: tuple[float, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    evaluation: int
    seconds: float
    validation: Mapping[str, float] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds that were run."""
        return len(self.losses)


def calibrate(
    config: RunConfig,
    data: VerticalData,
    count: int,
    clock: Clock,
    on_round: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Run the first `count` rounds of a configuration and evaluate after the last of them."""
    # Validation and test rows are sent together, so this one evaluation also tells what each of the run's will cost.
    recipe = recipe_for(config.model_copy(update={"evaluate_every": count}), data)
    federation, meter = make_federation(recipe, data, apart=True), Meter()
    watch = _Stopwatch(federation, clock)
    losses, sent, seconds = [], [Traffic()], []
    validation: dict[str, float] = {}
    for report in rounds(*federation.roles, meter, workers=1):
        losses.append(report.loss)
        sent.append(sum(meter.through(report.t0).values(), Traffic()))
        seconds.append(watch.lap())
        validation = report.evaluation.validation if report.evaluation else {}
        on_round(len(losses))
        if len(losses) == count:
            break
    pairs = list(pairwise(sent))
    return Calibration(
        losses=tuple(losses),
        up=tuple(after.up - before.up for before, after in pairs),
        down=tuple(after.down - before.down for before, after in pairs),
        evaluation=sent[-1].evaluation,
        # The first round starts the roles and the last one evaluates: neither is a round like the others.
        seconds=_usual(seconds[1:-1] or seconds),
        validation=validation,
    )


def _usual(seconds: Sequence[float]) -> float:
    """The lower quartile: what else a machine does only ever makes a round longer."""
    return sorted(seconds)[len(seconds) // 4]


class _Stopwatch:
    """Times the roles of a federation by their methods; `lap` is the computing of a round with a machine a role."""

    def __init__(self, federation: Federation, clock: Clock) -> None:
        self._clock = clock
        self._spent: defaultdict[int, float] = defaultdict(float)
        self._parties = [party.m for party in federation.parties]
        self._watch(federation.server, "receive", _RELAY)
        self._watch(federation.server, "train", SERVER)
        for party in federation.parties:
            self._watch(party, "receive", party.m)

    def _watch(self, role: object, method: str, key: int) -> None:
        call = getattr(role, method)

        def timed(*arguments: Any) -> Any:
            began = self._clock()
            try:
                return call(*arguments)
            finally:
                self._spent[key] += self._clock() - began

        setattr(role, method, timed)

    def lap(self) -> float:
        """Seconds of the round that has just ended."""
        spent, self._spent = self._spent, defaultdict(float)
        return computing(spent[_RELAY], spent[SERVER], [spent[m] for m in self._parties])
