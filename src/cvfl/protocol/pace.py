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
from typing import Any, TypeVar

from cvfl.errors import ConfigError, DecodeError
from cvfl.protocol.plan import Plan
from cvfl.wire import Broadcast, Bytes, Folded, Message, encode

HIGHEST = 32
_TRAINING = 1 / 16  # of what held-out rows get: their tolerance is a thousandth, and a model needs its messages more
_OVER = 1.05  # of the budget: more is never sent
_FALLS = 0.875  # from one level to the next
_MEMORY = 0.8  # of what earlier rounds cost
_HELD_OUT = 4.0  # times as much a row as an embedding: what an evaluation is thought to cost before the first one
_LEAST_FRAME = 8
Answer = TypeVar("Answer", Broadcast, Folded)


def least_ease(level: int) -> tuple[float, float]:
    """The least ease of messages in training, and that of held-out rows, at a level."""
    coarser = math.ldexp(1.5 if level % 2 else 1.0, level // 2) if level else 0.0
    return coarser * _TRAINING, coarser


class Pace:
    """The server's controller; `around` are the bytes that are foreseen beside those of the rounds."""

    def __init__(self, plan: Plan, budget: int, around: int = 0) -> None:
        self._plan, self._budget, self._around = plan, budget, around
        self.level, self.spent = 0, 0
        self._round = self._evaluation = 0.0
        self._down = 0
        least = around + plan.M * _LEAST_FRAME * (2 * plan.rounds + plan.evaluations)
        if least > budget:
            raise ConfigError(
                f"budget: {budget:,} bytes are too few for {plan.rounds:,} rounds with {plan.evaluations:,} evaluations, "
                f"which take {least:,} without any content; {around:,} of them are sent before and after the rounds"
            )

    def next_level(self, t0: int, embeddings: Iterable[Message]) -> bool:
        """Choose the level of round t0, when all its embeddings are here; says whether it is a new one."""
        up = _size(embeddings)
        self.spent += up
        plan, before = self._plan, self.level
        cost = ((self._down or up) + up) / _falls(before)
        self._round = _MEMORY * self._round + (1 - _MEMORY) * cost if t0 else cost
        if not self._evaluation:
            self._evaluation = _HELD_OUT * up * plan.held_out_rows / max(1, len(plan.batch(t0)))
        left = self._budget - self._around - self.spent
        due = plan.evaluations - (t0 // plan.evaluate_every if plan.evaluate_every else 0)
        needed = self._round * (plan.rounds - t0 - 0.5) + self._evaluation * due
        if needed * _falls(before) > left:
            self.level = min(HIGHEST, before + 1)
        elif before and needed * _falls(before - 1) <= left:
            self.level = before - 1
        return self.level != before

    def answered(self, t0: int, answers: Iterable[Message]) -> None:
        """Count the answers of round t0, before they leave; what would exceed the budget is not sent."""
        self._down = _size(answers)
        self.spent += self._down
        last = t0 == self._plan.rounds - 1
        soon = 0.0 if last else self._down
        if self._plan.evaluates_after(t0):
            soon += self._evaluation * _falls(self.level)
        if self.spent + soon + self._around > _OVER * self._budget:
            raise ConfigError(
                f"budget: {self._budget:,} bytes are used up after {t0:,} of {self._plan.rounds:,} rounds, with messages "
                "as coarse as they get; give more, or fewer rounds or evaluations"
            )

    def evaluated(self, messages: Iterable[Message]) -> None:
        """Count the embeddings of held-out rows."""
        size = _size(messages)
        self._evaluation = size / _falls(self.level)
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


def with_level(answer: Answer, level: int) -> Answer:
    """The answer with a level behind the packets of the model."""
    return replace(answer, model=(*answer.model, bytes([level])))


def split_level(packets: tuple[Bytes, ...], count: int) -> tuple[tuple[Bytes, ...], int | None]:
    """The packets of a model, and the level behind them if there is one."""
    if len(packets) != count + 1:
        return packets, None
    if len(packets[-1]) != 1 or packets[-1][0] > HIGHEST:
        raise DecodeError(f"a level of the budget that is none: {bytes(packets[-1])[:8].hex()}")
    return packets[:-1], packets[-1][0]


def _falls(level: int) -> float:
    """The share of the bytes that is left at a level, about."""
    return math.prod([_FALLS] * level)


def _size(messages: Iterable[Message]) -> int:
    return sum(len(encode(message)) for message in messages)
