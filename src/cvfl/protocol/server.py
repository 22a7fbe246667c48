"""The server as a message machine: it relays what parties send, and trains the server model on what it decoded.

    receive(Embedding(t0, m))  ->  nothing until all M are there, then one Broadcast, Folded or Gradient a party
    train()                    ->  the server's own Q local steps; call it when those replies are on their way
    receive(Evaluation(t0, m)) ->  nothing; when all M are there, `evaluation` holds the test metrics

Packets are relayed unopened: one encoding serves M receivers. Folded, they are not relayed at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cvfl.compress import Identity
from cvfl.errors import DataError, DecodeError, LocalProtocolError, RemoteProtocolError
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.codec import Codec, Measured, restore, states_of
from cvfl.protocol.codecs import Codecs
from cvfl.protocol.fusion import Foldable, joined, slope_of
from cvfl.protocol.layers import Forward
from cvfl.protocol.metrics import evaluate
from cvfl.protocol.model_codec import ModelCodec
from cvfl.protocol.plan import Plan
from cvfl.types import SERVER
from cvfl.wire import Broadcast, Bytes, Embedding, Evaluation, Folded, Gradient, Message


@dataclass(frozen=True)
class Labels:
    """Labels of the training, the test and the validation rows."""

    train: Tensor
    test: Tensor
    validation: Tensor


@dataclass(frozen=True)
class Evaluated:
    """Metrics after a round: on the held-out rows, and on the training rows as they were last seen in training.

    Without validation or test rows there are no metrics of them.
    """

    t0: int
    train: dict[str, float]
    validation: dict[str, float]
    test: dict[str, float]


@contextmanager
def _from_parties() -> Iterator[None]:
    """Bytes that cannot be read are the doing of who sent them."""
    try:
        yield
    except DecodeError as error:
        raise RemoteProtocolError(str(error)) from error


class Server:
    """Relays embeddings, holds theta_0 and the labels, and evaluates."""

    def __init__(
        self,
        plan: Plan,
        labels: Labels,
        model: nn.Module,
        codecs: Codecs,
    ) -> None:
        self.plan, self.labels, self.model = plan, labels, model
        self.codecs, self.evaluation_codecs = codecs.embeddings, codecs.evaluations
        self.model_codecs, self.reply_codecs = codecs.models, codecs.replies
        self._sum, self._held_out_sum = codecs.total, codecs.held_out_total
        self.weight_codec = Codec(Identity(), plan.seed, SERVER, "server", "weights")
        self.optimizer = plan.optimizer.build(list(model.parameters()))
        self.t0 = 0
        self.loss = float("nan")
        self.measured: Measured | None = None
        self.evaluation: Evaluated | None = None
        blank = [torch.zeros(2, width, dtype=plan.dtype, device=plan.device) for width in plan.widths]
        self._fuse = Forward(model, plan.seed, SERVER, blank)
        self._phi: list[Tensor] | None = None
        self._total: Tensor | None = None
        self._embeddings: dict[int, Bytes] = {}
        self._evaluations: dict[int, Bytes] = {}
        with torch.no_grad():
            outputs = model.eval()(blank)
        self._seen = torch.full_like(outputs[:1], float("nan")).repeat(plan.rows, *(1,) * (outputs.ndim - 1))

    @property
    def done(self) -> bool:
        """Whether all rounds are over and evaluated."""
        return self.t0 == self.plan.rounds and not self._awaits_evaluation()

    @property
    def settled(self) -> bool:
        """Whether the last round is over and evaluated, and nothing of the next one is used yet."""
        return self._phi is None and not self._awaits_evaluation()

    @property
    def models(self) -> dict[str, nn.Module]:
        """The model that is trained here."""
        return {"server": self.model}

    def receive(self, message: Message) -> list[tuple[int, Message]]:
        """Take in a party's message; the replies are (party, message)."""
        match message:
            case Embedding(t0, m, packet) if t0 == self.t0 and self._phi is None:
                self._keep(self._embeddings, m, packet, message)
                return self._all_there() if len(self._embeddings) == self.plan.M else []
            case Evaluation(t0, m, packet) if t0 == self.t0 - 1 and self._awaits_evaluation():
                self._keep(self._evaluations, m, packet, message)
                if len(self._evaluations) == self.plan.M:
                    self._evaluate(t0)
                return []
        raise RemoteProtocolError(f"{type(message).__name__} of round {message.t0} in round {self.t0}")

    def train(self) -> None:
        """Q steps of theta_0 on the stale, decompressed embeddings; Algorithm 2 took the first with its gradients."""
        if self._phi is None:
            raise LocalProtocolError("train() comes after a round's replies")
        y, phi = self.labels.train[self.plan.batch(self.t0)], joined(self.model, self._phi)
        for q in range(self.plan.algorithm - 1, self.plan.Q):
            self._step(phi, y, q)
        if self.plan.algorithm == 1:
            self._observe()
        self.t0, self._phi = self.t0 + 1, None

    def _all_there(self) -> list[tuple[int, Message]]:
        packets, self._embeddings = self._embeddings, {}
        t0, rows = self.t0, self.plan.batch(self.t0)
        if self._sum:
            total = self._added(self._sum, packets, t0, len(rows))
            self._phi = [self._read(self._sum, total, t0, len(rows))]
        else:
            self._phi = self._decoded(self.codecs, packets, t0, len(rows))
        self.model.train()
        if self.plan.algorithm == 2:
            return self._gradients(self._phi, rows)
        if self.plan.folding:
            return self._folded(self._phi)
        model, codec = dict(self.model.named_parameters()), self.model_codecs[1]
        data = codec.encode(model, t0)
        self.measured = codec.measure(model, data, t0) if self.plan.evaluates_after(t0) else None
        if self._sum:
            return [(m, Folded(t0, total, data)) for m in range(1, self.plan.M + 1)]
        return [
            (m, Broadcast(t0, data, tuple((j, packets[j]) for j in sorted(packets) if j != m)))
            for m in range(1, self.plan.M + 1)
        ]

    def _folded(self, phi: list[Tensor]) -> list[tuple[int, Message]]:
        """For each party the sum over the others and its pieces of the model."""
        assert isinstance(self.model, Foldable)
        t0, reports = self.t0, self.plan.evaluates_after(self.t0)
        replies: list[tuple[int, Message]] = []
        measured = Measured()
        for m, partial in enumerate(self.model.fold(phi), start=1):
            pieces, codec = self.model.pieces(self.plan.columns(m)), self.model_codecs[m]
            model, total = codec.encode(pieces, t0), self.reply_codecs[m].encode(partial, t0)
            if reports:
                measured += codec.measure(pieces, model, t0) + self.reply_codecs[m].measure(partial, total, t0)
            replies.append((m, Folded(t0, total, model)))
        self.measured = measured if reports else None
        return replies

    def _observe(self) -> None:
        """Let the compressors of what the server sends learn from its last step."""
        if not self.plan.folding:
            gradients = {key: p.grad for key, p in self.model.named_parameters() if p.grad is not None}
            self.model_codecs[1].observe(gradients, self.loss)
            return
        assert self._total is not None
        assert self._total.grad is not None
        for m in range(1, self.plan.M + 1):
            self.reply_codecs[m].observe(self._total.grad, self.loss)
        self._total = None

    def _gradients(self, phi: list[Tensor], rows: Tensor) -> list[tuple[int, Message]]:
        """Algorithm 2, lines 7-8: step theta_0, and give each party the gradient in its embedding."""
        leaves = [h.detach().requires_grad_() for h in phi]
        weights = [self._weights(m) for m in range(1, self.plan.M + 1)]  # before they change
        self._step(leaves, self.labels.train[rows], 0)
        replies: list[tuple[int, Message]] = []
        for m in range(1, self.plan.M + 1):
            h = leaves[0] if self.plan.secure else leaves[m - 1]  # in a sum, all embeddings have its gradient
            assert h.grad is not None
            packet = self.reply_codecs[m].encode(h.grad, self.t0)
            replies.append((m, Gradient(self.t0, packet, weights[m - 1])))
        return replies

    def _weights(self, m: int) -> bytes:
        """W_m of a linear server model, for a party that takes more than one step along its gradient."""
        slope = slope_of(self.model, self.plan.columns(m)) if self.plan.sloped else None
        return b"" if slope is None else self.weight_codec.encode(slope, self.t0)

    def _step(self, phi: Sequence[Tensor] | Tensor, y: Tensor, q: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.eta(self.t0)
        outputs = self._fuse.through(self._forward, phi, self.t0, q)
        loss = self.plan.loss(outputs, y)
        if q == 0:
            self._check_finite("the loss", loss)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if q == 0:
            self.loss = float(loss.detach())
            self._seen[self.plan.batch(self.t0)] = outputs.detach()

    def _forward(self, phi: Sequence[Tensor] | Tensor) -> Tensor:
        """The outputs; folded, the gradient in the sum that the model starts with is kept."""
        if not (self.plan.folding and isinstance(self.model, Foldable) and isinstance(phi, Tensor)):
            outputs: Tensor = self.model(phi)
            return outputs
        total = self.model.enter(phi)
        self._total = total if total.requires_grad else total.detach().requires_grad_()
        self._total.retain_grad()
        return self.model.leave(self._total)

    def _check_finite(self, what: str, values: Tensor) -> None:
        if not bool(torch.isfinite(values).all()):
            raise DataError(f"server, round {self.t0}: {what} is not finite; training diverged, lower step_size.eta")

    def _keep(self, inbox: dict[int, Bytes], m: int, packet: Bytes, message: Message) -> None:
        if not 1 <= m <= self.plan.M or m in inbox:
            raise RemoteProtocolError(f"a second or unknown {type(message).__name__} of party {m} in round {self.t0}")
        inbox[m] = packet

    def _decoded(self, codecs: Mapping[int, Codec], packets: Mapping[int, Bytes], t0: int, rows: int) -> list[Tensor]:
        """The embeddings of all parties."""
        plan = self.plan
        with _from_parties():
            return [
                codecs[m].decode(packets[m], t0, (rows, width), plan.dtype).to(plan.device)
                for m, width in enumerate(plan.widths, start=1)
            ]

    def _added(self, total: Aggregate, packets: Mapping[int, Bytes], t0: int, rows: int) -> bytes:
        """The packet of the sum of masked embeddings."""
        with _from_parties():
            return total.add(packets, t0, (rows, self.plan.widths[0]), self.plan.dtype)

    def _read(self, total: Aggregate, packet: Bytes, t0: int, rows: int) -> Tensor:
        return total.decode(packet, t0, (rows, self.plan.widths[0]), self.plan.dtype).to(self.plan.device)

    def _awaits_evaluation(self) -> bool:
        last = self.t0 - 1
        evaluated = self.evaluation is not None and self.evaluation.t0 == last
        return last >= 0 and self.plan.evaluates_after(last) and not evaluated

    def _evaluate(self, t0: int) -> None:
        packets, self._evaluations = self._evaluations, {}
        plan, seen = self.plan, ~torch.isnan(self._seen.reshape(self.plan.rows, -1)[:, 0])
        rows, total = plan.held_out_rows, self._held_out_sum
        if total:
            phi = [self._read(total, self._added(total, packets, t0, rows), t0, rows)]
        else:
            phi = self._decoded(self.evaluation_codecs, packets, t0, rows)
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(phi)
        self._check_finite("an output for the held-out rows", outputs)
        held_out = torch.split(outputs, [plan.validation_rows, plan.test_rows])
        validation, test = map(self._metrics, held_out, (self.labels.validation, self.labels.test))
        self.evaluation = Evaluated(t0, self._metrics(self._seen[seen], self.labels.train[seen]), validation, test)

    def _metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return evaluate(self.plan.loss, outputs, labels) if len(labels) else {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs, also between two messages of a round."""
        return {
            "t0": self.t0,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "codecs": states_of(self._codecs(), self.t0),
            "model codecs": {m: codec.state_dict(self.t0) for m, codec in self._model_codecs().items()},
            "seen": self._seen,
            "loss": self.loss,
            "evaluation": asdict(self.evaluation) if self.evaluation else None,
            "phi": self._phi,
            "embeddings": {m: bytes(packet) for m, packet in self._embeddings.items()},
            "evaluations": {m: bytes(packet) for m, packet in self._evaluations.items()},
        }

    def settled_state(self) -> dict[str, Any]:
        """The state before the round that comes next; messages of that round come again."""
        return self.state_dict() | {"embeddings": {}, "evaluations": {}}

    def _codecs(self) -> dict[str, Codec]:
        embeddings = {f"embedding {m}": codec for m, codec in self.codecs.items()}
        return embeddings | {f"reply {m}": codec for m, codec in self.reply_codecs.items()}

    def _model_codecs(self) -> dict[int, ModelCodec]:
        """One for all parties, or one for each when their pieces differ."""
        return dict(self.model_codecs) if self.plan.folding else {1: self.model_codecs[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.t0, self.loss = state["t0"], state["loss"]
        self.evaluation = Evaluated(**state["evaluation"]) if state["evaluation"] else None
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        restore(self._codecs(), state["codecs"])
        for m, codec in self._model_codecs().items():
            codec.load_state_dict(state["model codecs"][m])
        self._seen, self._phi = state["seen"].clone(), state["phi"]
        self._embeddings, self._evaluations = dict(state["embeddings"]), dict(state["evaluations"])
