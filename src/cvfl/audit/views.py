"""What each role sees of rows, decoded from the frames that pass it.

    reader of embeddings     the embedding of every party, and nearly exact that of held-out rows;
                             under secure aggregation their sum alone
    party, Algorithm 1       the embeddings of the others, or the sum over the others
    party, Algorithm 2       the gradient in its own embedding, and W_m where that comes with it

The reader is the server, or the party that holds the labels: messages between it and the others are those of a server,
sealed, so they are looked at as they are when opened, and the server that passes them on sees nothing of rows.

Codecs are the observer's own, kept from round to round as a receiver keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cvfl.compress import Identity
from cvfl.federation.builder.machines import Federation
from cvfl.protocol import Codec
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.fusion import slope_of
from cvfl.runtime import Meter
from cvfl.types import SERVER, Direction
from cvfl.wire import Broadcast, Bytes, Embedding, Evaluation, Folded, Gradient, decode

EMBEDDING, SUM, OTHERS, GRADIENT = "embedding", "sum of all", "sum over the others", "gradient"
HELD_OUT, HELD_OUT_SUM = "held-out embedding", "held-out sum of all"
_ORDER = (EMBEDDING, SUM, OTHERS, GRADIENT, HELD_OUT, HELD_OUT_SUM)
EVERY_PARTY = "parties"
"""Stands for all parties but the one that is looked at."""


@dataclass(frozen=True)
class View:
    """What observers see, a vector a row, of which parties it may tell, and how often they saw each row.

    `last` is from the last message about a row, `mean` the mean of all; `weights` are those that came with gradients.
    """

    observers: tuple[str, ...]
    sees: str
    of: tuple[int, ...]
    looks: int
    last: Tensor
    mean: Tensor
    weights: Tensor | None = None

    @property
    def held_out(self) -> bool:
        """Whether the rows are those that no step sees."""
        return self.sees in (HELD_OUT, HELD_OUT_SUM)


class Tap(Meter):
    """A meter that shows every frame, where it is counted, to somebody."""

    def __init__(self, see: Callable[[int, Bytes], None]) -> None:
        super().__init__()
        self._see = see

    def add(self, m: int, direction: Direction, frame: Bytes) -> None:
        """Count the frame to or from party m, and show it."""
        super().add(m, direction, frame)
        self._see(m, frame)


class _Sight:
    """The last message about each row, and the sum of all messages."""

    def __init__(self, rows: int, width: int) -> None:
        self.last, self.total = (torch.zeros(rows, width, dtype=torch.float64) for _ in range(2))
        self.looks = torch.zeros(rows, dtype=torch.int64)

    def note(self, rows: Tensor, values: Tensor) -> None:
        seen = values.detach().cpu().double()
        self.last[rows] = seen
        self.total[rows] += seen
        self.looks[rows] += 1

    @property
    def mean(self) -> Tensor:
        return self.total / self.looks.clamp_min(1)[:, None]


class Sights:
    """Decodes frames as their receivers do, and keeps what each of them sees."""

    def __init__(self, federation: Federation, reader: str = "server") -> None:
        self._plan, self._names = federation.plan, federation.recipe.names
        self._parties, self._reader = federation.parties, reader
        self._codecs = federation.recipe.codecs()
        self._weight_codec = Codec(Identity(), self._plan.seed, SERVER, "server", "weights")
        self._server_model = federation.recipe.initial_server_model()
        self._packets: dict[tuple[str, int], dict[int, bytes]] = {}
        self._seen: dict[tuple[str, int], _Sight] = {}
        self._weights: dict[int, Tensor] = {}
        self._passed_on = False

    def see(self, m: int, frame: Bytes) -> None:
        """Take in a frame to or from party m."""
        message = decode(frame)
        t0, rows = message.t0, self._plan.batch(message.t0)
        match message:
            case Embedding(packet=packet):
                self._up(EMBEDDING, m, t0, rows, packet)
            case Evaluation(packet=packet):
                self._up(HELD_OUT, m, t0, torch.arange(self._plan.held_out_rows), packet)
            case Broadcast():
                self._passed_on = True  # the packets are those of the embeddings, and so is what is decoded
            case Folded(partial=packet):
                self._note(OTHERS, m, rows, self._others(m, t0, len(rows), packet))
            case Gradient(packet=packet, weights=weights):
                gradient = self._codecs.replies[m].decode(packet, t0, self._shape(m, len(rows)), self._plan.dtype)
                # The loss is a mean over the batch: a row's own gradient is that times the batch's size.
                self._note(GRADIENT, m, rows, gradient * len(rows))
                if weights:
                    self._weights[m] = self._slope(m, t0, weights)

    def _up(self, sees: str, m: int, t0: int, rows: Tensor, packet: Bytes) -> None:
        """What a party sends is read as it comes, or together with that of all others."""
        held_out = sees == HELD_OUT
        total = self._codecs.held_out_total if held_out else self._codecs.total
        if total is None:
            codecs = self._codecs.evaluations if held_out else self._codecs.embeddings
            shape = self._shape(m, len(rows if held_out else self._plan.sent_rows(m, t0)))
            self._note(sees, m, rows, codecs[m].decode(packet, t0, shape, self._plan.dtype)[: len(rows)])
            return
        sent = self._packets.setdefault((sees, t0), {})
        sent[m] = bytes(packet)
        if len(sent) == self._plan.M:
            self._packets = {key: packets for key, packets in self._packets.items() if key[1] >= t0 - 1}
            self._note(HELD_OUT_SUM if held_out else SUM, SERVER, rows, self._added(total, sees, t0, len(rows)))

    def _added(self, total: Aggregate, sees: str, t0: int, rows: int) -> Tensor:
        """The sum of what was sent; a party that reads it knows its own part."""
        shape, dtype = self._shape(1, rows), self._plan.dtype
        everyone = total.decode(total.add(self._packets[sees, t0], t0, shape, dtype), t0, shape, dtype)
        return everyone if self._reader == "server" else everyone - self._own(self._reading, sees, t0, rows)

    def _others(self, m: int, t0: int, rows: int, packet: Bytes) -> Tensor:
        """The sum over the others, as it came or as what is left of the sum of all."""
        if self._codecs.total is None:
            return self._codecs.replies[m].decode(packet, t0, (rows, self._plan.sum_width), self._plan.dtype)
        everyone = self._codecs.total.decode(packet, t0, self._shape(m, rows), self._plan.dtype)
        return everyone - self._own(m, EMBEDDING, t0, rows)

    def _own(self, m: int, sees: str, t0: int, rows: int) -> Tensor:
        """What party m knows of its own message behind masks, which are its own, too."""
        party = self._parties[m - 1]
        codec = party.codec if sees == EMBEDDING else party.evaluation_codec
        return codec.decode(self._packets[sees, t0][m], t0, self._shape(m, rows), self._plan.dtype)

    @property
    def _reading(self) -> int:
        """Which party reads; 0 if it is the server."""
        return SERVER if self._reader == "server" else self._names.index(self._reader) + 1

    def _slope(self, m: int, t0: int, weights: Bytes) -> Tensor:
        slope = slope_of(self._server_model, self._plan.columns(m))
        assert slope is not None  # else the server would not have sent any
        return self._weight_codec.decode(weights, t0, tuple(slope.shape), self._plan.dtype)

    def _shape(self, m: int, rows: int) -> tuple[int, int]:
        return rows, self._plan.widths[m - 1]

    def _note(self, sees: str, m: int, rows: Tensor, values: Tensor) -> None:
        total = self._plan.held_out_rows if sees in (HELD_OUT, HELD_OUT_SUM) else self._plan.rows
        self._seen.setdefault((sees, m), _Sight(total, values.shape[1])).note(rows, values)

    def views(self) -> Iterator[View]:
        """What everybody saw of others, by kind and party."""
        for (sees, m), sight in sorted(self._seen.items(), key=lambda found: (_ORDER.index(found[0][0]), found[0][1])):
            observers, of = self._who(sees, m)
            if m == SERVER or m != self._reading:  # its own messages never leave a label holder
                weights = self._weights.get(m) if sees == GRADIENT else None
                yield View(observers, sees, of, int(sight.looks.max()), sight.last, sight.mean, weights)

    def _who(self, sees: str, m: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Who sees this of party m or sent to it, and of which parties it may tell."""
        others = tuple(j for j in range(1, self._plan.M + 1) if j not in (m, self._reading))
        match sees:
            case "sum over the others" | "gradient":
                return (self._names[m - 1],), tuple(j for j in range(1, self._plan.M + 1) if j != m)
            case "sum of all" | "held-out sum of all":
                return (self._reader,), others
            case "embedding" if self._passed_on and others:
                return (self._reader, EVERY_PARTY), (m,)
        return (self._reader,), (m,)
