"""Single roles of a federation, built from a configuration: what a party brings, and what the server brings."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from cvfl.compress import build
from cvfl.data import VerticalData
from cvfl.data.organisation import PartyTable
from cvfl.data.prepare import Preparation
from cvfl.data.split import Part
from cvfl.errors import CvflError, DataError, LocalProtocolError, RemoteProtocolError
from cvfl.experiments.config import RunConfig
from cvfl.experiments.federation import Facts, held, party_maker, recipe_of
from cvfl.experiments.loading import in_order, parts_of, row_fractions
from cvfl.protocol import Holding, Labels, Loss, Party, Server
from cvfl.protocol.recipe import MakeModel
from cvfl.wire.control import How, Targets

LEFT_OUT = 3
"""The part of a row that has no label."""
_LOSSES = list(Loss)
_LARGEST = torch.finfo(torch.float64).max
_FACTS = TypeAdapter(Facts)


def terms_of(config: RunConfig) -> dict[str, Any]:
    """The keys that all roles must have alike; what a party decides for itself is in its offer."""
    values = config.model_dump(mode="json", exclude={"party", "party_model", "compressor", "device", "network"})
    private = {"path", "id", "prepare"}
    data = {f"data.{key}": value for key, value in values.pop("data").items() if key not in private}
    return values | data


def offer_of(config: RunConfig, name: str) -> dict[str, Any]:
    """What a party tells of itself: the width of its embedding, its compressor, and whether it holds the label."""
    section = config.party.get(name)
    return {
        "width": config.model_of(name).width,
        "compressor": config.compressor_of(name),
        "label": section is not None and section.label is not None,
    }


class NamedRows:
    """A party of a data set by name: rows are aligned, and labels come with the data."""

    def __init__(self, config: RunConfig, name: str, data: VerticalData) -> None:
        if name not in data.names:
            raise LocalProtocolError(f"{name!r} is no party of this data set ({', '.join(data.names)})")
        self.config, self.name, self.data = config, name, data

    def ids(self) -> Sequence[str]:
        """There are none."""
        raise LocalProtocolError(f"{self.name}: the rows of a data set by name have no ids")

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Nothing is to be settled."""
        return None

    def accept(self, targets: Targets) -> None:
        """Labels come with the data, so nobody should send them."""
        raise RemoteProtocolError(f"{self.name}: targets for a data set that has its own")

    def sizes(self) -> list[int]:
        """Training, validation and test rows."""
        return [len(y) for y in (self.data.train_labels, self.data.validation_labels, self.data.test_labels)]

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

    def party(self, m: int, facts: dict[str, Any]) -> Party:
        """Party m with its part of the data."""
        at = self.data.names.index(self.name)
        categories = self.data.categories[at] if self.data.categories else ()
        maker = party_maker(self.config, self.name, self.data.train[at], categories)
        return _party(self.config, m, facts, maker, held(self.data, at), self.data.train_labels, self.data)


