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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cvfl import wire
from cvfl.compress import Identity
from cvfl.errors import DataError, LocalProtocolError, RemoteProtocolError
from cvfl.protocol.codec import Codec, Measured, restore, states_of
from cvfl.protocol.codecs import Codecs
from cvfl.protocol.follow import Certificate, certify, lesson, worst
from cvfl.protocol.fusion import Foldable, held, slope_of
from cvfl.protocol.learning.layers import Forward
from cvfl.protocol.learning.objective import Objective
from cvfl.protocol.model_codec import ModelCodec
from cvfl.protocol.pace import split_level
from cvfl.protocol.plan import Plan
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
        self.objective = Objective.of(plan.loss, plan.class_weight, labels)
        self.measured: Measured | None = None
        self.certified: Certificate | None = None
        """Of what the server sent last, where one is computed and an evaluation follows: the worst of all parties."""
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
        plan, codecs = self.plan, self.codecs.evaluations if held_out else self.codecs.embeddings
        total = self.codecs.held_out_total if held_out else self.codecs.total
        if total is not None:
            return [total.decode(packets[SERVER], t0, self._shape(1, t0, held_out), plan.dtype).to(plan.device)]
        return [self._decoded(codecs[m], packets[m], t0, self._shape(m, t0, held_out)) for m in self._parties]

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
        rows = self.plan.held_out_rows if held_out else len(self.plan.batch(t0))
        return rows, self.plan.widths[m - 1]

    def _decoded(self, codec: Codec, packet: Bytes, t0: int, shape: tuple[int, ...]) -> Tensor:
        return codec.decode(packet, t0, shape, self.plan.dtype).to(self.plan.device)


