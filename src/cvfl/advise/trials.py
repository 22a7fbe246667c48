"""All candidates of `cvfl plan`, calibrated one after another on the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cvfl.advise.calibration import Calibration, Clock, calibrate
from cvfl.advise.candidates import Setting
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import ConfigError, CvflError
from cvfl.protocol import Plan

LEAST_ROUNDS = 10
"""Fewer rounds of calibration say nothing."""
_PROBE_ROUNDS = 5
_OVERHEAD = 2
"""What a round takes beside its local iterations, in local iterations: a rough figure, to divide the time by."""

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
    data: VerticalData,
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
        return calibrate(setting.of(config, max(plan.rounds, count)), data, count, clock, on_round)

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