class TableRows:
    """A party with its own table: rows are settled with the others, and columns prepared here."""

    def __init__(self, config: RunConfig, table: PartyTable) -> None:
        self.config, self.table, self.name = config, table, table.party.name
        self.preparation: Preparation | None = None
        self._places: NDArray[np.int64] = np.arange(0)
        self._parts: NDArray[np.int8] | None = None
        self._labels: Tensor = torch.empty(0, dtype=torch.float64)
        self._ids: dict[str, int] = {}

    def ids(self) -> Sequence[str]:
        """The ids of rows that can be used."""
        self._ids = self.table.ids()
        return list(self._ids)

    def settle(self, common: Collection[str] | None) -> Targets | None:
        """Put the shared rows in order; the label holder says what they are for."""
        self._parts = None
        if common is None:
            self._places = np.arange(self.table.table.rows)
            fractions = row_fractions(len(self._places), self.config.seed)
        else:
            ids, fractions = in_order(common, self.config.seed)
            self._places = np.array([self._ids[text] for text in ids], dtype=np.int64)
        return self._targets(fractions) if self.table.label else None

    def _targets(self, fractions: NDArray[np.float64]) -> Targets:
        label = self.table.label
        assert label is not None
        known = label.known[self._places]
        parts = np.full(len(self._places), LEFT_OUT, dtype=np.int8)
        parts[known] = parts_of(label, self._places[known], fractions[known], self.config.data)
        self._parts = parts
        order, train = self._order()
        self._labels = label.tensor(order, train, torch.float64).double()
        outputs = len(label.classes) if label.loss is Loss.MULTICLASS else 1
        loss = _LOSSES.index(label.loss)
        return Targets(0, loss, outputs, parts.tobytes(), self._labels.numpy().astype("<f8").tobytes())

    def accept(self, targets: Targets) -> None:
        """What the label holder said: what each row is for, and the training labels if parties get them."""
        parts = np.frombuffer(targets.parts, dtype=np.int8)
        if len(parts) != len(self._places) or not set(np.unique(parts)) <= {*Part, LEFT_OUT}:
            raise RemoteProtocolError(f"{self.name}: targets for {len(parts)} rows, there are {len(self._places)}")
        self._parts = parts.copy()
        self._labels = _numbers(targets.labels)

    def _order(self) -> tuple[NDArray[np.int64], int]:
        """Places of the used rows: training, then validation, then test; and how many are for training."""
        assert self._parts is not None
        used = self._parts != LEFT_OUT
        order = np.argsort(self._parts[used], kind="stable")
        return self._places[used][order], int((self._parts == Part.TRAIN).sum())

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows."""
        return None if self._parts is None else [int((self._parts == part).sum()) for part in Part]

    def state(self) -> dict[str, Any]:
        """Places, parts and labels."""
        assert self._parts is not None
        parts = torch.from_numpy(self._parts.copy())
        places = torch.from_numpy(self._places)
        return {"places": places, "parts": parts, "labels": self._labels, "table": self._fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        """The same again, if it is the same table."""
        if state["table"] != self._fingerprint:
            raise DataError(
                f"{self.table.table.name}: this is not the table that the run began with; "
                "bring that one back, or remove the state to begin again"
            )
        self._places, self._parts = state["places"].numpy(), state["parts"].numpy()
        self._labels = state["labels"]

    @cached_property
    def _fingerprint(self) -> str:
        """Whose rows the table has, in which order."""
        ids = self.table.ids() if self.config.data.alignment == "private" else ()
        return hashlib.sha256("\n".join((str(self.table.table.rows), *ids)).encode()).hexdigest()

    def party(self, m: int, facts: dict[str, Any]) -> Party:
        """Party m with its columns prepared."""
        order, train = self._order()
        dtype = getattr(torch, self.config.precision)
        self.preparation, x = self.table.prepared(order, train, dtype)
        maker = party_maker(self.config, self.name, x, self.preparation.categories)
        rows = torch.split(x, self.sizes() or [])
        held_out = tuple(part for part in rows[1:] if len(part)) or (rows[2],)
        return _party(self.config, m, facts, maker, (rows[0], held_out), self._labels[:train])


class NamedDesk:
    """The server's side of a data set by name."""

    how: How = "as-is"

    def __init__(self, config: RunConfig, data: VerticalData) -> None:
        self.config, self.names = config, data.names
        self._labels = Labels(data.train_labels, data.test_labels, data.validation_labels)
        self._loss, self._outputs = data.loss, data.outputs

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """Any offers will do."""

    def accept(self, targets: Targets) -> None:
        """Labels come with the data."""
        raise RemoteProtocolError("targets for a data set that has its own")

    def passed_on(self, targets: Targets) -> Targets:
        """Nothing is."""
        return targets

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows."""
        return [len(y) for y in (self._labels.train, self._labels.validation, self._labels.test)]

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""

    def facts(self, offers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the parties must know of each other, from their offers; a bad offer is refused by name."""
        return _facts(self.names, offers, self.sizes() or [], self._loss, self._outputs)

    def server(self, facts: dict[str, Any]) -> Server:
        """The server with its labels."""
        recipe = recipe_of(self.config, read_facts(facts), [elsewhere] * len(self.names))
        device = recipe.plan.device
        labels = Labels(*(y.to(device) for y in (self._labels.train, self._labels.test, self._labels.validation)))
        return recipe.server(labels, recipe.codecs())


