"""Short runs of a federation, one a setting, to see what each costs and how far it gets.

Roles take turns on one thread, each with codecs of its own and timed as if it were alone, so that what one takes is
what it would take on its own machine of this kind. Loss and bytes have nothing to do with the clock: they are those of
`cvfl train`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cvfl.advise.candidates import Setting
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, CvflError
from cvfl.federation.agreement.rehearsal import Rehearsal
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import Loaded
from cvfl.protocol import Plan
from cvfl.runs.directory import round_line
from cvfl.runtime import Meter, Traffic, rounds
from cvfl.theory import computing
from cvfl.types import SERVER

LEAST_ROUNDS = 10
"""Fewer rounds of calibration say nothing."""
_PROBE_ROUNDS = 5
_OVERHEAD = 2
"""What a round takes beside its local iterations, in local iterations: a rough figure, to divide the time by."""
Clock = Callable[[], float]
"""Seconds since some moment."""

_RELAY = -1
"""The server's key for what it does before it trains: decode what came, encode what goes out."""


@dataclass(frozen=True)
class Calibration:
    """What a short run showed: loss and bytes of every round, bytes of its evaluations, and the computing of a round.

    `validation` has the last metrics on the validation rows, if there are such rows. Beside the rounds
    there are the bytes of alignment and set-up, and those that are `told` at the end of every evaluated round.
    """

    losses: tuple[float, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    evaluations: tuple[int, ...]
    seconds: float
    validation: Mapping[str, float] = field(default_factory=dict)
    alignment: int = 0
    setup: int = 0
    told: int = 0

    @property
    def rounds(self) -> int:
        """Rounds that were run."""
        return len(self.losses)


Seen = Mapping[Setting, Calibration | str]
"""What calibration saw of each setting, or why that setting failed."""
OnWork = Callable[[int, int], None]
"""(how much of the calibration is done, of how much)."""


@dataclass(frozen=True)
class Effort:
    """Epochs that `none` runs with the configured Q; fewer if all candidates would take more than `seconds`."""

    epochs: int = 3
    seconds: float | None = None


@dataclass(frozen=True)
class Trials:
    """What was seen, what was not worth a trial, and whether Ctrl-C ended it before all was seen."""

    seen: Seen
    skipped: tuple[Setting, ...] = ()
    complete: bool = True


def run_trials(
    config: RunConfig,
    loaded: Loaded,
    plan: Plan,
    wanted: Sequence[Setting],
    effort: Effort,
    worth: Callable[[Setting, Seen], bool],
    clock: Clock,
    on_work: OnWork = lambda done, total: None,
) -> Trials:
    """Calibrate every setting that is worth it, the reference first; Ctrl-C ends it with what is known, if anything."""

    def trial(setting: Setting, count: int, on_round: Callable[[int], None] = lambda r: None) -> Calibration:
        # The first rounds of a whole run, since its length may be part of the step size.
        return calibrate(setting.of(config, max(plan.rounds, count)), loaded, count, clock, on_round)

    seen: dict[Setting, Calibration | str] = {}
    skipped: list[Setting] = []
    try:
        first = _first_rounds(plan, wanted, effort, trial)
        counts = {setting: _rounds_at(setting.Q, plan.Q, first) for setting in wanted}
        total, done = sum(_work(setting.Q, count) for setting, count in counts.items()), 0
        for setting, count in counts.items():
            on_round = lambda r, done=done, Q=setting.Q: on_work(done + _work(Q, r), total)  # noqa: E731
            done += _work(setting.Q, count)
            if seen and not worth(setting, seen):
                skipped.append(setting)
                continue
            try:
                seen[setting] = trial(setting, count, on_round)
            except CvflError as error:
                if not seen:  # without the reference there is nothing to compare with
                    raise
                seen[setting] = str(error)
    except KeyboardInterrupt:
        if not seen:
            raise
        return Trials(seen, tuple(skipped), complete=False)
    return Trials(seen, tuple(skipped))


def _first_rounds(
    plan: Plan,
    wanted: Sequence[Setting],
    effort: Effort,
    trial: Callable[[Setting, int, Callable[[int], None]], Calibration],
) -> int:
    """Rounds of the reference; a few of them tell how many all settings can have in the time that there is."""
    most = min(plan.rounds, max(LEAST_ROUNDS, effort.epochs * plan.rounds_per_epoch))
    if effort.seconds is None or most <= _PROBE_ROUNDS:
        return most
    ends: list[float] = []
    trial(wanted[0], _PROBE_ROUNDS, lambda r: ends.append(time.perf_counter()))
    each = (ends[-1] - ends[0]) / _work(plan.Q, _PROBE_ROUNDS - 1)
    least = min(LEAST_ROUNDS, most)
    needed = each * sum(_work(setting.Q, _rounds_at(setting.Q, plan.Q, least)) for setting in wanted)
    if needed > effort.seconds:
        raise ConfigError(
            f"--seconds {effort.seconds:g}: {least} rounds of each of {len(wanted)} candidates take about "
            f"{needed:.0f}; give more, or fewer candidates"
        )
    return min(most, int(least * effort.seconds / needed))


def _rounds_at(Q: int, Q0: int, first: int) -> int:
    """At least as many rounds, and at least as many local iterations, as the `first` rounds at Q0 have."""
    return max(first, -(-first * Q0 // Q))


def _work(Q: int, rounds: int) -> int:
    return rounds * (Q + _OVERHEAD)


def calibrate(
    config: RunConfig,
    loaded: Loaded,
    count: int,
    clock: Clock,
    on_round: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """Run the first `count` rounds of a configuration, evaluate at the end, and of two epochs also halfway."""
    # What is known of held-out rows is not sent again: an evaluation an epoch later tells what others will cost.
    epoch = -(-len(loaded.data.train_labels) // config.batch_size)
    every = count // 2 if count >= 2 * epoch else count
    recipe = recipe_for(config.model_copy(update={"evaluate_every": every}), loaded.data)
    federation, meter = make_federation(recipe, loaded.data, apart=True), Meter()
    watch = _Stopwatch(federation, clock)
    losses, sent, seconds = [], [Traffic()], []
    validation: dict[str, float] = {}
    told: list[dict[str, Any]] = []
    for report in rounds(*federation.roles, meter, workers=1):
        losses.append(report.loss)
        sent.append(sum(meter.through(report.t0).values(), Traffic()))
        seconds.append(watch.lap())
        if report.evaluation:
            told = [round_line(report, recipe.plan, meter, recipe.names)]
            validation = report.evaluation.validation
        on_round(len(losses))
        if len(losses) == count:
            break
    pairs, (alignment, setup, each) = list(pairwise(sent)), _beside(Rehearsal(config, recipe, loaded), told)
    evaluations = [after.evaluation - before.evaluation for before, after in pairs]
    return Calibration(
        losses=tuple(losses),
        up=tuple(after.up - before.up for before, after in pairs),
        down=tuple(after.down - before.down for before, after in pairs),
        evaluations=tuple(found for found in evaluations if found),
        # The first round starts the roles and the last one evaluates: neither is a round like the others.
        seconds=_usual(seconds[1:-1] or seconds),
        validation=validation,
        alignment=alignment,
        setup=setup,
        told=each,
    )


def _beside(rehearsal: Rehearsal, line: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Bytes of alignment, of set-up, and of the line that is told at the end of a round that was evaluated."""
    hashes = dict.fromkeys(("server", *rehearsal.recipe.names), "0" * 64)
    counted = []
    for lines in ([], line):
        meter = Meter()
        rehearsal.begin(meter)
        rehearsal.end(meter, hashes, lines)
        counted.append(meter.total())
    none, one = counted
    return none.alignment, none.setup, one.setup - none.setup


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
