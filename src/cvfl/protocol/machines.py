"""What a runtime drives: message machines in the place of a party and of the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import nn

from cvfl.protocol.coding.codec import Measured
from cvfl.protocol.coding.follow import Certificate
from cvfl.protocol.evaluation import Evaluated
from cvfl.protocol.plan import Plan
from cvfl.wire import Message


class Machine(Protocol):
    """What both have: a place in the plan, and models that are here when the run is over."""

    @property
    def plan(self) -> Plan:
        """The plan that all roles share."""

    @property
    def t0(self) -> int:
        """The round that comes next, or that is under way."""

    @property
    def measured(self) -> Measured | None:
        """The error of what was sent last, if it was measured."""

    @property
    def certified(self) -> Certificate | None:
        """How well the gradient that its message of the last round caused agrees with the exact one, where told."""

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""

    @property
    def settled(self) -> bool:
        """Whether the state is one between two rounds, so that it can be kept."""

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models that are trained here, by role."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that was kept."""


class PartyMachine(Machine, Protocol):
    """In a party's place."""

    @property
    def m(self) -> int:
        """Which party."""

    def start(self) -> Iterable[Message]:
        """The first messages, and the first after a restart."""

    def receive(self, message: Message) -> Iterable[Message]:
        """The answers to a message, as they are ready."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs."""


class ServerMachine(Machine, Protocol):
    """In the server's place."""

    @property
    def loss(self) -> float:
        """The training loss of the last round."""

    @property
    def evaluation(self) -> Evaluated | None:
        """The last evaluation."""

    @property
    def awaited(self) -> set[int]:
        """The parties of whom a message is missing for the round to go on, as long as it is not done."""

    def receive(self, message: Message) -> list[tuple[int, Message]]:
        """Take in a party's message; the replies are (party, message)."""

    def train(self) -> None:
        """The own steps of a round, when its replies are on their way."""

    def settled_state(self) -> dict[str, Any]:
        """Everything that a restart needs between two rounds; what came of the next round already comes again."""
