"""A mode of exchange at one role: what all modes have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cvfl.protocol.coding.codec import Codec, Measured, restore, states_of
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.coding.follow import Certificate
from cvfl.protocol.coding.model_codec import ModelCodec
from cvfl.protocol.fusion import held
from cvfl.protocol.learning.layers import Forward
from cvfl.protocol.learning.objective import Objective
from cvfl.protocol.plan import Plan
from cvfl.protocol.watch import Watch
from cvfl.types import SERVER
from cvfl.wire import Bytes, Message

Packets = Mapping[int, Bytes]
Replies = list[tuple[int, Message]]
Step = Callable[[list[Tensor], int], None]
"""Local step q of theta_0 on phi."""


@dataclass(frozen=True)
class Slope:
    """How the loss of a round changes with h_m, at one party."""

    at: Callable[[Tensor, int], tuple[Tensor, Tensor | float]]
    """(h_m, local iteration q) -> the gradient of the loss in h_m, and the loss."""
    outputs: Callable[[Tensor], Tensor] | None = None
    """theta_0 of the batch as a function of h_m, where the party knows it."""


class Exchange(ABC):
    """A mode of exchange at one role.

    `model` is theta_0: at the server the one that is trained, at party m a copy that takes what the server tells.
    `labels` are those of the training rows, where a role has them.
    """

    takes: ClassVar[type[Message]]
    """What a party gets in this mode."""

    def __init__(self, plan: Plan, codecs: Codecs, model: nn.Module, m: int, labels: Tensor | None = None) -> None:
        self.plan, self.codecs, self.model, self.m, self.labels = plan, codecs, model, m, labels
        self.objective = Objective.of(plan.loss, plan.class_weight, labels, plan.randomised)
        self.measured: Measured | None = None
        self.certified: Certificate | None = None
        """Of what the server sent last, where one is computed and an evaluation follows: the worst of all parties."""
        self.watch = Watch()
        """How large what is read here is, and at the server what it sends."""
        self.level: int | None = None
        """The level of the budget that the server told in this round, at a party."""
        blank = [torch.zeros(2, width, dtype=plan.dtype, device=plan.device) for width in plan.widths]
        self.forward = Forward(model, plan.seed, m, blank)

    # The server's end

    def gathered(self, packets: Packets, t0: int, held_out: bool = False) -> Packets:
        """The parties' packets in the form in which they can be read: masked ones as one, their sum."""
        total = self.codecs.held_out_total if held_out else self.codecs.total
        if total is None:
            return packets
        return {SERVER: total.add(packets, t0, self._shape(1, t0, held_out), self.plan.dtype)}

    def read(self, packets: Packets, t0: int, held_out: bool = False) -> list[Tensor]:
        """phi: the embeddings as everybody decodes them, or their sum alone."""
        plan = self.plan
        total = self.codecs.held_out_total if held_out else self.codecs.total
        if total is not None:
            return [total.decode(packets[SERVER], t0, self._shape(1, t0, held_out), plan.dtype).to(plan.device)]
        if held_out:
            shapes = {m: self._shape(m, t0, held_out) for m in self._parties}
            return [self._decoded(self.codecs.evaluations[m], packets[m], t0, shapes[m]) for m in self._parties]
        return [self._embedding(m, packets[m], t0) for m in self._parties]

    def roots(self, t0: int) -> list[Tensor]:
        """The roots of the parties' noise as they were last told; nothing as long as not all of them were."""
        if not self.plan.noise_told(t0):
            return []
        return [self.recall(m, self.plan.rows + torch.arange(self.plan.widths[m - 1]), t0) for m in self._parties]

    def recall(self, m: int, rows: Tensor, t0: int) -> Tensor:
        """The embeddings of party m for these rows as they were last sent."""
        return self.codecs.embeddings[m].recall(rows, t0, self.plan.dtype).to(self.plan.device)

    @abstractmethod
    def replies(self, t0: int, packets: Packets, phi: list[Tensor], step: Step) -> Replies:
        """A message for every party, from what was gathered and read."""

    def outputs(self, phi: Sequence[Tensor] | Tensor) -> Tensor:
        """theta_0 of the embeddings."""
        outputs: Tensor = self.model(phi)
        return outputs

    def observe(self, loss: float) -> None:
        """Let the compressors of what the server sends learn from its last step."""
        return

    # A party's end

    @abstractmethod
    def slope(self, message: Message, own: Callable[[], Tensor]) -> Slope:
        """How the loss changes with h_m, by a message of the kind that the mode takes.

        `own` gives the embedding that the party sent in this round, as everyone else has it.
        """

    def told_of(self, rows: Tensor, t0: int) -> Callable[[Tensor], Tensor] | None:
        """theta_0 of training rows as a function of h_m, where a party has it."""
        return None

    def alone(self, rows: int) -> Callable[[Tensor], Tensor]:
        """theta_0 as a function of h_m when nothing is known of the others."""
        blank = [torch.zeros(rows, width, dtype=self.plan.dtype, device=self.plan.device) for width in self.plan.widths]
        return held(self.model, blank, self.m - 1)

    # Both

    def state_dict(self, t0: int) -> dict[str, Any]:
        """What the ends of compressors have learnt here before round t0."""
        return states_of(self._passing(), t0)

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        restore(self._passing(), states)

    def _passing(self) -> dict[str, Codec | ModelCodec]:
        """The codecs whose packets pass this role, by name."""
        if self.m == SERVER:
            passing: dict[str, Codec | ModelCodec] = {f"model {m}": self.codecs.models[m] for m in self._models()}
            for m in self._parties:
                passing |= {f"embedding {m}": self.codecs.embeddings[m], f"reply {m}": self.codecs.replies[m]}
                passing |= {f"evaluation {m}": self.codecs.evaluations[m]}
            return passing
        own: dict[str, Codec | ModelCodec] = {"model": self.codecs.models[self.m]}
        own |= {"reply": self.codecs.replies[self.m], "evaluation": self.codecs.evaluations[self.m]}
        return own | {f"embedding {m}": self.codecs.embeddings[m] for m in self._heard()}

    def _models(self) -> Sequence[int]:
        """The parties whose pieces of theta_0 have a codec of their own; all share that of party 1 otherwise."""
        return (1,)

    def _heard(self) -> Sequence[int]:
        """The parties whose embeddings party m decodes, its own among them."""
        return (self.m,)

    @property
    def _parties(self) -> range:
        return range(1, self.plan.M + 1)

    def _shape(self, m: int, t0: int, held_out: bool = False) -> tuple[int, int]:
        rows = self.plan.held_out_rows if held_out else len(self.plan.sent_rows(m, t0))
        return rows, self.plan.widths[m - 1]

    def _embedding(self, m: int, packet: Bytes, t0: int) -> Tensor:
        """h_m of the batch of round t0."""
        return self._decoded(self.codecs.embeddings[m], packet, t0, self._shape(m, t0))[: len(self.plan.batch(t0))]

    def _decoded(self, codec: Codec, packet: Bytes, t0: int, shape: tuple[int, ...]) -> Tensor:
        return codec.decode(packet, t0, shape, self.plan.dtype).to(self.plan.device)
