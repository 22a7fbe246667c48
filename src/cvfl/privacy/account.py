"""What noise keeps private: (epsilon, delta) of what is released of a row, by Opacus' accountant of Rényi privacy.

The question is whether a row's columns at one party were these or any others. Clipped to a norm of C, its embedding
differs by at most 2 C between the two, so noise of `noise` C has a multiplier of noise / 2. All know which rows a batch
has, so every release of a row counts in full: of a training row when it is in a batch, of a held-out row when all are
evaluated. What the party's model learnt from the row, and shows in embeddings of others, is not counted.

Where parties share their noise, what can be read is a sum, and the account is of its Skellam noise: of that of all
parties against the server alone, and of less against those who know the noise of some.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from pydantic import BaseModel, ConfigDict

from cvfl.errors import ConfigError
from cvfl.privacy.noise_of_sum import Shared
from cvfl.protocol import Plan

ORDERS = [
    *(1 + 2.0**-k for k in range(12, 3, -1)),
    *(1 + k / 10 for k in range(1, 100)),
    *range(12, 64),
    *(2**k for k in range(6, 15)),
]
"""Orders of Rényi privacy to choose the best of: Opacus' own, and further ones for much and for little noise."""
WHOLE_ORDERS = [*range(2, 64), *(2**k for k in range(6, 15))]
"""Those of Skellam noise, whose bound is for whole ones; between two of them is none that would be better."""


def check_accountant(noise: float | None) -> None:
    """Refuse noise where nothing can account for it, before a run rather than after it."""
    if noise is not None and importlib.util.find_spec("opacus") is None:
        raise ConfigError("privacy.noise needs: pip install 'cvfl[privacy]'")


class Spent(BaseModel):
    """How often a row was released, and epsilon of its columns at one party and at all of them together.

    Of a party's own noise `one_party` holds against all others together. Where parties share their noise, it is against
    any one other party, and the server with it: a party knows its own noise. It is less against the server alone, and
    more against all others together.
    """

    model_config = ConfigDict(frozen=True, strict=True)
    releases: int
    one_party: float
    all_parties: float
    against_server: float | None = None
    """With noise that is shared: of the columns at one party, against the server alone."""
    against_others: float | None = None
    """The same against the server and all other parties, who tell it their noise."""


class Account(BaseModel):
    """What noise keeps private: the norm that rows are clipped to, noise in units of it, and what rows spent."""

    model_config = ConfigDict(frozen=True, strict=True)
    clip: float
    noise: float
    delta: float
    parties: int
    training: Spent
    held_out: Spent
    shared: Shared | None = None
    """The noise of all parties together, where they share it: `noise` is that of the sum then."""

    @property
    def against(self) -> str:
        """Whom epsilon at one party holds against, which is to be said beside it."""
        return "any one other party" if self.shared else "all others together"


def account(
    clip: float | None, noise: float | None, delta: float, plan: Plan, rounds: int, shared: Shared | None = None
) -> Account | None:
    """The account after so many rounds; None without noise, which is there only where rows are clipped."""
    if noise is None or clip is None:
        return None
    releases = training_releases(plan, rounds), evaluations(plan, rounds)
    return _account(clip, noise, delta, plan.M, [releases], [shared] if shared else [])


def composed(accounts: Sequence[Account]) -> Account:
    """The account of several runs on the same rows with the same noise: whatever any of them released counts."""
    first = accounts[0]
    releases = [(one.training.releases, one.held_out.releases) for one in accounts]
    shared = [one.shared for one in accounts if one.shared is not None]
    return _account(first.clip, first.noise, first.delta, first.parties, releases, shared)


