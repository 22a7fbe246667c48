"""What an alignment tells a party of its ids, and the bits that tell it.

    ALL         one bit an id: whether all parties have it
    LABELLED    one bit an id: whether the label holder has it
    EACH        at the label holder: one bit an id for each other party, one party after another

In an outer alignment rows are those of the label holder. It wants EACH, and all others LABELLED; who lacks a row is
known to the label holder, and to the party that lacks it only as a place where its row is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cvfl.wire import Bytes, unpack


class Wanted(StrEnum):
    """Which parties' ids the own ones are compared with."""

    ALL = "all"
    LABELLED = "labelled"
    EACH = "each"

    def bits(self, ids: int, M: int) -> int:
        """How many bits tell it of so many ids, among M parties."""
        return ids * (M - 1) if self is Wanted.EACH else ids


@dataclass(frozen=True)
class Matches:
    """The own ids that are rows of the run; at the label holder of an outer alignment also those that each party has.

    Of itself `held` says that it has them all.
    """

    common: frozenset[str]
    held: tuple[frozenset[str], ...] = ()


def read_matches(ids: Sequence[str], bits: Bytes, wanted: Wanted, m: int, M: int) -> Matches:
    """What bits tell party m of its ids."""
    told = unpack(bits, 1, wanted.bits(len(ids), M)).astype(np.bool_)
    names = np.array(ids, dtype=object)
    if wanted is not Wanted.EACH:
        return Matches(frozenset(names[told]))
    own, others = frozenset(ids), [frozenset(names[one]) for one in told.reshape(M - 1, len(ids))]
    return Matches(own, (*others[: m - 1], own, *others[m - 1 :]))
