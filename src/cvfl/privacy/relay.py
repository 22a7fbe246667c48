"""Labels that stay with a party: it hosts the server model, and the server relays what it cannot read.

    party j                     server                        party k, the label holder
    Embedding(t0)   sealed ──▶  passed on            ──▶      opened for the Server that runs here, beside its Party
                           ◀──  passed on            ◀──      Gradient(t0) for party j, sealed
    Evaluation(t0)  sealed ──▶  passed on            ──▶      opened
                           ◀──  passed on            ◀──      Stop(t0), sealed, if the run is over
                                the record           ◀──      Report(t0): loss, and metrics if it was evaluated

Three machines stand where a Server and Parties do otherwise: `Relay` for the server, `Holder` for party k and
`Correspondent` for every other party. What is sealed are the messages of Algorithm 2, none more and none other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.sealed_party import SealedParty
from cvfl.privacy.sealing import Sealing
from cvfl.protocol import Certificate, Evaluated, Measured, Party, PartyMachine, Plan, Recipe, Server
from cvfl.protocol.learning.stopping import Stopping
from cvfl.wire import Message, Passed, Report
from cvfl.wire.message import EMBEDDING, EVALUATION

PARTS = ("train", "validation", "test")


class Relay:
    """In the server's place: passes sealed messages between the label holder and the others, and counts rounds.

    It has no labels, no model and no key.
    """

    measured: Measured | None = None
    certified: Certificate | None = None
    settled = True
    """A round is over for the relay when its report is there; nothing is ever half done."""

    def __init__(self, plan: Plan, holder: int) -> None:
        self.plan, self.holder = plan, holder
        self.t0, self.loss = 0, float("nan")
        self.evaluation: Evaluated | None = None
        self.models: dict[str, nn.Module] = {}
        self._stopping = Stopping(plan.patience, plan.improving)
        self._passed: set[tuple[int, int, int, int]] = set()
        self._held_back: list[tuple[int, Message]] = []
        """Of the next round, for which there may be no need."""

    @property
    def done(self) -> bool:
        """Whether all rounds are over and evaluated, or enough of them."""
        return self.t0 == self.plan.rounds or (self.plan.patience > 0 and self._stopping.over)

    @property
    def awaited(self) -> set[int]:
        """The parties of whom a message is missing: the holder answers when it has all the others' embeddings."""
        others = {*range(1, self.plan.M + 1)} - {self.holder}
        passed = {(m, to, kind) for t0, m, to, kind in self._passed if t0 == self.t0}
        embedded, evaluated = ({m for m, _, said in passed if said == kind} for kind in (EMBEDDING, EVALUATION))
        answered = {to for m, to, _ in passed if m == self.holder}
        if embedded != others or (answered == others and self.plan.evaluates_after(self.t0) and evaluated != others):
            return others - (embedded if embedded != others else evaluated)
        return {self.holder}

    def receive(self, message: Message) -> list[tuple[int, Message]]:
        """Pass a sealed message on, once, or take note of the round that the label holder reports."""
        match message:
            case Passed(t0) if t0 == self.t0 and self.done and self.plan.patience:
                return []  # it was on its way when the run was found to be over
            case Passed(t0, m, to, kind) if self._passes(t0, m, to) and (t0, m, to, kind) not in self._passed:
                self._passed.add((t0, m, to, kind))
                if t0 > self.t0 and self.plan.patience and self.plan.evaluates_after(self.t0):
                    self._held_back.append((to, message))
                    return []
                return [(to, message)]
            case Report(t0, m, loss, metrics) if t0 == self.t0 and m == self.holder and not self.done:
                if (metrics is not None) != self.plan.evaluates_after(t0):
                    raise RemoteProtocolError(f"metrics of round {t0} that were not expected, or none")
                if metrics is not None:
                    self.evaluation = _evaluated(t0, metrics)
                    self._stopping.see(t0, self.evaluation.validation)
                self.t0, self.loss = t0 + 1, loss
                self._passed = {passed for passed in self._passed if passed[0] > t0}
                held_back, self._held_back = self._held_back, []
                return [] if self.done else held_back
        raise RemoteProtocolError(f"{type(message).__name__} of round {message.t0} in round {self.t0}")

    def _passes(self, t0: int, m: int, to: int) -> bool:
        """Others write to the holder, also of the round that comes next; the holder answers in this round."""
        last = self.t0 if m == self.holder else self.t0 + 1
        return self.holder in (m, to) and to <= self.plan.M and self.t0 <= t0 <= min(last, self.plan.rounds - 1)

    def train(self) -> None:
        """There is no model here."""

    def settled_state(self) -> dict[str, Any]:
        """The round, and what was reported of the last one."""
        evaluation = asdict(self.evaluation) if self.evaluation else None
        return {"t0": self.t0, "loss": self.loss, "evaluation": evaluation, "stopping": self._stopping.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken."""
        self.t0, self.loss = state["t0"], state["loss"]
        self.evaluation = Evaluated(**state["evaluation"]) if state["evaluation"] else None
        self._stopping.load_state_dict(state["stopping"])


def _evaluated(t0: int, metrics: Mapping[str, Mapping[str, float]]) -> Evaluated:
    train, validation, test = (dict(metrics[part]) for part in PARTS)
    return Evaluated(t0, train, validation, test)


class _Relayed(SealedParty):
    """A party to which nobody writes openly."""

    def _opened(self, message: Message) -> tuple[int, Message]:
        """Who sent it, and what."""
        if not isinstance(message, Passed):
            raise RemoteProtocolError(f"{self.party.holding.name}: an open {type(message).__name__} from the server")
        return message.m, self._sealing.open(message)


class Correspondent(_Relayed):
    """In the place of a party without labels: it writes to the label holder, sealed, and hears from it alone."""

    settled = True

    def __init__(self, party: Party, holder: int, sealing: Sealing | None) -> None:
        super().__init__(party, sealing)
        self.holder = holder

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self.party.done

    def start(self) -> list[Message]:
        """The embedding of the next round."""
        return self._all_sealed(self.party.start())

    def receive(self, message: Message) -> list[Message]:
        """Open the label holder's answer, and answer it."""
        j, opened = self._opened(message)
        if j != self.holder:
            raise RemoteProtocolError(f"{self.party.holding.name}: a message of party {j}, which holds no labels")
        return self._all_sealed(self.party.receive(opened))

    def _all_sealed(self, messages: Iterable[Message]) -> list[Message]:
        return [self._sealing.seal(self.holder, message) for message in messages]

    def state_dict(self) -> dict[str, Any]:
        """That of the party; keys belong to a session and are never kept."""
        return self.party.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.party.load_state_dict(state)


class Holder(_Relayed):
    """In the place of the party with the labels: its own Party, and the Server that all parties talk to."""

    def __init__(self, party: Party, server: Server, names: tuple[str, ...], sealing: Sealing | None) -> None:
        super().__init__(party, sealing)
        self.server, self._names = server, names
        self._reported = 0

    @property
    def done(self) -> bool:
        """Whether all rounds are over and evaluated."""
        return self.party.done and self.server.done

    @property
    def settled(self) -> bool:
        """Whether both are between the same two rounds."""
        return self.server.settled and self.server.t0 == self.party.t0

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The party's own, and that of the server."""
        return {**self.party.models, **self.server.models}

    def start(self) -> list[Message]:
        """The own embedding stays here; the others' are awaited."""
        for message in self.party.start():
            self.server.receive(message)
        return []

    def receive(self, message: Message) -> Iterator[Message]:
        """Serve another party; when a round's messages are all here, the answers leave before the own steps."""
        j, opened = self._opened(message)
        return self._served(j, opened)

    def _served(self, j: int, message: Message) -> Iterator[Message]:
        replies = self._replies(j, message)
        for m, reply in replies:
            if m != self.m:
                yield self._sealing.seal(m, reply)
        if replies:
            self.server.train()
        for reply in (reply for m, reply in replies if m == self.m):
            for answer in self.party.receive(reply):
                yield from self._served(self.m, answer)
        if self.settled and self.t0 > self._reported:
            self._reported = self.t0
            yield self._report(self.t0 - 1)

    def _replies(self, j: int, message: Message) -> list[tuple[int, Message]]:
        try:
            return self.server.receive(message)
        except RemoteProtocolError as error:
            if error.__cause__ is not None:  # bytes that cannot be decoded may be another party's; the codec names it
                raise
            raise RemoteProtocolError(f"{self._names[j - 1]}: {error}") from None

    def _report(self, t0: int) -> Report:
        evaluation = self.server.evaluation if self.plan.evaluates_after(t0) else None
        metrics = {part: getattr(evaluation, part) for part in PARTS} if evaluation else None
        return Report(t0, self.m, self.server.loss, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Both machines between two rounds."""
        if not self.settled:
            raise LocalProtocolError(f"{self.party.holding.name}: the state of a label holder is kept between rounds")
        return {"party": self.party.state_dict(), "server": self.server.settled_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.party.load_state_dict(state["party"])
        self.server.load_state_dict(state["server"])
        self._reported = self.t0


def sealed(recipe: Recipe, party: Party, server: Server | None, secrets: PairSecrets | None) -> PartyMachine:
    """The party as it takes part when a party holds the labels; `server` is needed where they are."""
    sealing = None if secrets is None else Sealing(secrets, recipe.names)
    if party.m != recipe.holder:
        return Correspondent(party, recipe.holder, sealing)
    if server is None:
        raise LocalProtocolError(f"{party.holding.name} holds the labels; the server model belongs beside it")
    return Holder(party, server, recipe.names, sealing)
