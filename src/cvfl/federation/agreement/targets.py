"""What the label holder tells of the shared rows, in their order: what each is for, and its label where labels may go.

Both ends check it against what they know themselves: their number of rows, the shares in their own configuration, and
the labels that the loss takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cvfl.config.sections import DataConfig
from cvfl.data.tables.split import LARGEST_GROUP, LEFT_OUT, Part
from cvfl.errors import RemoteProtocolError
from cvfl.protocol import Loss, Presence, Units
from cvfl.wire import pack, unpack
from cvfl.wire.targets import Targets

Held = NDArray[np.bool_]
"""Of each row whether a party holds it."""
LOSSES = tuple(Loss)
"""By their numbers on the wire."""
_LARGEST = torch.finfo(torch.float64).max
_DEVIATIONS = 6
"""How far from its share a part may be that was drawn row by row: further is once in 10^9 runs."""


@dataclass(frozen=True)
class Told:
    """Targets that were checked: the part of each row, the loss, and labels of training rows first, in these units.

    `present` says for each party which of the rows it holds, as far as it is known here and not all hold all of them.
    """

    parts: NDArray[np.int8]
    loss: Loss
    outputs: int
    labels: Tensor
    units: Units = field(default_factory=Units)
    present: tuple[Held, ...] = ()

    @property
    def sizes(self) -> list[int]:
        """Training, validation and test rows."""
        return [int((self.parts == part).sum()) for part in Part]

    @property
    def presence(self) -> Presence | None:
        """Which rows each party holds, in the order in which they are trained on and held out; None if all hold all."""
        return in_parts(self.present, self.parts) if self.present else None


def in_parts(present: Sequence[Held], parts: NDArray[np.int8]) -> Presence:
    """Which rows each party holds: training rows first, then those for validation and for the test."""
    order, train = np.argsort(parts, kind="stable"), int((parts == Part.TRAIN).sum())
    used = int((parts != LEFT_OUT).sum())
    ordered = [torch.from_numpy(held[order[:used]]) for held in present]
    return Presence(tuple(held[:train] for held in ordered), tuple(held[train:] for held in ordered))


def write_targets(told: Told, m: int, with_labels: bool) -> Targets:
    """The message of party m; without labels when they stay where they are."""
    labels = label_bytes(told.labels) if with_labels else b""
    units = units_told(told.loss, told.units) if with_labels else ()
    present = tuple(pack(held.astype(np.uint8), 1) for j, held in enumerate(told.present, start=1) if j != m)
    return Targets(0, LOSSES.index(told.loss), told.outputs, told.parts.tobytes(), labels, units, present)


def read_present(targets: Targets, who: str, parties: int, sealed: bool = False) -> tuple[Held, ...]:
    """Which rows each of so many parties holds, as `who` told; nothing of what is sealed for others."""
    if (len(targets.present), targets.sealed) != (parties, sealed and parties > 0):
        raise RemoteProtocolError(f"{who}: which rows {len(targets.present)} parties hold; {parties} were expected")
    rows = len(targets.parts)
    return () if sealed else tuple(unpack(bits, 1, rows).astype(np.bool_) for bits in targets.present)


def units_told(loss: Loss, units: Units) -> tuple[float, ...]:
    """The units of labels as a message has them: classes have none."""
    return (units.offset, units.scale) if loss is Loss.SQUARED else ()


def label_bytes(labels: Tensor) -> bytes:
    """Labels as a message has them."""
    return labels.cpu().numpy().astype("<f8").tobytes()


def read_targets(
    targets: Targets, who: str, data: DataConfig, labels: tuple[Part, ...], rows: int | None = None
) -> Told:
    """What `who` told, with labels for these parts of the rows; `rows` is how many there are if that is known."""
    parts = np.frombuffer(targets.parts, dtype=np.int8).copy()
    if not set(np.unique(parts)) <= {*Part, LEFT_OUT} or rows not in (None, len(parts)):
        raise RemoteProtocolError(f"{who}: targets for {len(parts)} rows, there are {rows}")
    if targets.loss >= len(LOSSES) or targets.outputs < 1:
        raise RemoteProtocolError(f"{who}: targets of no loss that there is, or for {targets.outputs} outputs")
    loss, outputs = LOSSES[targets.loss], targets.outputs
    if (outputs > 1) != (loss is Loss.MULTICLASS):
        raise RemoteProtocolError(f"{who}: {outputs} outputs for the {loss} loss")
    given = torch.from_numpy(np.frombuffer(targets.labels, dtype="<f8").astype(np.float64))
    told = Told(parts, loss, outputs, given, _units(targets, loss, who))
    expected = sum(told.sizes[part] for part in labels)
    if len(given) != expected:
        raise RemoteProtocolError(f"{who}: {len(given)} labels for {sum(told.sizes)} rows, {expected} were expected")
    low, high = (0, outputs - 1) if loss is Loss.MULTICLASS else (-_LARGEST, _LARGEST)
    if not bool(((given >= low) & (given <= high)).all()):
        raise RemoteProtocolError(f"{who}: labels that the {loss} loss does not take")
    _check_shares(told, who, data)
    return told


def _units(targets: Targets, loss: Loss, who: str) -> Units:
    """What was told of them: of classes, and to a party, nothing is."""
    if not targets.units:
        return Units()
    units = Units(*targets.units)
    if loss is not Loss.SQUARED or not (abs(units.offset) <= _LARGEST and 0 < units.scale <= _LARGEST):
        raise RemoteProtocolError(f"{who}: units that labels of the {loss} loss cannot have")
    return units


def _check_shares(told: Told, who: str, data: DataConfig) -> None:
    """Refuse parts of other sizes than the terms say: held-out rows are sent in full."""
    rows = sum(told.sizes)
    by_class = data.stratify and told.loss is not Loss.SQUARED
    for part, share in ((Part.VALIDATION, data.validation_share), (Part.TEST, data.test_share)):
        drawn = _DEVIATIONS * (rows * share * (1 - share)) ** 0.5 if data.split_by is None else 0
        group = LARGEST_GROUP * rows if data.split_groups is not None else 0
        slack = 1 + max(max(told.outputs, 2) if by_class else drawn, group)
        if abs(told.sizes[part] - rows * share) > slack:
            raise RemoteProtocolError(
                f"{who}: {told.sizes[part]} of {rows} rows for {part.name.lower()}, the terms say a share of {share}"
            )
