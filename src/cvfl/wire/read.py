"""Any frame as the message that it is, whatever kind it is of."""

from __future__ import annotations

from cvfl.wire.control import Control, decode_control
from cvfl.wire.frame import Bytes, kind_of
from cvfl.wire.message import KINDS, Message, decode
from cvfl.wire.setup import BLINDED, MATCHED, Setup, decode_setup
from cvfl.wire.targets import Targets


def read_frame(frame: Bytes) -> Message | Setup | Control | Targets:
    """The message of a frame: of a round, of the alignment, or of the handshake."""
    kind = kind_of(frame)
    if kind in KINDS:
        return decode(frame)
    if kind in (BLINDED, MATCHED):
        return decode_setup(frame)
    return decode_control(frame)[1]
