"""What a run sends before and after its rounds, foreseen: what a budget sets aside for it.

It is the same on every runtime and after a restart, whatever was sent in the end. So room is kept for certificates
also where none are shown, and for the alignment when an earlier one is reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.federation.agreement.terms import terms_from, terms_of
from cvfl.federation.start import Start
from cvfl.protocol import Loss
from cvfl.types import SERVER
from cvfl.wire.control import Begin, Hello, Offer, encode_control

_WORDS = 525  # of all other control messages of a party, without what grows
_NOTED = 92  # of an evaluated round: its error and its certificate, told at the end
_KEY = 76
_CERTIFICATE = 1_000
_BLINDED, _SHORT = 64, 11  # bytes of an id at every step of its way round, and at its end


def around(
    config: RunConfig, facts: dict[str, Any], ids: Sequence[int], evaluations: int, start: Start | None = None
) -> int:
    """Bytes of set-up and alignment of a run with these facts, whose parties hold so many ids each."""
    names, terms = facts["names"], terms_of(config) | terms_from(start)
    M, tables = len(names), config.data.name is None
    total = M * (_WORDS + _NOTED * evaluations + len(encode_control(Begin(session=1, m=1, t0=0, facts=facts), SERVER)))
    for name, width, compressor in zip(names, facts["widths"], facts["compressors"], strict=True):
        offer = Offer(width=width, compressor=compressor, label=False)
        total += len(encode_control(Hello(name=name, terms=terms, offer=offer), 1))
    if tables:
        total += M * (M + 1) * (_KEY + _CERTIFICATE) + _targets(config, facts, M)
    return total + sum(ids) * (_BLINDED * (M - 1) + _SHORT)


def _targets(config: RunConfig, facts: dict[str, Any], M: int) -> int:
    """What rows are for, in two bits at most, and labels: from their holder to the server, and to all others.

    In an outer alignment also which rows each other party holds: to the label holder, from it, and to that party.
    """
    quantity = 64 if config.precision == "float64" else 32
    label = quantity if facts["loss"] == Loss.SQUARED else max(1, int(facts["outputs"]) - 1).bit_length()
    rows: int = sum(facts["rows"])
    present = 3 * (M - 1) * (rows // 8 + 20) if config.data.alignment == "outer" else 0
    return M * (rows * (1 + label) // 8 + 100) + present
