"""What the server sends in a round, and what a party makes of it: each mode one class, both ends side by side.

    mode        the server sends to party m                        what it is for the party
    Relayed     C_0(theta_0), and the others' packets unopened     the loss as a function of h_m
    Folded      its pieces of theta_0, and the sum over the others the same function, from less
    Summed      C_0(theta_0), and the sum over all, masked         the same, without its own part of the sum
    Gradients   the gradient in h_m                                the gradient itself

The first three are Algorithm 1: parties have the labels and find the gradient in h_m themselves. The last one is
Algorithm 2. Either way a party's step is the gradient in h_m, carried on to theta_m.
"""

from __future__ import annotations

from torch import Tensor, nn

from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.exchange.base import Exchange, Replies, Slope
from cvfl.protocol.exchange.gradients import Gradients
from cvfl.protocol.exchange.shared import Folded, Relayed, Summed
from cvfl.protocol.plan import Plan

__all__ = ["Exchange", "Folded", "Gradients", "Relayed", "Replies", "Slope", "Summed", "exchange"]


def exchange(plan: Plan, codecs: Codecs, model: nn.Module, m: int, labels: Tensor | None = None) -> Exchange:
    """The mode that the plan says, at the server (m = 0) or at party m."""
    if plan.algorithm == 2:
        return Gradients(plan, codecs, model, m, labels)
    return (Folded if plan.folding else Summed if plan.secure else Relayed)(plan, codecs, model, m, labels)
