"""What the server brings to the handshake: labels that come with a data set, or that their holder tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from cvfl.config.modes import label_holder
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.data.tables.split import Part
from cvfl.errors import LocalProtocolError, RemoteProtocolError, plain
from cvfl.federation.agreement.around import around
from cvfl.federation.agreement.facts import facts_of, read_facts
from cvfl.federation.agreement.targets import in_parts, read_present, read_targets
from cvfl.federation.builder.machines import labels_of, server_machine
from cvfl.federation.builder.recipe import elsewhere, make_recipe
from cvfl.federation.start import Start
from cvfl.protocol import Labels, Loss, Presence, ServerMachine
from cvfl.runtime.carrier import TermsError
from cvfl.types import SERVER
from cvfl.wire import Message
from cvfl.wire.control import How, Offer
from cvfl.wire.targets import Targets


class ServerRows(ABC):
    """What the server brings: how rows are settled, their labels once it has them, and its model."""

    how: How = "as-is"
    classes: tuple[str, ...] = ()
    """What the numbers of classes mean, if it is known here."""
    tables: ClassVar[bool] = False
    """Whether parties bring tables, whose rows are settled."""
    predicts: ClassVar[bool] = False
    """Whether the rows are new ones, which are to be predicted."""
    serves: ClassVar[bool] = False
    """Whether these are served one by one, to whoever asks for them."""
    partly: bool = False
    """Whether new rows are those of the party with the label, and others may lack some."""
    start: Start | None = None
    """The earlier run that all roles start from, if there is one."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config, self.names, self._holder = config, tuple(names), label_holder(config, names)
        self._loss, self._outputs = Loss.BINARY, 1
        self._sizes: list[int] | None = None
        self._labels: Labels | None = None
        self._present: Presence | None = None

    @property
    def told_outputs(self) -> str | None:
        """The party that is told the outputs of held-out rows at the end: the holder of labels that were randomised."""
        return self.config.privacy.labels if self.config.privacy.randomised and not self.predicts else None

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows, once they are known."""
        return self._sizes

    def settled(self, sizes: list[int]) -> list[int]:
        """The sizes that parties must have settled on, of which the first one says these: those that are known here."""
        return self.sizes() or []

    @property
    def parts(self) -> bytes:
        """What each shared row is for, once their holder has told; nothing for a data set by name."""
        return b""

    def models_at(self, m: int) -> set[str]:
        """Whose models party m has: its own, and that of the server if the labels stay with it."""
        return {self.names[m - 1], "server"} if m == self._holder else {self.names[m - 1]}

    def welcome(self, name: str, offer: Offer) -> None:
        """Refuse a party that was in the run that all start from and begins afresh, or the other way round."""
        new = self.start is not None and name not in self.start.names
        if offer.new != new:
            said = "is not in" if new else "is in"
            what = "--joins" if new else "--from and its own model"
            run = self.start.run if self.start else ""
            raise TermsError(f"{name} {said} run {run}, which all start from; start it with {what}")

    def enough(self, offers: Mapping[int, Offer]) -> bool:
        """Whether a session can begin with these parties."""
        return len(offers) == len(self.names)

    def giver(self, offers: Mapping[int, Offer]) -> int:
        """The party whose secret orders the rows."""
        return 1

    def check(self, offers: Mapping[int, Offer]) -> None:
        """Refuse parties that cannot settle their rows together."""
        return

    def outer(self, offers: Mapping[int, Offer]) -> int:
        """The party whose rows are those of the run, in an outer alignment; else rows are those that all hold."""
        return SERVER

    @abstractmethod
    def accept(self, targets: Targets) -> None:
        """Take the labels from their holder; the handshake lets nobody else send them."""

    @abstractmethod
    def passed_on(self, targets: Targets, m: int) -> Targets:
        """What party m, another than their holder, gets to hear of the targets."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same labels again."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Have the labels that `state` told."""
        return

    def facts(self, offers: Mapping[int, Offer]) -> dict[str, Any]:
        """What the parties must know of each other."""
        return facts_of(self.names, offers, self.sizes() or [], self._loss, self._outputs)

    def machine(self, facts: dict[str, Any], ids: Sequence[int] = (), folder: Path | None = None) -> ServerMachine:
        """The server with its labels; a relay when they stay with a party. So many ids were aligned, if any.

        What it knows of rows is in the folder when its memory is too small.
        """
        recipe = make_recipe(self.config, read_facts(facts), [elsewhere] * len(self.names))
        if self.start:
            recipe = self.start.warmed_role(recipe, facts["outputs"])
        aside = 0
        if self.config.budget is not None:
            aside = around(self.config, facts, ids, recipe.plan.evaluations, self.start)
        if self._labels is None:
            return server_machine(recipe, None, recipe.codecs(folder))
        labels = self._labels.to(recipe.plan.device)
        return server_machine(recipe, labels, recipe.codecs(folder), aside, self._present)

    def news(self) -> list[tuple[int, Message]]:
        """What parties are to be told while the session goes on, and no message of theirs asked for."""
        return []


def labelled(offers: Mapping[int, Offer]) -> int:
    """The party that holds the label."""
    return next(m for m, offer in offers.items() if offer.label)


class NamedLabels(ServerRows):
    """The server of a data set by name, which has the labels."""

    def __init__(self, config: RunConfig, data: VerticalData, classes: Sequence[str] = ()) -> None:
        super().__init__(config, data.names)
        self.classes = tuple(classes)
        self._sizes = [len(y) for y in (data.train_labels, data.validation_labels, data.test_labels)]
        self._labels, self._loss, self._outputs = labels_of(data), data.loss, data.outputs

    def accept(self, targets: Targets) -> None:
        """Labels come with the data."""
        raise RemoteProtocolError("targets for a data set that has its own")

    def passed_on(self, targets: Targets, m: int) -> Targets:
        """Nobody sends any."""
        raise LocalProtocolError("targets for a data set that has its own")


class TableLabels(ServerRows):
    """The server of a federation of tables: their holder tells the labels, or sizes alone when they stay with it."""

    tables = True

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        super().__init__(config, names)
        self.how = "as-is" if config.data.alignment == "aligned" else "align"
        self._known: Targets | None = None

    @property
    def parts(self) -> bytes:
        """What each shared row is for."""
        return bytes(self._known.parts) if self._known else b""

    def check(self, offers: Mapping[int, Offer]) -> None:
        """One party holds the label: without it everyone would wait for labels that never come."""
        holders = [self.names[m - 1] for m, offer in offers.items() if offer.label]
        if len(holders) != 1:
            said = " and ".join(holders) or "none"
            raise RemoteProtocolError(f"exactly one party holds the label, not {said}; set its key label")
        privacy = self.config.privacy
        private = privacy.labels if self._holder or privacy.randomised else None
        for key, named in (("privacy.labels", private), ("data.label_holder", self.config.data.label_holder)):
            if named not in (None, *holders):
                raise RemoteProtocolError(f"{key} names {named}, but the table of {holders[0]} has the label")

        self.classes = next(tuple(map(plain, offer.classes)) for offer in offers.values() if offer.label)

    def outer(self, offers: Mapping[int, Offer]) -> int:
        """The party with the label, if the terms say so."""
        outer = self.partly if self.predicts else self.config.data.alignment == "outer"
        return labelled(offers) if outer else SERVER

    def accept(self, targets: Targets) -> None:
        """Take the labels, or only what rows are for when labels stay with their holder."""
        labels = () if self._holder else tuple(Part)
        who, outer = self.names[targets.m - 1], self.config.data.alignment == "outer"
        told = read_targets(targets, who, self.config.data, labels)
        held = read_present(targets, who, len(self.names) - 1 if outer else 0, sealed=bool(self._holder))
        if outer and not self._holder:
            own = np.ones(len(told.parts), dtype=np.bool_)
            self._present = in_parts((*held[: targets.m - 1], own, *held[targets.m - 1 :]), told.parts)
        self._loss, self._outputs, self._sizes = told.loss, told.outputs, told.sizes
        if not self._holder:
            typed = told.loss.labels(told.labels, getattr(torch, self.config.precision))
            train, validation, test = torch.split(typed, told.sizes)
            self._labels = Labels(train, test, validation, told.units)
        present = tuple(map(bytes, targets.present))
        self._known = replace(targets, parts=bytes(targets.parts), labels=bytes(targets.labels), present=present)

    def passed_on(self, targets: Targets, m: int) -> Targets:
        """Algorithm 1 shares the training labels with all parties; Algorithm 2 does not. Nobody needs their units.

        A party hears which rows it holds itself, and of no other one.
        """
        train = self._sizes[0] if self._sizes and self.config.algorithm == 1 else 0
        at = m - 1 if m < targets.m else m - 2  # since the label holder, which holds all, is left out
        labels, present = bytes(targets.labels[: 8 * train]), targets.present[at : at + 1]
        return replace(targets, m=0, labels=labels, units=(), present=present)

    def state(self) -> dict[str, Any]:
        """The targets."""
        assert self._known is not None
        return asdict(self._known)

    def restore(self, state: dict[str, Any]) -> None:
        """The targets again."""
        self.accept(Targets(**state | {key: tuple(state.get(key, ())) for key in ("units", "present")}))
