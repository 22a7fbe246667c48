"""Keeping a run within its budget: one level for all senders, set by the server round by round.

    bytes left  against  what the last round cost x rounds left + what the last evaluation cost x evaluations left
       less: one level up, all tolerances grow                more: one level down, until all are as without a budget

The server sees every frame of a round, so it alone counts. Only frames of rounds count, which are the same on every
runtime and after a restart; what is sent around the rounds is foreseen at the start and set aside. A party hears of a
new level with the server's answer, as one byte behind the packets of the model, and nothing where it stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cvfl.errors import ConfigError, DecodeError
from cvfl.protocol.plan import Plan
from cvfl.wire import Broadcast, Bytes, Folded, Message, encode

HIGHEST = 40
_FROM = 8  # the level from which on held-out rows are coarser, too
_TRAINING = 1 / 16  # of what held-out rows get: their tolerance is a thousandth, and a model needs its messages more
_AIM = 0.99  # of the budget: single messages can be much larger than others
_OVER = 1.05  # of the budget: more is never sent
_FALLS = 0.875  # from one level to the next
_FASTEST = 8  # levels up in a round; down it is one, since what was not sent is still to come
_MEMORY = 0.8  # of what earlier rounds cost
_HELD_OUT = 4.0  # times as much a row as an embedding: what an evaluation is thought to cost before the first one
_LEAST_FRAME = 8  # bytes


def least_ease(level: int) -> tuple[float, float]:
    """The least ease of messages in training, and that of held-out rows, at a level."""
    coarser = math.ldexp(1.5 if level % 2 else 1.0, (level - _FROM) // 2) if level else 0.0
    return coarser * _TRAINING, coarser


class Pace:
    """The server's controller; `around` are the bytes that are foreseen beside those of the rounds.

    What rounds and evaluations cost beside their frames is kept as it would be at level 0.
    """

    def __init__(self, plan: Plan, budget: int, around: int = 0) -> None:
        self._plan, self._budget, self._around = plan, budget, around
        self.level, self.spent = 0, 0
        self._round = self._evaluation = 0.0
        self._down = 0
        self._frames = plan.M * _LEAST_FRAME
        if (least := around + self._least(0)) > budget:
            raise ConfigError(
                f"budget: {budget:,} bytes, but {plan.rounds:,} rounds and {plan.evaluations:,} evaluations take "
                f"{least:,} without any content, {around:,} of them before and after the rounds"
            )

    def _due(self, t0: int) -> int:
        """Evaluations from round t0 on."""
        plan = self._plan
        return plan.evaluations - (t0 // plan.evaluate_every if plan.evaluate_every else 0)

    def _least(self, t0: int) -> int:
        """Bytes of all frames from round t0 on if nothing were in them."""
        return self._frames * (2 * (self._plan.rounds - t0) + self._due(t0))

    def next_level(self, t0: int, embeddings: Iterable[Message]) -> bool:
        """Choose the level of round t0, when all its embeddings are here; says whether it is a new one."""
        up = _size(embeddings)
        self.spent += up
        plan, before = self._plan, self.level
        cost = max(0, (self._down or up) + up - 2 * self._frames) / _falls(before)
        self._round = _MEMORY * self._round + (1 - _MEMORY) * cost if t0 else cost
        if not self._evaluation:
            self._evaluation = _HELD_OUT * up * plan.held_out_rows / max(1, len(plan.batch(t0)))
        left = _AIM * self._budget - self._around - self.spent - self._least(t0)
        if before and self._needed(t0, before - 1) <= left:
            self.level = before - 1
        while self._needed(t0, self.level) > left and self.level < min(HIGHEST, before + _FASTEST):
            self.level += 1
        return self.level != before

    def _needed(self, t0: int, level: int) -> float:
        """What the rest of the run takes at this level, beside its frames."""
        plan, due = self._plan, self._due(t0)
        training = self._round * (plan.rounds - t0 - 0.5) * _later(plan.rounds_per_epoch + t0, plan.rounds)
        shrink = _later(max(1, plan.evaluations - due), plan.evaluations)
        held_out = self._evaluation * due * shrink * shrink  # they shrink faster
        return training * _falls(level) + held_out * _falls(level - _FROM)

    def answered(self, t0: int, answers: Iterable[Message]) -> None:
        """Count the answers of round t0, before they leave; what would exceed the budget is not sent."""
        self._down = _size(answers)
        soon = self._round / 2 * _falls(self.level) if t0 < self._plan.rounds - 1 else 0.0
        if self._plan.evaluates_after(t0):
            soon += self._evaluation * _falls(self.level - _FROM)
        if self.spent + self._down + soon + self._around > _OVER * self._budget:
            raise ConfigError(
                f"budget: {self._budget:,} bytes are used up after {t0:,} of {self._plan.rounds:,} rounds; "
                "give more, or fewer rounds or evaluations"
            )
        self.spent += self._down

    def evaluated(self, messages: Iterable[Message]) -> None:
        """Count the embeddings of held-out rows."""
        size = _size(messages)
        self._evaluation = max(0, size - self._frames) / _falls(self.level - _FROM)
        self.spent += size

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs."""
        return {
            "level": self.level,
            "spent": self.spent,
            "round": self._round,
            "evaluation": self._evaluation,
            "down": self._down,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.level, self.spent, self._down = state["level"], state["spent"], state["down"]
        self._round, self._evaluation = state["round"], state["evaluation"]


def with_level(answer: Message, level: int) -> Message:
    """The answer with a level behind the packets of the model."""
    assert isinstance(answer, Broadcast | Folded)  # as all answers of Algorithm 1 are
    return replace(answer, model=(*answer.model, bytes([level])))


def split_level(packets: tuple[Bytes, ...], count: int) -> tuple[tuple[Bytes, ...], int | None]:
    """The packets of a model, and the level behind them if there is one."""
    if len(packets) != count + 1:
        return packets, None
    if len(packets[-1]) != 1 or packets[-1][0] > HIGHEST:
        raise DecodeError(f"a level of the budget that is none: {bytes(packets[-1])[:8].hex()}")
    return packets[:-1], packets[-1][0]


def _later(now: float, end: float) -> float:
    """What messages cost in the mean from now to the end beside those of now, if they shrink with a root of time."""
    return 2 / (1 + math.sqrt(max(1.0, end / now)))


def _falls(level: int) -> float:
    """The share of the bytes that is left at a level, about."""
    return math.prod([_FALLS] * level)


def _size(messages: Iterable[Message]) -> int:
    return sum(len(encode(message)) for message in messages)
