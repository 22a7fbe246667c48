"""Algorithm 2: parties are told the gradient in their embedding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cvfl import wire
from cvfl.compress import Identity
from cvfl.errors import RemoteProtocolError
from cvfl.protocol.coding.codec import Codec
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.exchange.base import Exchange, Packets, Replies, Slope, Step
from cvfl.protocol.fusion import slope_of
from cvfl.protocol.limits import limit_of
from cvfl.protocol.plan import Plan
from cvfl.types import SERVER
from cvfl.wire import Message


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
            self.watch.rows("gradient", h.grad)
            replies.append((m, wire.Gradient(t0, self.codecs.replies[m].encode(h.grad, t0), weights[m - 1])))
        return replies

    def slope(self, message: Message, own: Callable[[], Tensor]) -> Slope:
        """As it was told; the loss is not."""
        assert isinstance(message, wire.Gradient)
        t0 = message.t0
        told = self._decoded(self.codecs.replies[self.m], message.packet, t0, self._shape(self.m, t0))
        self.watch.rows("gradient", told)
        bend = self._bend(message, len(told))
        if bend is None:
            return Slope(lambda h, q: (told, 1.0))
        sent = own()
        return Slope(lambda h, q: (torch.addmm(told, h.detach() - sent, bend), 1.0))

    def _weights(self, m: int, t0: int) -> bytes:
        """W_m of a linear theta_0, for a party that takes more than one step along its gradient."""
        W = self._slope_of(m)
        if W is None:
            return b""
        self.watch.model({"W": W})
        return self._weight_codec.encode(W, t0)

    def _bend(self, message: wire.Gradient, rows: int) -> Tensor | None:
        """The matrix by which the gradient of every row changes when h_m does: 2 W_m^T W_m / B."""
        expected = self._slope_of(self.m)
        if (expected is None) != (not message.weights):
            raise RemoteProtocolError("weights that were not expected, or none")
        if expected is None:
            return None
        W = self._decoded(self._weight_codec, message.weights, message.t0, tuple(expected.shape))
        limit_of(self.codecs.limits, "model").check_matrix(
            W, f"server, round {message.t0}: the weights of the embedding"
        )
        self.watch.model({"W": W})
        return W.t() @ W * (2 / max(rows, 1))

    def _slope_of(self, m: int) -> Tensor | None:
        return slope_of(self.model, self.plan.columns(m)) if self.plan.sloped else None
