"""What noise keeps private: (epsilon, delta) of what is released of a row, by Opacus' accountant of Rényi privacy.

The question is whether a row's columns at one party were these or any others. Clipped to a norm of C, its embedding
differs by at most 2 C between the two, so noise of `noise` C has a multiplier of noise / 2. All know which rows a batch
has, so every release of a row counts in full: of a training row when it is in a batch, of a held-out row when all are
evaluated. What the party's model learnt from the row, and shows in embeddings of others, is not counted.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict

from cvfl.errors import ConfigError
from cvfl.protocol import Plan

ORDERS = [
    *(1 + 2.0**-k for k in range(12, 3, -1)),
    *(1 + k / 10 for k in range(1, 100)),
    *range(12, 64),
    *(2**k for k in range(6, 15)),
]
"""Orders of Rényi privacy to choose the best of: Opacus' own, and further ones for much and for little noise."""


def check_accountant(noise: float | None) -> None:
    """Refuse noise where nothing can account for it, before a run rather than after it."""
    if noise is not None and importlib.util.find_spec("opacus") is None:
        raise ConfigError("privacy.noise needs: pip install 'cvfl[privacy]'")


class Spent(BaseModel):
    """How often a row was released, and epsilon of its columns at one party and at all of them together."""

    model_config = ConfigDict(frozen=True, strict=True)
    releases: int
    one_party: float
    all_parties: float


class Account(BaseModel):
    """What noise keeps private: the norm that rows are clipped to, noise in units of it, and what rows spent."""

    model_config = ConfigDict(frozen=True, strict=True)
    clip: float
    noise: float
    delta: float
    parties: int
    training: Spent
    held_out: Spent


def account(clip: float | None, noise: float | None, delta: float, plan: Plan, rounds: int) -> Account | None:
    """The account after so many rounds; None without noise, which is there only where rows are clipped."""
    if noise is None or clip is None:
        return None
    return _account(clip, noise, delta, plan.M, training_releases(plan, rounds), evaluations(plan, rounds))


def composed(accounts: Sequence[Account]) -> Account:
    """The account of several runs on the same rows with the same noise: whatever any of them released counts."""
    first = accounts[0]
    training, held_out = (sum(getattr(one, kind).releases for one in accounts) for kind in ("training", "held_out"))
    return _account(first.clip, first.noise, first.delta, first.parties, training, held_out)


def _account(clip: float, noise: float, delta: float, parties: int, training: int, held_out: int) -> Account:
    spent = [
        Spent(
            releases=releases,
            one_party=epsilon(noise, releases, delta),
            all_parties=epsilon(noise, releases * parties, delta),
        )
        for releases in (training, held_out)
    ]
    return Account(clip=clip, noise=noise, delta=delta, parties=parties, training=spent[0], held_out=spent[1])


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
    with warnings.catch_warnings():
        # The bound holds for every order; the first and the last are far out enough.
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        return max(0.0, float(accountant.get_epsilon(delta, alphas=ORDERS)))
