"""From a short run to the whole one: its bytes, its seconds on a network, and how many rounds it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cvfl import theory
from cvfl.advise.trials import Calibration
from cvfl.protocol import Plan

FALLING = 0.45
"""Messages of differences shrink like epoch^-0.45: a fit to four federations; on digits it is now 29% too much."""


@dataclass(frozen=True)
class Network:
    """Bits a second each way at the server's link, and seconds that a message is on its way."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Forecast:
    """What a run will cost: bytes by what they are for, and seconds by what they go into."""

    rounds: int
    sent: theory.Traffic
    """Of training frames."""
    evaluation: float
    alignment: float
    setup: float
    compute: float
    transfer: float
    latency: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.sent.total + self.evaluation + self.alignment + self.setup

    @property
    def purposes(self) -> dict[str, float]:
        """All bytes by what they are for."""
        named = {"evaluation": self.evaluation, "alignment": self.alignment, "setup": self.setup}
        return {"training": self.sent.total} | named

    @property
    def seconds(self) -> float:
        """From the first round to the last."""
        return self.compute + self.transfer + self.latency


def forecast(seen: Calibration, plan: Plan, network: Network, falling: bool = False) -> Forecast:
    """The cost of a whole plan after its first rounds were seen; seconds are those of its rounds and evaluations."""
    R, Q = plan.rounds, plan.Q
    sent = theory.Traffic(run_bytes(seen.up, plan, falling), run_bytes(seen.down, plan, falling))
    evaluation = _evaluation_bytes(seen.evaluations, plan.evaluations)
    return Forecast(
        rounds=R,
        sent=sent,
        evaluation=evaluation,
        alignment=seen.alignment,
        setup=seen.setup + seen.told * plan.evaluations,
        compute=theory.latency(R, Q, seen.seconds / Q, 0.0),
        transfer=theory.transfer(theory.Traffic(sent.up + evaluation, sent.down), network.bandwidth),
        latency=theory.latency(R, Q, 0.0, 2 * network.latency),
    )


def run_bytes(seen: Sequence[int], plan: Plan, falling: bool = False) -> float:
    """Bytes of all rounds, of which the first ones were seen: later epochs are like the last one seen, or fall from it.

    The first is exact when a round's bytes depend on the size of its batch alone.
    """
    epoch, total = plan.rounds_per_epoch, float(sum(seen[: plan.rounds]))
    for place in range(epoch):
        epochs, known = (len(range(place, count, epoch)) for count in (plan.rounds, min(len(seen), plan.rounds)))
        later = range(known + 1, epochs + 1)
        shares = [(max(1, known) / e) ** FALLING for e in later] if falling else [1.0] * len(later)
        if shares:
            total += sum(shares) * _bytes_at(place, seen, plan)
    return total


def _bytes_at(place: int, seen: Sequence[int], plan: Plan) -> float:
    """A round at this place of an epoch: as last seen there, else like the last round seen, by its number of rows."""
    if at_place := seen[place :: plan.rounds_per_epoch]:
        return at_place[-1]
    return seen[-1] * min(plan.batch_size, plan.rows - place * plan.batch_size) / plan.batch_size


def _evaluation_bytes(seen: Sequence[int], count: int) -> int:
    """Bytes of so many evaluations, of which the first ones were seen: later ones are like the last one seen."""
    return sum(seen[:count]) + max(0, count - len(seen)) * (seen[-1] if seen else 0)


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """After each round, the mean loss of the last rounds: over an epoch every row counts once, easy or hard."""
    parts = (losses[max(0, r - window) : r] for r in range(1, len(losses) + 1))
    return [sum(part) / len(part) for part in parts]


def rounds_to(level: float, losses: Sequence[float]) -> int | None:
    """Rounds until the loss is at this level and stays there, or None if it does not."""
    above = [r for r, loss in enumerate(losses, start=1) if not loss <= level]
    rounds = (above[-1] if above else 0) + 1
    return rounds if rounds <= len(losses) else None