def _account(
    clip: float,
    noise: float,
    delta: float,
    parties: int,
    releases: Sequence[tuple[int, int]],
    shared: Sequence[Shared],
) -> Account:
    """That of runs with so many releases of training and held-out rows each, and what noise is shared in them."""
    spent = []
    for times in zip(*releases, strict=True):
        if shared:
            spent.append(spent_of_shared(list(zip(shared, times, strict=True)), delta))
        else:
            one, everywhere = (epsilon(noise, M * sum(times), delta) for M in (1, parties))
            spent.append(Spent(releases=sum(times), one_party=one, all_parties=everywhere))
    training, held_out = spent
    told = {"shared": shared[0]} if shared else {}  # records of other noise have no such key
    return Account(clip=clip, noise=noise, delta=delta, parties=parties, training=training, held_out=held_out, **told)


def spent_of_shared(released: Sequence[tuple[Shared, int]], delta: float) -> Spent:
    """What the releases of a row spend of noise that the parties share: how often with which."""
    M = released[0][0].parties
    return Spent(
        releases=sum(times for _, times in released),
        one_party=shared_epsilon(released, delta, known=1),
        all_parties=shared_epsilon(released, delta, moved=M),
        against_server=shared_epsilon(released, delta),
        against_others=shared_epsilon(released, delta, known=M - 1),
    )


def training_releases(plan: Plan, rounds: int) -> int:
    """How often the training row that came most often was sent.

    A party answers a round with its next embedding. If the run was stopped, one more round may have been under way.
    """
    visits = torch.zeros(plan.rows, dtype=torch.int64)
    for t0 in range(min(rounds + 2, plan.rounds)):
        visits[plan.batch(t0)] += 1
    return int(visits.max())


def evaluations(plan: Plan, rounds: int) -> int:
    """How often the held-out rows were sent, with those of a round that may have been under way."""
    return sum(plan.evaluates_after(t0) for t0 in range(min(rounds + 1, plan.rounds)))


def epsilon(noise: float, releases: int, delta: float) -> float:
    """Epsilon of a row after so many releases with noise of `noise` times the bound of its norm."""
    from opacus.accountants import RDPAccountant  # noqa: PLC0415  an extra, and slow to load

    accountant = RDPAccountant()
    for _ in range(releases):
        accountant.step(noise_multiplier=noise / 2, sample_rate=1.0)
    with _orders_far_out():
        return max(0.0, float(accountant.get_epsilon(delta, alphas=ORDERS)))


def shared_epsilon(released: Sequence[tuple[Shared, int]], delta: float, moved: int = 1, known: int = 0) -> float:
    """Epsilon of a row's columns at `moved` parties, after its releases, where the noise of `known` is known."""
    from opacus.accountants.analysis import rdp  # noqa: PLC0415  as above

    if not any(times for _, times in released):
        return 0.0
    spent = [
        sum(times * _divergence(shared, order, moved, known) for shared, times in released) for order in WHOLE_ORDERS
    ]
    with _orders_far_out():
        found, _ = rdp.get_privacy_spent(orders=WHOLE_ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(found))


def _divergence(shared: Shared, order: int, moved: int, known: int) -> float:
    """Of one release, when the columns at `moved` parties are others."""
    # Two versions of a row differ by twice its largest norm at each party; whole numbers are at most their squares.
    squared = (2 * moved) ** 2 * shared.length
    absolute = min(math.sqrt(shared.numbers * squared), squared)
    left = shared.variance * (shared.parties - known) / shared.parties
    return skellam_divergence(order, squared, absolute, left)


def skellam_divergence(order: int, squared: float, absolute: float, variance: float) -> float:
    """Rényi divergence of whole numbers with Skellam noise from others with the same noise: it is at most this.

    They differ by `squared` in the sum of squares, and by `absolute` in that of magnitudes. Agarwal, Kairouz and Liu,
    The Skellam mechanism (2021), for whole orders from 2 on; the first term is that of Gaussian noise.
    """
    more = ((2 * order - 1) * squared + 6 * absolute) / (4 * variance**2)
    return order * squared / (2 * variance) + min(more, 3 * absolute / (2 * variance))


@contextmanager
def _orders_far_out() -> Iterator[None]:
    """The bound holds for every order; the first and the last are far out enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        yield