class TableDesk(NamedDesk):
    """The server's side of a federation of tables: it gets the labels from their holder."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config, self.names = config, tuple(names)
        self.how = "align" if config.data.alignment == "private" else "as-is"
        self._known: Targets | None = None

    def check(self, offers: Sequence[Mapping[str, Any]]) -> None:
        """One party holds the label: without it everyone would wait for labels that never come."""
        holders = [name for name, offer in zip(self.names, offers, strict=True) if offer.get("label")]
        if len(holders) != 1:
            said = " and ".join(holders) or "none"
            raise RemoteProtocolError(f"exactly one party holds the label, not {said}; set its key label")

    def accept(self, targets: Targets) -> None:
        """Take the labels."""
        parts = np.frombuffer(targets.parts, dtype=np.int8)
        sizes = [int((parts == part).sum()) for part in Part]
        labels = _numbers(targets.labels)
        if targets.loss >= len(_LOSSES) or len(labels) != sum(sizes):
            raise RemoteProtocolError(f"{self.names[targets.m - 1]}: {len(labels)} labels for {sum(sizes)} rows")
        self._loss, self._outputs = _LOSSES[targets.loss], targets.outputs
        low, high = (0, targets.outputs - 1) if self._loss is Loss.MULTICLASS else (-_LARGEST, _LARGEST)
        if not bool(((labels >= low) & (labels <= high)).all()):
            raise RemoteProtocolError(f"{self.names[targets.m - 1]}: labels that the {self._loss} loss does not take")
        typed = self._loss.labels(labels, getattr(torch, self.config.precision))
        train, validation, test = torch.split(typed, sizes)
        self._labels = Labels(train, test, validation)
        self._known = replace(targets, parts=bytes(targets.parts), labels=bytes(targets.labels))

    def passed_on(self, targets: Targets) -> Targets:
        """Algorithm 1 shares the training labels with all parties; Algorithm 2 does not."""
        train = len(self._labels.train) if self.config.algorithm == 1 else 0
        return replace(targets, m=0, labels=bytes(targets.labels[: 8 * train]))

    def sizes(self) -> list[int] | None:
        """Training, validation and test rows, once the labels are here."""
        return None if self._known is None else super().sizes()

    def state(self) -> dict[str, Any]:
        """The targets."""
        assert self._known is not None
        return asdict(self._known)

    def restore(self, state: dict[str, Any]) -> None:
        """The targets again."""
        self.accept(Targets(**state))


def _party(
    config: RunConfig,
    m: int,
    facts: dict[str, Any],
    maker: MakeModel,
    rows: tuple[Any, tuple[Any, ...]],
    labels: Tensor,
    data: VerticalData | None = None,
) -> Party:
    known = read_facts(facts)
    recipe = recipe_of(config, known, [maker if j == m else elsewhere for j in range(1, len(known.names) + 1)])
    shared = (
        recipe.plan.loss.labels(labels, recipe.plan.dtype).to(recipe.plan.device) if config.algorithm == 1 else None
    )
    holding = Holding(known.names[m - 1], *rows, shared, data.augment if data else None)
    return recipe.party(m, holding, recipe.codecs())


def elsewhere() -> nn.Module:
    """Stands for the model of a role that is on another machine."""
    raise LocalProtocolError("the model of another role is not here")


def _facts(
    names: Sequence[str], offers: Sequence[Mapping[str, Any]], sizes: Sequence[int], loss: Loss, outputs: int
) -> dict[str, Any]:
    for name, offer in zip(names, offers, strict=True):
        width, compressor = offer.get("width"), offer.get("compressor")
        if not isinstance(width, int) or not 1 <= width <= 1 << 20 or not isinstance(compressor, str):
            raise RemoteProtocolError(f"{name}: an offer without width and compressor")
        try:
            build(compressor)
        except CvflError as error:
            raise RemoteProtocolError(f"{name}: {error}") from None
    widths, compressors = ([offer[key] for offer in offers] for key in ("width", "compressor"))
    return {
        "names": list(names),
        "widths": widths,
        "compressors": compressors,
        "rows": list(sizes),
        "loss": str(loss),
        "outputs": outputs,
    }


def read_facts(facts: dict[str, Any]) -> Facts:
    """Facts as they came over the wire, checked."""
    try:
        return _FACTS.validate_python(facts)
    except ValidationError as error:
        raise RemoteProtocolError(f"facts of the run that are malformed: {error.errors()[0]['msg']}") from None


def _numbers(data: bytes | memoryview) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype="<f8").astype(np.float64))
