"""The course of a prediction: which rows go by in which batch, and how each sender codes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cvfl.compress import Identity, Masked, Scalar, build
from cvfl.compress.rows import by_row
from cvfl.errors import RemoteProtocolError
from cvfl.federation.agreement.facts import AWAY
from cvfl.protocol import Codec, Loss, Plan, StepSize
from cvfl.protocol.aggregate import Aggregate
from cvfl.protocol.coding.codec import Samples
from cvfl.protocol.rows import batch_of, batches_of
from cvfl.runs.bundle import ServerBundle
from cvfl.types import SERVER

_PART = "test embedding"  # rows that no step sees, as those of an evaluation


class Course:
    """What all roles of a prediction know: who sends what, and how many rows there are."""

    def __init__(
        self,
        names: Sequence[str],
        widths: Sequence[int],
        compressors: Sequence[str],
        rows: int,
        seed: int,
        secure: bool,
        held: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.names, self.widths, self.rows, self.seed, self.secure = tuple(names), tuple(widths), rows, seed, secure
        self._compressors = tuple(compressors)
        self.held = held or {}
        """By party which of the rows it holds, as far as it is known here and it does not hold all."""

    def plan(self, dtype: torch.dtype, bundle: ServerBundle | None = None) -> Plan:
        """Batches as the rounds of a plan, by which a runtime counts."""
        return Plan(
            seed=self.seed,
            rounds=self.batches,
            Q=1,
            batch_size=self.rows,
            rows=self.rows,
            test_rows=0,
            widths=self.widths,
            loss=bundle.loss if bundle else Loss.SQUARED,
            step_size=StepSize(eta=1.0),
            dtype=dtype,
        )

    @property
    def here(self) -> tuple[int, ...]:
        """The parties that take part: all but those that are away."""
        return tuple(m for m, width in enumerate(self.widths, start=1) if width != AWAY)

    @property
    def away(self) -> tuple[int, ...]:
        """Those that are."""
        return tuple(m for m, width in enumerate(self.widths, start=1) if width == AWAY)

    @property
    def batches(self) -> int:
        """How many there are."""
        return batches_of(self.rows)

    def batch(self, t0: int) -> slice:
        """The rows of batch t0."""
        return batch_of(self.rows, t0)

    def shape(self, t0: int, width: int) -> tuple[int, int]:
        """Of a batch of all rows."""
        rows = self.batch(t0)
        return rows.stop - rows.start, width

    def rows_of(self, m: int, t0: int) -> Tensor:
        """The rows of batch t0 that party m holds."""
        rows = torch.arange(self.rows)[self.batch(t0)]
        return rows[self.held[m][self.batch(t0)]] if m in self.held else rows

    def codec(self, m: int) -> Codec:
        """Of what party m sends."""
        if self.secure:
            return Codec(Masked(self._grid(), len(self.names)), self.seed, m, self.names[m - 1], _PART)
        compressor = build(self._compressors[m - 1])
        if not self.rows:  # they are asked for, none of a known number: each is the same whenever that is
            return Codec(by_row(compressor), self.seed, m, self.names[m - 1], _PART)
        samples = Samples(lambda t0: self.rows_of(m, t0), self.rows)
        return Codec(compressor, self.seed, m, self.names[m - 1], _PART, samples)

    def total(self) -> Aggregate | None:
        """Reads the sums of masked batches."""
        return Aggregate(Masked(self._grid(), len(self.names)), self.seed, self.names, _PART) if self.secure else None

    def _grid(self) -> Scalar:
        grid = build(self._compressors[0])
        if not isinstance(grid, Scalar) or grid.range.fixed is None or len(set(self._compressors)) > 1:
            raise RemoteProtocolError("secure aggregation needs one grid that all parties have")
        return grid

    def scores_codec(self) -> Codec:
        """Of scores, which are sent as they are."""
        return Codec(Identity(), self.seed, SERVER, "server", "scores")
