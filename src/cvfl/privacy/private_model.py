"""A private model: what the holder of labels that were told randomised fits to the true ones, when a run is over.

    party j                                      server           the holder, party k
    Evaluation(T), Evaluation(T + 1) .. sealed ──▶ passed on ──▶ h_j of all rows, by the final models
                                                                     │
                                    true labels, which never leave ──▶ a last layer, its threshold

After the last round, T, every party sends the embeddings of all rows once more, training rows first, a batch at a time.
The holder alone can read them, or with secure aggregation their sum, and answers nobody. What it fits is its own, and
it fits it when the run is over to all others: how long that takes depends on true labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from cvfl.errors import DecodeError, RemoteProtocolError
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.sealed_party import SealedParty
from cvfl.privacy.sealing import Sealing
from cvfl.protocol import Codec, Codecs, Labels, Party, PartyMachine, Plan
from cvfl.protocol.last_pass import all_rows, batches
from cvfl.protocol.learning.decision import Decided
from cvfl.protocol.learning.last_layer import fit_last_layer
from cvfl.protocol.learning.metrics import evaluate
from cvfl.protocol.rows import batch_of, batches_of
from cvfl.wire import Bytes, Evaluation, Message, Passed


@dataclass(frozen=True)
class PrivateModel:
    """What the holder has at the end: a linear layer, what its outputs mean, and how good it is by the true labels."""

    layer: dict[str, Tensor]
    decided: Decided
    validation: dict[str, float]
    test: dict[str, float]


def fit(plan: Plan, outputs: int, phi: Tensor, labels: Labels) -> PrivateModel:
    """The model for the embeddings of training, validation and test rows, side by side, and their true labels."""
    own = labels.to(torch.device("cpu"))  # wherever a run computes, this is done here
    train, validation, test = torch.split(phi, [plan.rows, plan.validation_rows, plan.test_rows])
    with threadpool_limits(1):  # the same bits on any number of cores, of one kind of processor
        choosing = validation, own.validation
        layer = fit_last_layer(plan.loss, outputs, (train, own.train), choosing, plan.class_weight)
        found = [layer.outputs(part).to(plan.dtype) for part in (validation, test)]
        decided = plan.decision.fit(plan.loss, found[0], own.validation)
        scores = [
            evaluate(plan.loss, z, y, decided, own.units) if len(y) else {}
            for z, y in zip(found, (own.validation, own.test), strict=True)
        ]
    return PrivateModel(layer.tensors(plan.dtype), decided, *scores)


class Teller(SealedParty):
    """In the place of a party without the labels: it is that party, and at the end sends all rows to the holder."""

    def __init__(self, party: Party, codecs: Codecs, holder: int, sealing: Sealing | None) -> None:
        super().__init__(party, sealing)
        self.holder, self._codec, self._over = holder, codecs.last_pass[party.m], False

    @property
    def done(self) -> bool:
        """Whether all rounds are over, and all that follows them was sent."""
        return self.party.done and self._over

    @property
    def settled(self) -> bool:
        """Whether the state can be kept: between the last round and its end a run is not taken up."""
        return not self.party.done or self._over

    def start(self) -> Iterator[Message]:
        """The embedding of the next round, or what follows the last one."""
        return chain(self.party.start(), self._after())

    def receive(self, message: Message) -> Iterator[Message]:
        """What the party answers, and what follows the last round."""
        return chain(self.party.receive(message), self._after())

    def _after(self) -> Iterator[Message]:
        if self.party.done and not self._over:
            self._over = True
            for message in in_batches(self.party, self._codec):
                yield self._sealing.seal(self.holder, message)

    def state_dict(self) -> dict[str, Any]:
        """That of the party: what follows the last round was sent, or is when that round is over again."""
        return self.party.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; that is after the last round only when all was sent."""
        self.party.load_state_dict(state)
        self._over = self.party.done


