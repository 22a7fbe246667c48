"""Symbols and messages to bytes and back; docs/wire-format.md is the normative page."""

from cvfl.wire.bits import pack, packed_size, unpack
from cvfl.wire.message import Broadcast, Embedding, Evaluation, Gradient, Message, decode, encode
from cvfl.wire.packet import decode_packet, encode_packet

__all__ = [
    "Broadcast",
    "Embedding",
    "Evaluation",
    "Gradient",
    "Message",
    "decode",
    "decode_packet",
    "encode",
    "encode_packet",
    "pack",
    "packed_size",
    "unpack",
]