class _Shared(Exchange):
    """Algorithm 1: a party has the labels, and theta_0 as a function of its own embedding."""

    def told_of(self, rows: Tensor, t0: int) -> Callable[[Tensor], Tensor] | None:
        """theta_0 of training rows as a function of h_m, by what was last told of them, if that is kept."""
        return self.recalled(rows, t0) if self.knows else None

    def slope(self, message: Message, own: Callable[[], Tensor]) -> Slope:
        """Through theta_0."""
        if self.labels is None:
            raise DataError("algorithm 1 needs the training labels at every party")
        labels = self.labels
        told, t0, plan = self.unpacked(self._levelled(message), own), message.t0, self.plan

        def at(h: Tensor, q: int) -> tuple[Tensor, Tensor]:
            rows, leaf = plan.local_rows(t0, q), h.detach().requires_grad_()
            fuse = self.recalled(rows, t0) if plan.cached and q > 0 else told
            loss = self.objective(self.forward.through(fuse, leaf, t0, q), labels[rows])
            return torch.autograd.grad(loss, leaf)[0], loss.detach()

        return Slope(at, lambda h: self.forward.through(told, h, t0, 0))

    @abstractmethod
    def unpacked(self, message: Message, own: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
        """theta_0 as a function of h_m, everything else as the others decode it, too."""

    @property
    def knows(self) -> bool:
        """Whether `recalled` can tell of rows that were sent."""
        return False

    def recalled(self, rows: Tensor, t0: int) -> Callable[[Tensor], Tensor]:
        """The same for other rows, from what was last told of them."""
        raise LocalProtocolError("what was told of other rows is not kept in this mode")

    def _levelled(self, message: Message) -> Message:
        """The message without the level that may come with it where there is a budget."""
        if self.plan.budget is None or not isinstance(message, wire.Broadcast | wire.Folded):
            return message
        model, self.level = split_level(message.model, self.codecs.models[self.m].count)
        return replace(message, model=model)

    def _whole_model(self, t0: int) -> tuple[bytes, ...]:
        """C_0(theta_0), the same for all parties."""
        model, codec = dict(self.model.named_parameters()), self.codecs.models[1]
        data = codec.encode(model, t0)
        self.measured = codec.measure(model, data, t0) if self.plan.evaluates_after(t0) else None
        return data

    def _take_model(self, packets: Sequence[Bytes], t0: int) -> None:
        self.codecs.models[self.m].decode_into(dict(self.model.named_parameters()), packets, t0)

    def observe(self, loss: float) -> None:
        """From the gradients of theta_0."""
        gradients = {key: p.grad for key, p in self.model.named_parameters() if p.grad is not None}
        self.codecs.models[1].observe(gradients, loss)


class Relayed(_Shared):
    """The paper's Algorithm 1. Packets are relayed unopened: one encoding serves M receivers."""

    takes = wire.Broadcast

    def replies(self, t0: int, packets: Packets, phi: list[Tensor], step: Step) -> Replies:
        """C_0(theta_0) and C_j(h_j) of all others."""
        model = self._whole_model(t0)
        others = {m: tuple((j, packets[j]) for j in self._parties if j != m) for m in self._parties}
        return [(m, wire.Broadcast(t0, model, others[m])) for m in self._parties]

    def unpacked(self, message: Message, own: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
        """From the others' embeddings; nothing stands in the own place."""
        assert isinstance(message, wire.Broadcast)
        t0, packets, others = message.t0, dict(message.embeddings), {*self._parties} - {self.m}
        self._take_model(message.model, t0)
        if set(packets) != others:
            raise RemoteProtocolError(f"embeddings of {sorted(packets)}, not of {sorted(others)}")
        phi = [torch.empty(0)] * self.plan.M
        for j in others:
            phi[j - 1] = self._decoded(self.codecs.embeddings[j], packets[j], t0, self._shape(j, t0))
        return held(self.model, phi, self.m - 1)

    @property
    def knows(self) -> bool:
        """Of embeddings."""
        return self.plan.cached and all(self.codecs.embeddings[m].knows for m in self._parties if m != self.m)

    def recalled(self, rows: Tensor, t0: int) -> Callable[[Tensor], Tensor]:
        """From the others' embeddings of these rows when they were last sent."""
        phi = [torch.empty(0) if m == self.m else self.recall(m, rows, t0) for m in self._parties]
        return held(self.model, phi, self.m - 1)

    def _heard(self) -> Sequence[int]:
        return self._parties


class Folded(_Shared):
    """Beyond the paper, exact: sums over the others, where theta_0 starts with one. Downloads do not grow with M."""

    takes = wire.Folded

    @cached_property
    def _foldable(self) -> Foldable:
        assert isinstance(self.model, Foldable)  # or nothing would be folded
        return self.model

    def replies(self, t0: int, packets: Packets, phi: list[Tensor], step: Step) -> Replies:
        """The sum over the others, and the pieces of theta_0 that h_m meets."""
        replies: Replies = []
        certified: list[Certificate | None] = []
        measured = Measured() if self.plan.evaluates_after(t0) else None
        assert self.labels is not None  # as the server of Algorithm 1 has them
        y, loss = self.labels[self.plan.batch(t0)], self.objective
        with torch.no_grad():
            everyone = self._foldable.enter(self._foldable.join(phi))

        def left(total: Tensor) -> Tensor:
            """theta_0 after the sum."""
            return self.forward.through(self._foldable.leave, total, t0, 0)

        learnt = lesson(left, everyone, y, loss, self.plan.uniform(t0, SERVER))
        for m, others in enumerate(self._foldable.fold(phi), start=1):
            pieces, codec, reply_codec = self._pieces(m), self.codecs.models[m], self.codecs.replies[m]
            learnt.teach(reply_codec, others)
            model, total = codec.encode(pieces, t0), reply_codec.encode(others, t0)
            if reply_codec.follows:
                told = self._decoded(reply_codec, total, t0, tuple(others.shape))
                caused = everyone + (told - others)
                certified.append(certify(reply_codec, left, everyone, learnt.gradient, caused, y, loss))
            if measured is not None:
                measured += codec.measure(pieces, model, t0) + reply_codec.measure(others, total, t0)
            replies.append((m, wire.Folded(t0, total, model)))
        self.measured, self.certified = measured, None if measured is None else worst(certified)
        return replies

    def unpacked(self, message: Message, own: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
        """From the sum over the others."""
        assert isinstance(message, wire.Folded)
        t0, shape = message.t0, (len(self.plan.batch(message.t0)), self.plan.sum_width)
        self.codecs.models[self.m].decode_into(self._pieces(self.m), message.model, t0)
        others = self._decoded(self.codecs.replies[self.m], message.partial, t0, shape)
        return self._foldable.unfold(others, self.plan.columns(self.m))

    @property
    def knows(self) -> bool:
        """Of sums."""
        return self.plan.cached and self.codecs.replies[self.m].knows

    def recalled(self, rows: Tensor, t0: int) -> Callable[[Tensor], Tensor]:
        """From the sums over the others of these rows when they were last sent."""
        others = self.codecs.replies[self.m].recall(rows, t0, self.plan.dtype).to(self.plan.device)
        return self._foldable.unfold(others, self.plan.columns(self.m))

    def observe(self, loss: float) -> None:
        """Their pieces of theta_0 learn nothing from gradients."""

    def _pieces(self, m: int) -> dict[str, Tensor]:
        return self._foldable.pieces(self.plan.columns(m))

    def _models(self) -> Sequence[int]:
        return self._parties


class Summed(_Shared):
    """Secure aggregation: the server can read the sum of the embeddings alone, and sends that."""

    takes = wire.Folded

    def replies(self, t0: int, packets: Packets, phi: list[Tensor], step: Step) -> Replies:
        """C_0(theta_0) and the sum over all."""
        model = self._whole_model(t0)
        return [(m, wire.Folded(t0, packets[SERVER], model)) for m in self._parties]

    def unpacked(self, message: Message, own: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
        """From the sum over all, of which the party knows its own part."""
        assert isinstance(message, wire.Folded)
        self._take_model(message.model, message.t0)
        (everyone,) = self.read({SERVER: message.partial}, message.t0)
        return held(self.model, [everyone - own(), torch.empty(0)], 1)


class Gradients(Exchange):
    """Algorithm 2: parties have neither labels nor theta_0, and are told the gradient in their embedding.

    Local steps after the first reuse it. For the squared error of a linear theta_0 the party is told W_m, too, and
    moves the gradient with its embedding: the steps are then exactly those of Algorithm 1.
    """

    takes = wire.Gradient

    def __init__(self, plan: Plan, codecs: Codecs, model: nn.Module, m: int, labels: Tensor | None = None) -> None:
        super().__init__(plan, codecs, model, m, labels)
        self._weight_codec = Codec(Identity(), plan.seed, SERVER, "server", "weights")

    def replies(self, t0: int, packets: Packets, phi: list[Tensor], step: Step) -> Replies:
        """Lines 7-8: step theta_0, and give each party the gradient in its embedding."""
        leaves = [h.detach().requires_grad_() for h in phi]
        weights = [self._weights(m, t0) for m in self._parties]  # before they change
        step(leaves, 0)
        replies: Replies = []
        for m in self._parties:
            h = leaves[m - 1] if len(leaves) == self.plan.M else leaves[0]  # in a sum, all embeddings have its gradient
            assert h.grad is not None
            replies.append((m, wire.Gradient(t0, self.codecs.replies[m].encode(h.grad, t0), weights[m - 1])))
        return replies

    def slope(self, message: Message, own: Callable[[], Tensor]) -> Slope:
        """As it was told; the loss is not."""
        assert isinstance(message, wire.Gradient)
        t0 = message.t0
        told = self._decoded(self.codecs.replies[self.m], message.packet, t0, self._shape(self.m, t0))
        bend = self._bend(message, len(told))
        if bend is None:
            return Slope(lambda h, q: (told, 1.0))
        sent = own()
        return Slope(lambda h, q: (torch.addmm(told, h.detach() - sent, bend), 1.0))

    def _weights(self, m: int, t0: int) -> bytes:
        """W_m of a linear theta_0, for a party that takes more than one step along its gradient."""
        W = self._slope_of(m)
        return b"" if W is None else self._weight_codec.encode(W, t0)

    def _bend(self, message: wire.Gradient, rows: int) -> Tensor | None:
        """The matrix by which the gradient of every row changes when h_m does: 2 W_m^T W_m / B."""
        expected = self._slope_of(self.m)
        if (expected is None) != (not message.weights):
            raise RemoteProtocolError("weights that were not expected, or none")
        if expected is None:
            return None
        W = self._decoded(self._weight_codec, message.weights, message.t0, tuple(expected.shape))
        return W.t() @ W * (2 / max(rows, 1))

    def _slope_of(self, m: int) -> Tensor | None:
        return slope_of(self.model, self.plan.columns(m)) if self.plan.sloped else None


def exchange(plan: Plan, codecs: Codecs, model: nn.Module, m: int, labels: Tensor | None = None) -> Exchange:
    """The mode that the plan says, at the server (m = 0) or at party m."""
    if plan.algorithm == 2:
        return Gradients(plan, codecs, model, m, labels)
    return (Folded if plan.folding else Summed if plan.secure else Relayed)(plan, codecs, model, m, labels)
