"""Which compressor and how many local iterations suit a federation and its network: `cvfl plan`.

Every candidate runs for a while on the real data, beside `none`, which compresses nothing:

    reference     how far `none` with the configured Q brings the training loss down
    qualified     gets there and is not behind `none` of the same Q by more than the tolerance, or lags a little
    rounds        the configured ones x its rounds to the reference / those of `none` with the configured Q
    seconds       rounds x (computing + round trip) + bytes / bandwidth
    recommended   the qualified candidate with the least seconds; of nearly equal ones, that with the fewest bytes
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cvfl.advise.candidates import CANDIDATES, LOCAL_ITERATIONS, NONE, Candidate, Setting, settings
from cvfl.advise.forecast import Forecast, Network, forecast, rounds_to, smoothed
from cvfl.advise.trials import Calibration, Clock, Effort, OnWork, Seen, Trials, run_trials
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import Loaded
from cvfl.protocol import Plan
from cvfl.protocol.learning.metrics import BETTER_LOW, headline

NEARLY = 0.05
"""Seconds that differ by a smaller share count as equal: they are not known better than that."""
MOST_LAG = 1.5
"""A candidate that takes longer than `none` for what it learns gets as many more rounds, up to so many times."""
LEAST_DROP = 0.01
"""A loss that comes down by a smaller share may be chance."""


@dataclass(frozen=True)
class Row:
    """A setting beside `none` of the same Q, the cost of its run, and the configuration keys that make it.

    `objection` is why it does not qualify, in a word; `learnt` how far its loss came down, as a share of how far that
    of `none` did; `gap` how much better it is in the validation metric.
    """

    setting: Setting
    objection: str = ""
    learnt: float | None = None
    gap: float | None = None
    forecast: Forecast | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Advice:
    """All settings that were tried, the uncompressed one with the configured Q, and the one to take.

    `skipped` settings could not have been faster; `metric` is what validation rows were compared by, if there are any.
    """

    rows: tuple[Row, ...]
    reference: Row
    best: Row
    calibrated: int
    metric: str
    skipped: tuple[Setting, ...]
    complete: bool


def advise(
    config: RunConfig,
    loaded: Loaded,
    network: Network,
    tolerance: float,
    effort: Effort,
    candidates: Sequence[Candidate] = CANDIDATES,
    local: Sequence[int] = LOCAL_ITERATIONS,
    clock: Clock | None = None,
    on_work: OnWork = lambda done, total: None,
) -> Advice:
    """Try the settings on this data and choose; nothing but seconds depends on `clock`.

    The default clock is the processor time of this thread: what else the machine does is no matter.
    """
    plan = recipe_for(config, loaded.data).plan
    clock = clock or (time.thread_time if plan.device.type == "cpu" else time.perf_counter)

    def worth(setting: Setting, seen: Seen) -> bool:
        known = _Judge(seen, config, plan, network, tolerance)  # which refuses a reference that learns nothing
        return setting.candidate == NONE or known.may_win(setting)

    trials = run_trials(config, loaded, plan, settings(config, candidates, local), effort, worth, clock, on_work)
    return judge(trials, config, plan, network, tolerance)


def judge(trials: Trials, config: RunConfig, plan: Plan, network: Network, tolerance: float) -> Advice:
    """What the trials say of every setting, and which one to take."""
    of = _Judge(trials.seen, config, plan, network, tolerance)
    rows = of.rows()
    return Advice(
        rows=rows,
        reference=rows[0],
        best=best(rows),
        calibrated=of.base.rounds,
        metric=of.metric if of.base.validation else "",
        skipped=trials.skipped,
        complete=trials.complete,
    )


def best(rows: Sequence[Row]) -> Row:
    """The qualified row with the least seconds; of those that are nearly as fast, the one with the fewest bytes."""
    qualified = [(row, row.forecast) for row in rows if row.forecast and not row.objection]
    least = min(cost.seconds for _, cost in qualified)
    fast = [(row, cost) for row, cost in qualified if cost.seconds <= least * (1 + NEARLY)]
    return min(fast, key=lambda pair: (pair[1].total, pair[1].seconds))[0]


class _Judge:
    """Compares settings with the reference, `none` with the configured Q, and with `none` of their own Q."""

    def __init__(self, seen: Seen, config: RunConfig, plan: Plan, network: Network, tolerance: float) -> None:
        self.seen, self.config, self.plan, self.network, self.tolerance = seen, config, plan, network, tolerance
        self.metric = headline(plan.loss)
        base = seen[Setting(NONE, plan.Q)]
        assert isinstance(base, Calibration)  # calibration does not go on without it
        self.base, self.window = base, min(plan.rounds_per_epoch, max(1, base.rounds // 2))
        self.first, self.last = base.losses[0], smoothed(base.losses, self.window)[-1]
        if not self.last < (1 - LEAST_DROP) * self.first:
            raise ConfigError(
                f"nothing to compare: in {base.rounds} rounds without compression the loss went from {self.first:.4g} "
                f"to {self.last:.4g}; calibrate longer with --epochs, or change step_size.eta"
            )

    def rows(self) -> tuple[Row, ...]:
        """The verdict on every setting that was seen, the reference first."""
        return tuple(self.row(setting) for setting in self.seen)

    def may_win(self, setting: Setting) -> bool:
        """Whether a compressor would be best if its bytes took no time; with the configured Q all are of interest."""
        none = self.row(Setting(NONE, setting.Q)).forecast
        if setting.Q == self.plan.Q or none is None:
            return none is not None
        known = best(self.rows()).forecast
        assert known is not None  # the best one has a forecast
        return none.compute + none.latency <= known.seconds * (1 + NEARLY)

    def row(self, setting: Setting) -> Row:
        """The verdict on a setting."""
        result, none = self.seen[setting], self.seen[Setting(NONE, setting.Q)]
        if isinstance(result, str):
            return Row(setting, "failed", error=result)
        if isinstance(none, str):
            return Row(setting, "none failed")
        least, needed = self._rounds(none), self._rounds(result)
        if least is None:
            return Row(setting, "too slow")
        learnt, gap = self._learnt(result) / self._learnt(none), self._gap(result, none)
        objection = ""
        if needed is None or learnt < 1 - self.tolerance:
            lag = self._lag(result, none)
            objection = "loss" if lag > MOST_LAG else ""
            needed = math.ceil(least * min(lag, MOST_LAG))
        if not objection and gap is not None and gap < -self.tolerance:
            objection = self.metric
        # A compressor that happens to be quicker than none is not credited with it.
        rounds, length = self._length(max(needed or 0, least))
        cost = forecast(result, replace(self.plan, Q=setting.Q, rounds=rounds), self.network, setting.candidate.falling)
        return Row(setting, objection, learnt, gap, cost, setting.keys(self.config) | length)

    def _learnt(self, result: Calibration) -> float:
        """How far the loss came down."""
        return self.first - smoothed(result.losses, self.window)[-1]

    def _rounds(self, result: Calibration) -> int | None:
        """Rounds to what the reference learnt, but for the tolerance."""
        level = self.first - (1 - self.tolerance) * (self.first - self.last)
        return rounds_to(level, smoothed(result.losses, self.window))

    def _lag(self, result: Calibration, none: Calibration) -> float:
        """How many times longer than none it took for what it learnt."""
        reached = smoothed(result.losses, self.window)[-1]
        rounds = rounds_to(reached, smoothed(none.losses, self.window))
        return result.rounds / rounds if rounds else math.inf

    def _gap(self, result: Calibration, none: Calibration) -> float | None:
        """How much better the validation metric is than that of none: of a quantity as a share, else in points."""
        ours, theirs = (one.validation.get(self.metric) for one in (result, none))
        if ours is None or theirs is None:
            return None
        return (theirs - ours) / theirs if self.metric in BETTER_LOW else ours - theirs

    def _length(self, needed: int) -> tuple[int, dict[str, int]]:
        """Rounds of the run, and the key that says so; a schedule that goes by rounds keeps its length."""
        reference = self._rounds(self.base)
        assert reference is not None  # it reaches itself
        if self.config.step_size.schedule != "fixed":
            needed = reference
        # A mean over a window lags half of it behind: where a run gets shorter, that remains as a margin.
        lag = self.window // 2 if needed > reference else 0
        longer, of = needed - lag, reference - lag
        if self.config.epochs is None:
            rounds = -(-self.plan.rounds * longer // of)
            return rounds, {"rounds": rounds}
        epochs = -(-self.config.epochs * longer // of)
        return epochs * self.plan.rounds_per_epoch, {"epochs": epochs}
