"""Party m as a message machine: Algorithms 1 and 2 of the paper, seen from one party.

    start()                    -> Embedding(0)
    receive(answer of t0)      -> [Evaluation(t0)] Embedding(t0 + 1)
    receive(Stop(t0))          -> nothing: the model is that after the best round

The server's answer is a Broadcast, a Folded or a Gradient, as `exchange` has it. No I/O, no clock, no thread. The
state between any two messages is complete in `state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cvfl.errors import DataError, DecodeError, LocalProtocolError, RemoteProtocolError
from cvfl.protocol.coding.codec import Measured
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.coding.follow import Certificate, certify, lesson, prime
from cvfl.protocol.coding.pace import least_ease
from cvfl.protocol.exchange import Slope, exchange
from cvfl.protocol.learning.average import Average
from cvfl.protocol.learning.guard import penalty_slope
from cvfl.protocol.learning.layers import Forward
from cvfl.protocol.learning.spread import Spread
from cvfl.protocol.learning.stopping import Snapshots
from cvfl.protocol.outputs import ROWS, outputs_of
from cvfl.protocol.plan import Plan
from cvfl.protocol.release import EMBEDDING, EVALUATION, Clipped, Release
from cvfl.protocol.rows import Holding
from cvfl.rng import GUARD, stream
from cvfl.wire import Embedding, Evaluation, Message, Stop


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
        self.codec, self.evaluation_codec, self.release = codecs.embeddings[m], codecs.evaluations[m], release
        self.exchange = exchange(plan, codecs, server_model.train().requires_grad_(False), m, holding.labels)
        self.steps = plan.optimizer.of(model)
        self.t0 = 0
        self._average = Average(model, plan.optimizer.average)
        self._snapshots, self._stopped = Snapshots(self._average.model, plan.patience), False
        self.measured: Measured | None = None
        self.certified: Certificate | None = None
        """Of the message of the round that is over, where one is computed and an evaluation followed."""
        self._embed = Forward(self._bounded(model), plan.seed, m, self._rows(torch.arange(2) % plan.rows))
        self._spread = Spread(plan.widths[m - 1], plan.dtype) if plan.quiet else None
        self._x = torch.empty(0)
        self._h: Tensor | None = None
        self._out: Tensor | None = None
        self._sent = b""

    @property
    def done(self) -> bool:
        """Whether all rounds are over; where a run may end before, the server has to say so."""
        return self._stopped if self.plan.patience else self.t0 == self.plan.rounds

    @property
    def settled(self) -> bool:
        """Whether the state is one between two rounds; a party always is."""
        return True

    @property
    def models(self) -> dict[str, nn.Module]:
        """The model that is trained here, as it is kept."""
        return {self.holding.name: self._average.model}

    def start(self) -> list[Message]:
        """The embedding of the next round: the first message, and the first after a restart."""
        return [] if self.done or self.t0 == self.plan.rounds else [self._embedding()]

    def receive(self, message: Message) -> list[Message]:
        """Take this round's local steps and answer with the next round's embedding; or end."""
        if isinstance(message, Stop):
            return self._stop(message)
        if self._h is None:
            raise LocalProtocolError(f"{self.holding.name}: start() comes before the first message")
        slope = self._slope(message)
        self.certified = None
        if self.codec.follows or self.evaluation_codec.follows:
            self._learn(slope, self._leaving())
        gradient, loss = self._local_steps(slope, self._h)
        if not self.codec.follows:
            if self.release is not None:
                gradient, loss = slope.at(self._leaving(), 0)
            self.codec.observe(gradient, float(loss))
        self._average.update()
        self._keep_pace()
        self.t0, self._h, self._out, self._sent = self.t0 + 1, None, None, b""
        replies: list[Message] = []
        if self.plan.evaluates_after(message.t0):
            if self.plan.patience:
                self._snapshots.take(message.t0)
            replies.append(self._evaluation(message.t0))
        return replies if self.t0 == self.plan.rounds else [*replies, self._embedding()]

    def _stop(self, stop: Stop) -> list[Message]:
        """The run is over with the last evaluation: go back to the best one."""
        expected = self.plan.patience and stop.t0 == self.t0 - 1 and not self._stopped
        if not expected or stop.best not in self._snapshots.kept:
            raise RemoteProtocolError(
                f"{self.holding.name}: round {stop.best} as the best one after round {stop.t0}, in round {self.t0}"
            )
        self._snapshots.back_to(stop.best)
        self._stopped, self._h, self._out, self._sent = True, None, None, b""
        return []

    def _slope(self, message: Message) -> Slope:
        """How the loss changes with h_m in this round, by what the server sent."""
        if not isinstance(message, self.exchange.takes) or message.t0 != self.t0:
            raise RemoteProtocolError(
                f"{self.holding.name}: {type(message).__name__} of round {message.t0} "
                f"in round {self.t0} of algorithm {self.plan.algorithm}"
            )
        try:
            return self.exchange.slope(message, self._as_decoded)
        except (DecodeError, RemoteProtocolError) as error:
            raise RemoteProtocolError(f"{self.holding.name}: {error}") from error
        except DataError as error:
            raise DataError(f"{self.holding.name}: {error}") from None

    def _local_steps(self, slope: Slope, h: Tensor) -> tuple[Tensor, Tensor | float]:
        """Lines 10-13 of Algorithm 1, 10-11 of Algorithm 2: Q steps with the own fresh embedding, all else stale.

        The result is the gradient in h_m, and the loss, for the party's compressor to learn from.
        """
        eta, sent = self.plan.eta(self.t0), h.detach()
        for q in range(self.plan.Q):
            if q > 0 or self._quiet:  # else h_m of iteration 0 is the one that was sent
                rows = self.plan.local_rows(self.t0, q)
                x = self._rows(rows) if q > 0 and self.plan.cached else self._x
                h = _where_held(self._embed(x, self.t0, q), self._held(rows))
            if q == 0 and self._spread is not None:
                self._see_noise(h - sent)
            gradient, loss = slope.at(h, q)
            self.steps.take(partial(h.backward, self._guarded(gradient, h, q)), eta)
        return gradient, loss

    def _guarded(self, gradient: Tensor, h: Tensor, q: int) -> Tensor:
        """The gradient of local step q with that of the penalty, of which nobody else hears."""
        strength = self.plan.reconstruction_penalty
        if strength is None:
            return gradient
        rows = self.plan.local_rows(self.t0, q)
        x = self._rows(rows) if q > 0 and self.plan.cached else self._x
        held, bends = self._held(rows), stream(self.plan.seed, GUARD, self.m, self.t0, q)
        if held is None:
            return gradient + penalty_slope(h, x, strength, bends)
        slope = torch.zeros_like(h, requires_grad=False)
        slope[held] = penalty_slope(h[held], x[held], strength, bends)
        return gradient + slope

    def _see_noise(self, noise: Tensor) -> None:
        """What dropout does to the rows of the batch that this party holds."""
        held = self._held(self.plan.batch(self.t0))
        own = noise if held is None else noise[held]
        if self._spread is not None and len(own):
            self._spread.see(own)

    def _held(self, rows: Tensor) -> Tensor | None:
        """Which of these training rows the party holds; nothing if all of them."""
        return None if self.holding.present is None else self.holding.present[rows].to(self.plan.device)

    @property
    def _quiet(self) -> bool:
        """Whether dropout is left out of messages: where it is to be, and there is any."""
        return self._spread is not None and self._embed.drops

    def _learn(self, slope: Slope, h: Tensor) -> None:
        """Let compressors that follow the loss learn; where the party does not know it, from what it was told."""
        if slope.outputs is None:
            for codec in (self.codec, self.evaluation_codec):
                if codec.follows:
                    codec.observe(slope.at(h, 0)[0], 0.0, h)
            return
        y, loss, u = self._labels(), self.exchange.objective, self.plan.uniform(self.t0, self.m)
        decoded = self._as_decoded()  # before the compressor learns: it may have to code h once more
        learnt = lesson(slope.outputs, h, y, loss, u)
        learnt.teach_held_out(self.evaluation_codec, h, self.plan.M, self.plan.held_out_rows)
        if self.codec.follows:
            learnt.teach(self.codec, h, self.plan.M)
            certificate = certify(self.codec, slope.outputs, h, learnt.gradient, decoded, y, loss)
            self.certified = certificate if self.plan.evaluates_after(self.t0) else None

    def _keep_pace(self) -> None:
        """What is sent from now on is as coarse as the server says, where there is a budget."""
        if self.exchange.level is not None:
            for codec, least in zip((self.codec, self.evaluation_codec), least_ease(self.exchange.level), strict=True):
                codec.loosen(least)

    def _labels(self) -> Tensor:
        assert self.holding.labels is not None  # or there would be no outputs
        return self.holding.labels[self.plan.batch(self.t0)]

    def _as_decoded(self) -> Tensor:
        """h_m of this round as everyone else has it."""
        assert self._h is not None
        if not self._sent:  # after a restart; once, since a compressor that has learned would code it otherwise
            self._sent = self.codec.encode(self._with_noise(), self.t0)
        shape = len(self.plan.sent_rows(self.m, self.t0)), self._h.shape[1]
        return self.codec.decode(self._sent, self.t0, shape, self._h.dtype)[: len(self._h)].to(self._h.device)

    def _embedding(self) -> Embedding:
        # After a restart h_m is there already: computing it again would move the statistics of normalisation layers.
        self._h = self._forward() if self._h is None else self._h
        h = self._leaving()
        if self.t0 == 0 and self.codec.follows:
            u = self.plan.uniform(0, self.m)
            prime(self.codec, self.exchange.alone(len(h)), h, self.exchange.objective, u)
        sent = self._with_noise()
        self._sent = data = self.codec.encode(sent, self.t0)
        # Measured where it is reported: on the rounds that an evaluation follows.
        self.measured = self.codec.measure(sent, data, self.t0) if self.plan.evaluates_after(self.t0) else None
        return Embedding(self.t0, self.m, data)

    def _with_noise(self) -> Tensor:
        """What is sent: h_m, and where dropout is left out of it some rows of the root of what that does."""
        h = self._leaving()
        if self._spread is None:
            return h
        return torch.cat([h, self._spread.root(self.plan.noise_rows(self.m, self.t0)).to(h.device)])

    def _leaving(self) -> Tensor:
        """h_m of this round as it is released; a compressor learns from no more, so nothing it sends can tell more."""
        assert self._h is not None
        self._out = self._released(self._h, EMBEDDING, self.t0) if self._out is None else self._out
        return self._out

    def _released(self, h: Tensor, purpose: str, t0: int) -> Tensor:
        return h if self.release is None else self.release(h, purpose, t0)

    def _rows(self, rows: Tensor) -> Tensor:
        return self.holding.batch(rows, self.plan.seed, self.t0).to(self.plan.device)

    def _forward(self) -> Tensor:
        rows = self.plan.batch(self.t0)
        self._x = self._rows(rows)
        self.model.train()
        h = self._embed.quietly(self._x, self.t0) if self._quiet else self._embed(self._x, self.t0, 0)
        return _where_held(self._checked(h, len(self._x)), self._held(rows))

    def _evaluation(self, t0: int) -> Evaluation:
        embedded = self._at_rest(self.holding.evaluation_batches(ROWS), self.plan.held_out_rows)
        h = self._released(_where_held(embedded, self.holding.held_out_present), EVALUATION, t0)
        self.model.train()
        return Evaluation(t0, self.m, self.evaluation_codec.encode(h, t0))

    def all_embeddings(self) -> Tensor:
        """h_m of all rows by the model as it is kept, training rows first, as they are."""
        return self._at_rest(self.holding.all_batches(ROWS), self.plan.rows + self.plan.held_out_rows)

    def _at_rest(self, batches: Iterable[Tensor], rows: int) -> Tensor:
        h_of = self._bounded(self._average.model.eval())
        with torch.no_grad():
            parts = [outputs_of(h_of, x.to(self.plan.device)) for x in batches]
        return self._checked(torch.cat(parts), rows)

    def _bounded(self, model: nn.Module) -> nn.Module:
        return model if self.plan.clip is None else Clipped(model, self.plan.clip)

    def _checked(self, h: Tensor, rows: int) -> Tensor:
        expected = (rows, self.plan.widths[self.m - 1])
        if tuple(h.shape) != expected or h.dtype != self.plan.dtype:
            raise DataError(
                f"{self.holding.name}: the model gives an embedding of {h.dtype} {tuple(h.shape)}, "
                f"not {self.plan.dtype} {expected}"
            )
        return h

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs; the embedding itself is computed again from it.

        After the last round nothing is coded any more, and what the ends of compressors have learnt is left out.
        """
        return {
            "t0": self.t0,
            "model": self.model.state_dict(),
            "average": self._average.state_dict(),
            "optimizer": self.steps.state_dict(),
            "codecs": {} if self.done else self.exchange.state_dict(self.t0),
            "release": self.release.state_dict() if self.release else {},
            "spread": self._spread.state_dict() if self._spread else {},
            "stopping": {"models": self._snapshots.kept, "over": self._stopped},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the next message may be the answer to the embedding then pending."""
        self.t0, self._out, self._sent = state["t0"], None, b""
        self._snapshots.kept, self._stopped = dict(state["stopping"]["models"]), state["stopping"]["over"]
        self.model.load_state_dict(state["model"])
        self._average.load_state_dict(state["average"])
        self.steps.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["codecs"])
        if self.release is not None:
            self.release.load_state_dict(state["release"])
        if self._spread is not None:
            self._spread.load_state_dict(state["spread"])
        if not self.done and self.t0 < self.plan.rounds:
            self._h = self._forward()
            for key, statistic in self.model.named_buffers():
                # The forward pass moved it a second time; its graph must not notice that it is put back.
                statistic.data.copy_(state["model"][key])


def _where_held(h: Tensor, held: Tensor | None) -> Tensor:
    """The embeddings of rows that the party holds; zero in place of others, through which no gradient passes."""
    return h if held is None else torch.where(held[:, None].to(h.device), h, 0.0)