class Fitter(Teller):
    """In the place of the holder: it is a party, takes in the rows of the others, and can then fit its own model."""

    def __init__(
        self,
        party: Party,
        codecs: Codecs,
        sealing: Sealing | None,
        labels: Labels,
        outputs: int,
        names: tuple[str, ...],
    ) -> None:
        super().__init__(party, codecs, party.m, sealing)
        self._codecs, self._labels, self._outputs, self._names = codecs, labels, outputs, names
        self._packets: dict[int, list[Bytes]] = {m: [] for m in range(1, self.plan.M + 1)}
        self._phi = torch.empty(0)
        self.private: PrivateModel | None = None
        """The model, once it is fitted."""

    def fit(self) -> None:
        """Fit the model to all rows, which are here: after the run, since others see how long it takes."""
        if self.private is None:
            self.private = fit(self.plan, self._outputs, self._phi, self._labels)

    def receive(self, message: Message) -> Iterator[Message]:
        """What the party answers; or a batch of another party."""
        if isinstance(message, Passed):
            self._take(message.m, self._sealing.open(message))
            return iter(())
        return super().receive(message)

    def _after(self) -> Iterator[Message]:
        """Its own rows stay here, and it is over when those of all others are here, too."""
        if self.party.done and not self._packets[self.m]:
            for own in in_batches(self.party, self._codec):
                self._take(self.m, own)
        return iter(())

    def _take(self, m: int, message: Message) -> None:
        here, name = self._packets[m], self._names[m - 1]
        expected = self.party.done and isinstance(message, Evaluation) and message.t0 == self.t0 + len(here)
        if not expected or len(here) == batches(self.plan):
            raise RemoteProtocolError(f"{name}: an unexpected {type(message).__name__} after the last round")
        assert isinstance(message, Evaluation)
        here.append(bytes(message.packet))
        if min(map(len, self._packets.values())) == batches(self.plan):
            try:
                self._read_all()
            except DecodeError as error:
                raise RemoteProtocolError(str(error)) from error

    def _read_all(self) -> None:
        self._phi = torch.cat([self._read(k) for k in range(batches(self.plan))])
        self._over = True

    def _read(self, k: int) -> Tensor:
        """A batch of the embeddings of all parties side by side, or of their sum."""
        t0, plan, batch = self.t0 + k, self.plan, batch_of(all_rows(self.plan), k)
        rows = batch.stop - batch.start
        packets = {m: sent[k] for m, sent in self._packets.items()}
        if self._codecs.last_pass_total is not None:
            shape = rows, plan.widths[0]
            total = self._codecs.last_pass_total
            return total.decode(total.add(packets, t0, shape, plan.dtype), t0, shape, plan.dtype)
        return torch.cat(
            [
                self._codecs.last_pass[m].decode(packet, t0, (rows, plan.widths[m - 1]), plan.dtype)
                for m, packet in packets.items()
            ],
            1,
        )

    def state_dict(self) -> dict[str, Any]:
        """With the rows of all parties, which nobody sends again; what is fitted to them is fitted again."""
        return {"party": self.party.state_dict(), "packets": self._packets if self._over else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.party.load_state_dict(state["party"])
        if state["packets"] is not None:
            self._packets = dict(state["packets"])
            self._read_all()


def in_batches(party: Party, codec: Codec) -> Iterator[Evaluation]:
    """The embeddings of all of a party's rows, by its final model."""
    h = party.all_embeddings()
    for k in range(batches_of(len(h))):
        yield Evaluation(party.t0 + k, party.m, codec.encode(h[batch_of(len(h), k)], party.t0 + k))


def with_private_model(
    party: Party, codecs: Codecs, names: tuple[str, ...], secrets: PairSecrets | None, own: tuple[Labels, int] | None
) -> PartyMachine:
    """The party as it takes part where the holder has a model of its own; `own` are its labels and outputs."""
    sealing = None if secrets is None else Sealing(secrets, names)
    holder = party.plan.private_holder
    if party.m != holder:
        return Teller(party, codecs, holder, sealing)
    if own is None:
        raise RemoteProtocolError(f"{party.holding.name} told the labels; the true ones belong beside it")
    return Fitter(party, codecs, sealing, *own, names)
