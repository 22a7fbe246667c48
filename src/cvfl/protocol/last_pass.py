"""The last pass: all rows once more when the rounds are over, for a holder of labels who fits its own model to them.

    party j   Evaluation(T + k), sealed: batch k of its rows ──▶ server ──▶ the holder

T is how many rounds there were. The server passes them on, each once and in their order, and reads none.
"""

from __future__ import annotations

from cvfl.protocol.plan import Plan
from cvfl.protocol.rows import batches_of
from cvfl.wire import Passed
from cvfl.wire.message import EVALUATION


def all_rows(plan: Plan) -> int:
    """Training rows, and those that are held out."""
    return plan.rows + plan.held_out_rows


def batches(plan: Plan) -> int:
    """How many messages each party but the holder sends."""
    return batches_of(all_rows(plan)) if plan.private_holder else 0


class PassingOn:
    """What the server has passed on so far; what comes in a new session begins again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._passed: dict[int, int] = {}

    def takes(self, message: Passed, last: int) -> bool:
        """Whether this one is next, of a run that is over after `last` rounds; it counts as passed on."""
        m, known = message.m, self._passed.get(message.m, 0)
        way = m != message.to == self._plan.private_holder and message.kind == EVALUATION
        if not (way and message.t0 == last + known and known < batches(self._plan)):
            return False
        self._passed[m] = known + 1
        return True
