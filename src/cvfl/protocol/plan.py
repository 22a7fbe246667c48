"""What every role of a federation agrees on before the first message."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.errors import ConfigError
from cvfl.protocol.learning.decision import Decision
from cvfl.protocol.learning.losses import Loss
from cvfl.protocol.learning.objective import ClassWeight
from cvfl.protocol.learning.optimizer import Optimizer, StepSize
from cvfl.protocol.learning.randomised import Randomised
from cvfl.rng import ABSENCE, BATCH, DRAW, LOCAL, stream

_TOLD = 8
"""Rows of the root of a party's noise that go with a message."""


@dataclass(frozen=True)
class Plan:
    """The facts that all roles share; nothing of it travels during training."""

    seed: int
    rounds: int
    Q: int
    batch_size: int
    rows: int
    test_rows: int
    widths: tuple[int, ...]
    loss: Loss
    step_size: StepSize
    optimizer: Optimizer = field(default_factory=Optimizer)
    algorithm: int = 1
    sum_width: int = 0
    secure: bool = False
    cached: bool = False
    evaluate_every: int = 0
    validation_rows: int = 0
    patience: int = 0
    """Evaluations without an improvement of `improving` after which the run is over; 0: it has all its rounds."""
    improving: str = ""
    class_weight: ClassWeight | None = None
    decision: Decision = field(default_factory=Decision)
    """How the role that scores makes probabilities and decisions of outputs."""
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    clip: float | None = None
    budget: int | None = None
    """Bytes that the whole run may send."""
    quiet: bool = False
    """Whether embeddings are sent without dropout, and the server draws noise like it: see `learning.spread`."""
    absence: float = 0.0
    """How likely a party is away for a row of a local step, at random, so that models learn to do without it."""
    partial: bool = False
    """Whether some parties may not hold some rows."""
    reconstruction_penalty: float | None = None
    """How strongly a party's model is kept from showing the party's columns; see `learning.guard`."""
    randomised: Randomised | None = None
    """How the holder of the labels randomised all that are told, if it did."""
    private_holder: int = 0
    """The party that fits a model of its own to the true labels when the rounds are over, if one does."""

    def __post_init__(self) -> None:
        if self.algorithm == 2 and self.folding:
            raise ConfigError("folding is for algorithm 1; algorithm 2 sends no embeddings to parties")
        if self.cached and (self.algorithm == 2 or self.secure):
            raise ConfigError("cached rows are for algorithm 1 with embeddings, or sums over the others, that are read")
        if self.quiet and not self.cached:
            raise ConfigError("quiet messages need cached rows: the server takes noise from what it was told before")
        if self.secure and (self.folding or len(set(self.widths)) > 1 or self.M < 2):
            raise ConfigError("secure aggregation adds up embeddings of one width, of two parties or more, unfolded")
        if self.patience and not self.validation_rows:
            raise ConfigError("stopping needs validation rows; give data.validation_share")
        if self.stands_in and (self.secure or (self.algorithm == 1 and not self.folding)):
            raise ConfigError(
                "absence needs sums over the others (folding, which 'auto' does where the server model starts with a "
                "linear layer or a sum), or algorithm 2"
            )
        if self.stands_in and self.M < 2:
            raise ConfigError("absence needs two parties or more: without the only one nothing is known")
        if not 1 <= self.batch_size <= self.rows:
            raise ConfigError(f"batch_size is {self.batch_size} but there are {self.rows} training rows")

    @property
    def folding(self) -> bool:
        """Whether parties get sums over the others, `sum_width` wide, instead of their embeddings."""
        return self.sum_width > 0

    @property
    def sloped(self) -> bool:
        """Whether parties of Algorithm 2, which step on after the first step, are told how the gradient changes.

        Of the squared error alone: for cross-entropy W_m and the gradient together are the labels.
        """
        return self.algorithm == 2 and self.Q > 1 and self.loss is Loss.SQUARED and not self.stands_in

    @property
    def stands_in(self) -> bool:
        """Whether the server model has something that stands for the embedding of a party that is away."""
        return self.absence > 0 or self.partial

    @property
    def M(self) -> int:
        """Number of parties."""
        return len(self.widths)

    def columns(self, m: int) -> slice:
        """Where h_m is among all embeddings side by side."""
        start = sum(self.widths[: m - 1])
        return slice(start, start + self.widths[m - 1])

    @property
    def held_out_rows(self) -> int:
        """Rows that no step sees: validation, then test."""
        return self.validation_rows + self.test_rows

    @property
    def rounds_per_epoch(self) -> int:
        """Batches that cover all training rows once; the last one may be smaller."""
        return -(-self.rows // self.batch_size)

    @property
    def evaluations(self) -> int:
        """How often the held-out rows are evaluated; the last round is, whether or not its turn has come."""
        if self.held_out_rows == 0:
            return 0
        return -(-self.rounds // self.evaluate_every) if self.evaluate_every else 1

    def batch(self, t0: int) -> Tensor:
        """Rows of round t0's batch, the same at every role: each epoch is a new order of all rows."""
        epoch, place = divmod(t0, self.rounds_per_epoch)
        order = _order(self.seed, epoch, self.rows)
        return order[place * self.batch_size : (place + 1) * self.batch_size].long()

    def sent_rows(self, m: int, t0: int) -> Tensor:
        """Rows of party m's message of round t0: the batch, and of quiet ones, after all others, some of its noise."""
        if not self.quiet:
            return self.batch(t0)
        return torch.cat([self.batch(t0), self.rows + self.noise_rows(m, t0)])

    def noise_rows(self, m: int, t0: int) -> Tensor:
        """Which rows of the root of its noise party m tells in round t0: a few, in turn."""
        P = self.widths[m - 1]
        return (t0 * _TOLD + torch.arange(min(_TOLD, P))) % P

    def noise_told(self, t0: int) -> bool:
        """Whether all parties have told all rows of their roots by round t0."""
        return self.quiet and (t0 + 1) * _TOLD >= max(self.widths)

    def dropped(self, t0: int, q: int, rows: int) -> Tensor:
        """Which parties are away for which rows of local step q at the server, M x rows: never all of them."""
        drawn = stream(self.seed, ABSENCE, t0, q).uniform(self.M * rows)
        away = torch.from_numpy(drawn < self.absence).reshape(self.M, rows)
        return (away & ~away.all(0)).to(self.device)

    def left_out(self, rows: Tensor) -> Tensor:
        """Which parties are away in what parties are told of these training rows, M x rows: always the same ones."""
        return _left_out(self.seed, self.M, self.rows, self.absence)[:, rows].to(self.device)

    def local_rows(self, t0: int, q: int) -> Tensor:
        """Rows of local step q, the same at every role: the batch, or with `cached` from the second step on others.

        They are drawn, with replacement, from all rows that were sent so far.
        """
        if q == 0 or not self.cached:
            return self.batch(t0)
        sent = self.sent(t0)
        return sent[_places(self.seed, t0, q, len(sent), self.batch_size)].long()

    def sent(self, t0: int) -> Tensor:
        """Rows that were in a batch by round t0, in the order in which they first were."""
        return _order(self.seed, 0, self.rows)[: (t0 + 1) * self.batch_size]

    def uniform(self, t0: int, m: int) -> Tensor:
        """A number uniform over [0, 1) for every row of round t0's batch, which belong to role m."""
        return torch.from_numpy(stream(self.seed, DRAW, t0, m).uniform(len(self.batch(t0)))).to(self.device)

    def eta(self, t0: int) -> float:
        """Step size of round t0."""
        return self.step_size.at(t0, self.rounds, self.Q)

    def evaluates_after(self, t0: int) -> bool:
        """Whether the held-out rows are evaluated after round t0: every few rounds, and at the end."""
        if self.held_out_rows == 0:
            return False
        return t0 == self.rounds - 1 or (self.evaluate_every > 0 and (t0 + 1) % self.evaluate_every == 0)


@lru_cache(maxsize=32)
def _places(seed: int, t0: int, q: int, sent: int, count: int) -> Tensor:
    """Places among the first rows that were sent, at random."""
    words = stream(seed, LOCAL, t0, q).words(count) % np.uint64(sent)
    return torch.from_numpy(words.astype(np.int64))


@lru_cache(maxsize=2)
def _left_out(seed: int, M: int, rows: int, rate: float) -> Tensor:
    away = torch.from_numpy(stream(seed, ABSENCE).uniform(M * rows) < rate).reshape(M, rows)
    return away & ~away.all(0)


@lru_cache(maxsize=3)  # at the end of an epoch the next one's, too, and with cached rows always the first
def _order(seed: int, epoch: int, rows: int) -> Tensor:
    return _compact(stream(seed, BATCH, epoch).permutation(rows))


def _compact(order: NDArray[np.int64]) -> Tensor:
    """Several orders of all rows are kept: at half the size, if their numbers allow it."""
    return torch.from_numpy(order.astype(np.int32) if len(order) < 1 << 31 else order)
