"""Symbols and messages to bytes and back; docs/wire-format.md is the normative page."""

from cvfl.wire.bits import pack, packed_size, unpack
from cvfl.wire.frame import Bytes
from cvfl.wire.message import (
    Broadcast,
    Embedding,
    Evaluation,
    Folded,
    Gradient,
    Message,
    Passed,
    Prediction,
    Report,
    Stop,
    decode,
    encode,
)
from cvfl.wire.packet import decode_packet, encode_packet
from cvfl.wire.serving import Answer, Ask, Away, Found, Owing, Runs
from cvfl.wire.setup import Blinded, Gone, Matched, Setup, Spelling, decode_setup, encode_setup

__all__ = [
    "Answer",
    "Ask",
    "Away",
    "Blinded",
    "Broadcast",
    "Bytes",
    "Embedding",
    "Evaluation",
    "Folded",
    "Found",
    "Gone",
    "Gradient",
    "Matched",
    "Message",
    "Owing",
    "Passed",
    "Prediction",
    "Report",
    "Runs",
    "Setup",
    "Spelling",
    "Stop",
    "decode",
    "decode_packet",
    "decode_setup",
    "encode",
    "encode_packet",
    "encode_setup",
    "pack",
    "packed_size",
    "unpack",
]
