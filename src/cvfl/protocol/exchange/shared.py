"""Algorithm 1: parties have the labels, and theta_0 as a function of their own embedding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from cvfl import wire
from cvfl.errors import DataError, LocalProtocolError, RemoteProtocolError
from cvfl.protocol.coding.codec import Measured
from cvfl.protocol.coding.follow import Certificate, certify, lesson, worst
from cvfl.protocol.coding.pace import split_level
from cvfl.protocol.exchange.base import Exchange, Packets, Replies, Slope, Step
from cvfl.protocol.fusion import Foldable, held
from cvfl.types import SERVER
from cvfl.wire import Bytes, Message


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
        self.watch.model(model)
        data = codec.encode(model, t0)
        self.measured = codec.measure(model, data, t0) if self.plan.evaluates_after(t0) else None
        return data

    def _take_model(self, packets: Sequence[Bytes], t0: int) -> None:
        model = dict(self.model.named_parameters())
        self.codecs.models[self.m].decode_into(model, packets, t0)
        self.watch.model(model)

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
            phi[j - 1] = self._embedding(j, packets[j], t0)
            self.watch.rows("embedding", phi[j - 1])
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
            self.watch.rows("sum", others)
            self.watch.model(pieces)
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
        pieces = self._pieces(self.m)
        self.codecs.models[self.m].decode_into(pieces, message.model, t0)
        others = self._decoded(self.codecs.replies[self.m], message.partial, t0, shape)
        self.watch.model(pieces)
        self.watch.rows("sum", others)
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
        self.watch.rows("sum", everyone)
        return held(self.model, [everyone - own(), torch.empty(0)], 1)
