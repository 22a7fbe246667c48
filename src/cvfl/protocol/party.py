"""Party m as a message machine: Algorithms 1 and 2 of the paper, seen from one party.

    start()                    -> Embedding(0)
    receive(Broadcast(t0))     -> [Evaluation(t0)] Embedding(t0 + 1)      Algorithm 1
    receive(Folded(t0))        -> [Evaluation(t0)] Embedding(t0 + 1)      Algorithm 1, folded
    receive(Gradient(t0))      -> [Evaluation(t0)] Embedding(t0 + 1)      Algorithm 2

No I/O, no clock, no thread. The state between any two messages is complete in `state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cvfl.compress import Identity
from cvfl.errors import DataError, DecodeError, LocalProtocolError, RemoteProtocolError
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.codec import Codec, Measured, restore, states_of
from cvfl.protocol.codecs import Codecs
from cvfl.protocol.fusion import Foldable, held, slope_of
from cvfl.protocol.layers import Forward
from cvfl.protocol.plan import Plan
from cvfl.protocol.release import EMBEDDING, EVALUATION, Clipped, Release
from cvfl.protocol.rows import Holding
from cvfl.types import SERVER
from cvfl.wire import Broadcast, Bytes, Embedding, Evaluation, Folded, Gradient, Message


class Party:
    """Turns columns into embeddings, sends them compressed, and takes Q local steps a round."""

    def __init__(
        self,
        m: int,
        plan: Plan,
        holding: Holding,
        model: nn.Module,
        server_model: nn.Module,
        codecs: Codecs,
        release: Release | None = None,
    ) -> None:
        self.m, self.plan, self.holding, self.model = m, plan, holding, model
        self.server_model = server_model.train().requires_grad_(False)
        self.codecs, self.evaluation_codec = codecs.embeddings, codecs.evaluations[m]
        self.model_codec, self.reply_codec = codecs.models[m], codecs.replies[m]
        self._sum, self.release = codecs.total, release
        self.weight_codec = Codec(Identity(), plan.seed, SERVER, "server", "weights")
        self.optimizer = plan.optimizer.build(list(model.parameters()))
        self.t0 = 0
        self.measured: Measured | None = None
        self._h_of = model if plan.clip is None else Clipped(model, plan.clip)
        self._embed = Forward(self._h_of, plan.seed, m, self._rows(torch.arange(2) % plan.rows))
        blank = [torch.zeros(2, width, dtype=plan.dtype, device=plan.device) for width in plan.widths]
        self._fuse = Forward(server_model, plan.seed, m, blank)
        self._x = torch.empty(0)
        self._h: Tensor | None = None
        self._sent = b""

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self.t0 == self.plan.rounds

    @property
    def settled(self) -> bool:
        """Whether the state is one between two rounds; a party always is."""
        return True

    @property
    def models(self) -> dict[str, nn.Module]:
        """The model that is trained here."""
        return {self.holding.name: self.model}

    def start(self) -> list[Message]:
        """The embedding of the next round: the first message, and the first after a restart."""
        return [] if self.done else [self._embedding()]

    def receive(self, message: Message) -> list[Message]:
        """Take this round's local steps and answer with the next round's embedding."""
        if self._h is None:
            raise LocalProtocolError(f"{self.holding.name}: start() comes before the first message")
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.eta(self.t0)
        try:
            gradient, loss = self._steps(message, self._h)
        except DecodeError as error:
            raise RemoteProtocolError(f"{self.holding.name}: {error}") from error
        self.codecs[self.m].observe(gradient, loss)
        self.t0, self._h, self._sent = self.t0 + 1, None, b""
        replies: list[Message] = [self._evaluation(message.t0)] if self.plan.evaluates_after(message.t0) else []
        return replies if self.done else [*replies, self._embedding()]

    def _steps(self, message: Message, h: Tensor) -> tuple[Tensor, float]:
        """Take the round's steps; the result is the gradient of the loss in the last embedding, and the loss."""
        match message, self.plan.algorithm:
            case (Broadcast() as broadcast, 1) if broadcast.t0 == self.t0 and not self.plan.folding and not self._sum:
                return self._local_steps(self._unpacked(broadcast), h)
            case (Folded() as folded, 1) if folded.t0 == self.t0 and self._sum:
                return self._local_steps(self._without_own(folded, self._sum, h), h)
            case (Folded() as folded, 1) if folded.t0 == self.t0 and self.plan.folding:
                return self._local_steps(self._unfolded(folded), h)
            case (Gradient() as answer, 2) if answer.t0 == self.t0:
                return self._steps_along(answer, h)
        raise RemoteProtocolError(
            f"{self.holding.name}: {type(message).__name__} of round {message.t0} "
            f"in round {self.t0} of algorithm {self.plan.algorithm}"
        )

    def _unpacked(self, message: Broadcast) -> Callable[[Tensor], Tensor]:
        """The server model as a function of h_m, everything else as the others decode it, too."""
        self.model_codec.decode_into(dict(self.server_model.named_parameters()), message.model, self.t0)
        return held(self.server_model, self._stale(message, len(self.plan.batch(self.t0))), self.m - 1)

    def _unfolded(self, message: Folded) -> Callable[[Tensor], Tensor]:
        """The same from the sum over the others."""
        assert isinstance(self.server_model, Foldable)
        columns, rows = self.plan.columns(self.m), len(self.plan.batch(self.t0))
        self.model_codec.decode_into(self.server_model.pieces(columns), message.model, self.t0)
        shape = (rows, self.plan.sum_width)
        partial = self.reply_codec.decode(message.partial, self.t0, shape, self.plan.dtype).to(self.plan.device)
        return self.server_model.unfold(partial, columns)

    def _without_own(self, message: Folded, total: Aggregate, h: Tensor) -> Callable[[Tensor], Tensor]:
        """The same from the sum over all, of which the party knows its own part."""
        self.model_codec.decode_into(dict(self.server_model.named_parameters()), message.model, self.t0)
        everyone = total.decode(message.partial, self.t0, tuple(h.shape), h.dtype).to(h.device)
        return held(self.server_model, [everyone - self._as_decoded(h), h], 1)

    def _local_steps(self, fuse: Callable[[Tensor], Tensor], h: Tensor) -> tuple[Tensor, float]:
        """Algorithm 1, lines 10-13: Q steps with the own fresh embedding and the others' stale ones."""
        if self.holding.labels is None:
            raise DataError(f"{self.holding.name}: algorithm 1 needs the training labels at every party")
        t0, y = self.t0, self.holding.labels[self.plan.batch(self.t0)]
        for q in range(self.plan.Q):
            if q > 0:  # h_m of iteration 0 is the one that was sent
                h = self._embed(self._x, t0, q)
            if q == self.plan.Q - 1:
                h.retain_grad()
            loss = self.plan.loss(self._fuse.through(fuse, h, t0, q), y)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        assert h.grad is not None
        return (h.grad, float(loss.detach())) if self.release is None else self._as_seen(fuse, y)

    def _as_seen(self, fuse: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, float]:
        """The gradient in h_m as the others have it, and the loss.

        The compressor learns from no more than was released, so that nothing it sends can tell more.
        """
        assert self._h is not None
        h = self._as_decoded(self._h).detach().requires_grad_()
        loss = self.plan.loss(self._fuse.through(fuse, h, self.t0, 0), y)
        (gradient,) = torch.autograd.grad(loss, h)
        return gradient, float(loss.detach())

    def _steps_along(self, message: Gradient, h: Tensor) -> tuple[Tensor, float]:
        """Algorithm 2, lines 10-11: the server's gradient in h_m, carried on to theta_m; the loss is not told.

        Steps after the first reuse it. For the squared error of a linear server model the party knows W_m, too, and
        moves the gradient with its embedding: the steps are then exactly those of Algorithm 1.
        """
        t0, told = self.t0, self.reply_codec.decode(message.packet, self.t0, tuple(h.shape), h.dtype).to(h.device)
        bend = self._bend(message, h)
        sent = h.detach() if bend is None else self._as_decoded(h)
        for q in range(self.plan.Q):
            if q > 0:  # h_m of iteration 0 is the one that was sent
                h = self._embed(self._x, t0, q)
            gradient = told if bend is None else torch.addmm(told, h.detach() - sent, bend)
            self.optimizer.zero_grad()
            h.backward(gradient)  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return (gradient if self.release is None else told), 1.0

    def _bend(self, message: Gradient, h: Tensor) -> Tensor | None:
        """The matrix by which the gradient of every row changes when h_m does: 2 W_m^T W_m / B."""
        slope = slope_of(self.server_model, self.plan.columns(self.m)) if self.plan.sloped else None
        if (slope is None) != (not message.weights):
            raise RemoteProtocolError(f"{self.holding.name}: weights that were not expected, or none")
        if slope is None:
            return None
        W = self.weight_codec.decode(message.weights, self.t0, tuple(slope.shape), h.dtype).to(h.device)
        return W.t() @ W * (2 / max(len(h), 1))

    def _as_decoded(self, h: Tensor) -> Tensor:
        """h_m of this round as everyone else has it."""
        data = self._sent or self.codecs[self.m].encode(self._released(h, EMBEDDING, self.t0), self.t0)
        return self.codecs[self.m].decode(data, self.t0, tuple(h.shape), h.dtype).to(h.device)

    def _stale(self, message: Broadcast, rows: int) -> list[Tensor]:
        """The others' embeddings as everyone decodes them; nothing stands in the own place."""
        packets: dict[int, Bytes] = dict(message.embeddings)
        others = set(range(1, self.plan.M + 1)) - {self.m}
        if set(packets) != others:
            raise RemoteProtocolError(f"{self.holding.name}: embeddings of {sorted(packets)}, not of {sorted(others)}")
        phi = [torch.empty(0)] * self.plan.M
        for j in others:
            shape = (rows, self.plan.widths[j - 1])
            phi[j - 1] = self.codecs[j].decode(packets[j], self.t0, shape, self.plan.dtype).to(self.plan.device)
        return phi

    def _embedding(self) -> Embedding:
        # After a restart h_m is there already: computing it again would move the statistics of normalisation layers.
        self._h = h = self._forward() if self._h is None else self._h
        h = self._released(h, EMBEDDING, self.t0)
        self._sent = data = self.codecs[self.m].encode(h, self.t0)
        # Measured where it is reported: on the rounds that an evaluation follows.
        self.measured = self.codecs[self.m].measure(h, data, self.t0) if self._reports() else None
        return Embedding(self.t0, self.m, data)

    def _released(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        return h if self.release is None else self.release(h, purpose, t0)

    def _reports(self) -> bool:
        return self.plan.evaluates_after(self.t0)

    def _rows(self, rows: Tensor) -> Tensor:
        return self.holding.batch(rows, self.plan.seed, self.t0).to(self.plan.device)

    def _forward(self) -> Tensor:
        self._x = self._rows(self.plan.batch(self.t0))
        self.model.train()
        return self._checked(self._embed(self._x, self.t0, 0), len(self._x))

    def _evaluation(self, t0: int) -> Evaluation:
        self.model.eval()
        with torch.no_grad():
            batches = self.holding.evaluation_batches(_EVALUATION_ROWS)
            parts = [self._h_of(x.to(self.plan.device)) for x in batches]
        h = self._released(self._checked(torch.cat(parts), self.plan.held_out_rows), EVALUATION, t0)
        self.model.train()
        return Evaluation(t0, self.m, self.evaluation_codec.encode(h, t0))

    def _checked(self, h: Tensor, rows: int) -> Tensor:
        expected = (rows, self.plan.widths[self.m - 1])
        if tuple(h.shape) != expected or h.dtype != self.plan.dtype:
            raise DataError(
                f"{self.holding.name}: the model gives an embedding of {h.dtype} {tuple(h.shape)}, "
                f"not {self.plan.dtype} {expected}"
            )
        return h

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs; the embedding itself is computed again from it."""
        return {
            "t0": self.t0,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "codecs": states_of(self._codecs(), self.t0),
            "model codec": self.model_codec.state_dict(self.t0),
            "release": self.release.state_dict() if self.release else {},
        }

    def _codecs(self) -> dict[str, Codec]:
        """Those whose packets pass here, by name; the others' embeddings do not when they are folded."""
        relayed = self.plan.algorithm == 1 and not self.plan.folding and not self._sum
        own = self.codecs if relayed else {self.m: self.codecs[self.m]}
        return {f"embedding {m}": codec for m, codec in own.items()} | {"reply": self.reply_codec}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the next message may be the answer to the embedding then pending."""
        self.t0 = state["t0"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        restore(self._codecs(), state["codecs"])
        self.model_codec.load_state_dict(state["model codec"])
        if self.release is not None:
            self.release.load_state_dict(state["release"])
        if not self.done:
            self._h = self._forward()
            for key, statistic in self.model.named_buffers():
                # The forward pass moved it a second time; its graph must not notice that it is put back.
                statistic.data.copy_(state["model"][key])


_EVALUATION_ROWS = 1024
