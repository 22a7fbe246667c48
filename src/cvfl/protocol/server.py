"""The server as a message machine: it gathers embeddings, answers, and trains theta_0 on what it decoded.

receive(Embedding(t0, m))  ->  nothing until all M are there, then one message a party, as `exchange` has it
train()                    ->  the server's own Q local steps; call it when those replies are on their way
receive(Evaluation(t0, m)) ->  nothing; when all M are there, `evaluation` holds the metrics, and if these say that
                               the run is over, a Stop a party
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from cvfl.errors import CompressError, DataError, DecodeError, LocalProtocolError, RemoteProtocolError
from cvfl.memory import Values
from cvfl.protocol.absence import Presence, stood_in
from cvfl.protocol.coding.codec import Measured
from cvfl.protocol.coding.codecs import Codecs
from cvfl.protocol.coding.follow import Certificate
from cvfl.protocol.coding.pace import Pace, least_ease, with_level
from cvfl.protocol.evaluation import Evaluated, Labels, evaluated
from cvfl.protocol.exchange import Replies, exchange
from cvfl.protocol.fusion import joined
from cvfl.protocol.last_pass import PassingOn
from cvfl.protocol.learning.average import Average
from cvfl.protocol.learning.spread import noise_like
from cvfl.protocol.learning.stopping import Snapshots, Stopping
from cvfl.protocol.outputs import outputs_of
from cvfl.protocol.plan import Plan
from cvfl.rng import NOISE, stream
from cvfl.types import SERVER
from cvfl.wire import Bytes, Embedding, Evaluation, Message, Passed, Stop


@contextmanager
def _from_parties() -> Iterator[None]:
    """A packet that cannot be decoded is an error of the party that sent it, which the codec names."""
    try:
        yield
    except DecodeError as error:
        raise RemoteProtocolError(str(error)) from error


class Server:
    """Holds theta_0 and the labels, answers the parties, and evaluates."""

    def __init__(
        self,
        plan: Plan,
        labels: Labels,
        model: nn.Module,
        codecs: Codecs,
        around: int = 0,
        present: Presence | None = None,
    ) -> None:
        self.plan, self.labels, self.model = plan, labels, model
        self.present = present.to(plan.device) if present else None
        self.pace = None if plan.budget is None else Pace(plan, plan.budget, around)
        self.exchange = exchange(plan, codecs, model, SERVER, labels.train)
        self.steps = plan.optimizer.of(model)
        self.t0 = 0
        self.loss = float("nan")
        self.evaluation: Evaluated | None = None
        self.held_out: list[Tensor] | None = None
        """The embeddings of the held-out rows that belong to the models which the run leaves, as far as it is."""
        self._phi: list[Tensor] | None = None
        self._embeddings: dict[int, Bytes] = {}
        self._evaluations: dict[int, Bytes] = {}
        self._memory = codecs.memory
        self._seen = self._unseen()
        self._average = Average(model, plan.optimizer.average)
        self._stopping, self._snapshots = Stopping(plan.patience, plan.improving), Snapshots(self._average.model, 0)
        self._stopped = False
        self._last_pass = PassingOn(plan)

    def _unseen(self) -> Values:
        """For every training row its outputs when last seen in training: none yet."""
        plan = self.plan
        with torch.no_grad():
            outputs = self.model.eval()([torch.zeros(1, w, dtype=plan.dtype, device=plan.device) for w in plan.widths])
        return self._memory.values((plan.rows, *outputs.shape[1:]), outputs.dtype, float("nan"))

    @property
    def done(self) -> bool:
        """Whether all rounds are over and evaluated, or enough of them."""
        return self._stopped or (self.t0 == self.plan.rounds and not self._awaits_evaluation())

    @property
    def settled(self) -> bool:
        """Whether the last round is over and evaluated, and nothing of the next one is used yet."""
        return self._phi is None and not self._awaits_evaluation()

    @property
    def awaited(self) -> set[int]:
        """The parties of whom a message is missing."""
        here = self._evaluations if self._awaits_evaluation() else self._embeddings
        return {*range(1, self.plan.M + 1)} - here.keys()

    @property
    def measured(self) -> Measured | None:
        """The error of what was sent last, if it was measured."""
        return self.exchange.measured

    @property
    def certified(self) -> Certificate | None:
        """The certificate of what was sent last, if there is one and an evaluation follows."""
        return self.exchange.certified

    @property
    def models(self) -> dict[str, nn.Module]:
        """The model that is trained here, as it is kept."""
        return {"server": self._average.model}

    def receive(self, message: Message) -> Replies:
        """Take in a party's message; the replies are (party, message)."""
        match message:
            case Embedding(t0) if t0 == self.t0 and self._stopped:
                return []  # it was on its way when the run was found to be over
            case Embedding(t0, m, packet) if t0 == self.t0 and self._phi is None:
                self._keep(self._embeddings, m, packet, message)
                return self._answered() if len(self._embeddings) == self.plan.M else []
            case Evaluation(t0, m, packet) if t0 == self.t0 - 1 and self._awaits_evaluation():
                self._keep(self._evaluations, m, packet, message)
                if len(self._evaluations) < self.plan.M:
                    return []
                self._evaluate(t0)
                return self._ended(t0) if self.plan.patience else []
            case Passed(to=to) if self._nearly_over():
                if self._last_pass.takes(message, self.t0 if self._stopped else self.plan.rounds):
                    return [(to, message)]
        raise RemoteProtocolError(f"{type(message).__name__} of round {message.t0} in round {self.t0}")

    def _nearly_over(self) -> bool:
        """Whether some parties may have taken the last step, since they have all that they need for it."""
        if self.plan.patience:
            return self._stopped
        answered = self.t0 == self.plan.rounds - 1 and self._phi is not None
        return answered or self.t0 == self.plan.rounds

    def _keep(self, inbox: dict[int, Bytes], m: int, packet: Bytes, message: Message) -> None:
        if not 1 <= m <= self.plan.M or m in inbox:
            raise RemoteProtocolError(f"a second or unknown {type(message).__name__} of party {m} in round {self.t0}")
        inbox[m] = packet

    def _answered(self) -> Replies:
        """All embeddings are here: lines 5-8 of Algorithm 1, 5-8 of Algorithm 2."""
        packets, self._embeddings = self._embeddings, {}
        with _from_parties():
            gathered = self.exchange.gathered(packets, self.t0)
            self._phi = self.exchange.read(gathered, self.t0)
        self.exchange.watch.see(self._phi, self.exchange.codecs.total is None)
        self.model.train()
        new = self.pace is not None and self._new_level(self.pace, packets)
        try:
            phi = [h.detach() for h in stood_in(self.model, self._phi, self._untold(self.plan.batch(self.t0)))]
            replies = self.exchange.replies(self.t0, gathered, phi, self._step)
        except CompressError as error:
            raise CompressError(f"{error} ({self._reached()})") from None
        if self.pace is not None:
            replies = [(m, with_level(reply, self.pace.level) if new else reply) for m, reply in replies]
            self.pace.answered(self.t0, [reply for _, reply in replies])
        return replies

    def _new_level(self, pace: Pace, packets: Mapping[int, Bytes]) -> bool:
        """Whether the budget asks for another level; what the server sends has it at once."""
        new = pace.next_level(self.t0, [Embedding(self.t0, m, packet) for m, packet in packets.items()])
        for codec in self.exchange.codecs.replies.values():
            codec.loosen(least_ease(pace.level)[0])
        return new

    def train(self) -> None:
        """Q steps of theta_0 on the stale, decompressed embeddings; Algorithm 2 took the first with its gradients."""
        if self._stopped or self.t0 == self.plan.rounds:
            return  # what was passed on is no round's
        if self._phi is None:
            raise LocalProtocolError("train() comes after a round's replies")
        roots = self.exchange.roots(self.t0)
        phi = self._phi if self.plan.stands_in else joined(self.model, self._phi)
        for q in range(self.plan.algorithm - 1, self.plan.Q):
            seen = self._recalled(q) if self.plan.cached and q > 0 else phi
            self._step(self._noisy(seen, roots, q) if roots else seen, q)
        self._average.update()
        self.exchange.observe(self.loss)
        self.t0, self._phi = self.t0 + 1, None

    def _recalled(self, q: int) -> Sequence[Tensor] | Tensor:
        """The embeddings of other rows for local step q, as they were last sent."""
        rows = self.plan.local_rows(self.t0, q)
        phi = [self.exchange.recall(m, rows, self.t0) for m in range(1, self.plan.M + 1)]
        return phi if self.plan.stands_in else joined(self.model, phi)

    def _noisy(self, phi: Sequence[Tensor] | Tensor, roots: Sequence[Tensor], q: int) -> Sequence[Tensor] | Tensor:
        """The same with noise like that which the parties' messages leave out."""
        rows = len(self.plan.local_rows(self.t0, q))
        noise = noise_like(roots, rows, stream(self.plan.seed, NOISE, self.t0, q))
        if isinstance(phi, Tensor):
            told = joined(self.model, noise)
            assert isinstance(told, Tensor)  # both were joined by one model
            return phi + told
        return [h + n for h, n in zip(phi, noise, strict=True)]

    def _step(self, phi: Sequence[Tensor] | Tensor, q: int) -> None:
        """Local step q of theta_0."""
        rows = self.plan.local_rows(self.t0, q)
        if self.plan.stands_in:
            phi = joined(self.model, stood_in(self.model, list(phi), self._absent(rows, q)))
        outputs = self.exchange.forward.through(self.exchange.outputs, phi, self.t0, q)
        loss = self.exchange.objective(outputs, self.labels.train[rows])
        if q == 0:
            self._check_finite("the loss", loss)
        self.steps.take(loss.backward, self.plan.eta(self.t0))
        if q == 0:
            self.loss = float(loss.detach())
            self._seen.put(rows, outputs.detach())

    def _absent(self, rows: Tensor, q: int) -> Sequence[Tensor] | None:
        """Who is away for the rows of local step q: those who do not hold them, and some at random."""
        plan = self.plan
        return self._away(rows, plan.dropped(self.t0, q, len(rows)) if plan.absence else None)

    def _untold(self, rows: Tensor) -> Sequence[Tensor] | None:
        """Whom parties are told nothing of: those who do not hold the rows, and of each row always the same ones."""
        plan = self.plan
        return self._away(rows, plan.left_out(rows) if plan.absence and plan.algorithm == 1 else None)

    def _away(self, rows: Tensor, dropped: Tensor | None) -> Sequence[Tensor] | None:
        """Those who do not hold the rows, and those who are left out of them, unless nobody would remain."""
        missing = self._not_held(rows)
        if missing is None or dropped is None:
            return missing if dropped is None else [*dropped]
        lacking = torch.stack([*missing])
        away = lacking | dropped
        return [*torch.where(away.all(0), lacking, away)]

    def _not_held(self, rows: Tensor) -> Sequence[Tensor] | None:
        """Which of these training rows each party does not hold; nothing if everybody holds all."""
        return [~held[rows] for held in self.present.train] if self.present else None

    def _check_finite(self, what: str, values: Tensor) -> None:
        if not bool(torch.isfinite(values).all()):
            raise DataError(
                f"server, round {self.t0}: {what} is not finite; training diverged, lower step_size.eta "
                f"({self._reached()})"
            )

    def _reached(self) -> str:
        """What people need to see whose doing it is: within the limits of a codec, nobody else can say."""
        codecs = self.exchange.codecs
        if codecs.total is not None:
            return "embeddings are masked: whose are large cannot be told"
        far = {codec.name: codec.reached for codec in codecs.embeddings.values()}
        for codec in codecs.evaluations.values():
            far[codec.name] = max(far[codec.name], codec.reached)
        said = sorted(far.items(), key=lambda item: -item[1])
        return f"embeddings reached {', '.join(f'{reached:.3g} at {name}' for name, reached in said)}"

    def _awaits_evaluation(self) -> bool:
        last = self.t0 - 1
        evaluated = self.evaluation is not None and self.evaluation.t0 == last
        return last >= 0 and self.plan.evaluates_after(last) and not evaluated

    def _evaluate(self, t0: int) -> None:
        packets, self._evaluations = self._evaluations, {}
        plan = self.plan
        with _from_parties():
            phi = self.exchange.read(self.exchange.gathered(packets, t0, held_out=True), t0, held_out=True)
        with torch.no_grad():
            phi = stood_in(self._average.model, phi, [~one for one in self.present.held_out] if self.present else None)
            outputs = outputs_of(self._average.model.eval(), phi)
        self._check_finite("an output for the held-out rows", outputs)
        if self.pace is not None:
            self.pace.evaluated(Evaluation(t0, m, packet) for m, packet in packets.items())
        seen = self._seen.get().to(plan.device)
        watch = self.exchange.watch
        self.evaluation = replace(
            evaluated(plan, self.labels, t0, outputs, seen), embeddings=watch.take(), largest=dict(watch.largest)
        )
        if plan.patience:
            self._stopping.see(t0, self.evaluation.validation)
        if t0 == (self._stopping.best if plan.patience else plan.rounds - 1):
            self.held_out = phi

    def _ended(self, t0: int) -> Replies:
        """The end, if this evaluation shows that nothing is to be gained any more, or was the last one."""
        best = self._stopping.best
        if best == t0:
            self._snapshots.take(t0)
        if not self._stopping.over and self.t0 < self.plan.rounds:
            return []
        self._snapshots.back_to(best)
        self._stopped = True
        return [(m, Stop(t0, best)) for m in range(1, self.plan.M + 1)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs, also between two messages of a round; less when all is over."""
        return {
            "t0": self.t0,
            "model": self.model.state_dict(),
            "average": self._average.state_dict(),
            "optimizer": self.steps.state_dict(),
            "codecs": {} if self.done else self.exchange.state_dict(self.t0),
            "seen": None if self.done else self._seen.state(),
            "loss": self.loss,
            "pace": self.pace.state_dict() if self.pace else None,
            "evaluation": asdict(self.evaluation) if self.evaluation else None,
            "held_out": self.held_out,
            "stopping": {"rule": self._stopping.state_dict(), "models": self._snapshots.kept, "over": self._stopped},
            "watch": self.exchange.watch.state_dict(),
            "phi": self._phi,
            "embeddings": {m: bytes(packet) for m, packet in self._embeddings.items()},
            "evaluations": {m: bytes(packet) for m, packet in self._evaluations.items()},
        }

    def settled_state(self) -> dict[str, Any]:
        """The state before the round that comes next; messages of that round come again."""
        return self.state_dict() | {"embeddings": {}, "evaluations": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.t0, self.loss = state["t0"], state["loss"]
        self.evaluation = Evaluated(**state["evaluation"]) if state["evaluation"] else None
        self.held_out = state.get("held_out")
        self._stopping.load_state_dict(state["stopping"]["rule"])
        self._snapshots.kept, self._stopped = dict(state["stopping"]["models"]), state["stopping"]["over"]
        self.model.load_state_dict(state["model"])
        self._average.load_state_dict(state["average"])
        self.steps.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["codecs"])
        if self.pace is not None:
            self.pace.load_state_dict(state["pace"])
        if state["seen"] is not None:
            del self._seen  # it makes room first
            self._seen = self._memory.restored(state["seen"], float("nan"))
        if "watch" in state:  # not in those of before
            self.exchange.watch.load_state_dict(state["watch"])
        self._phi = state["phi"]
        self._embeddings, self._evaluations = dict(state["embeddings"]), dict(state["evaluations"])
