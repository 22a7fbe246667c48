"""Compressors: tensors to symbols and back, each with a bound for its error."""

from cvfl.compress.base import Compressor, Context, Packet, Plane
from cvfl.compress.identity import Identity
from cvfl.compress.lattice import Lattice
from cvfl.compress.quantizer import Range
from cvfl.compress.registry import build, known, register
from cvfl.compress.scalar import Scalar
from cvfl.compress.schedule import Schedule
from cvfl.compress.topk import TopK

__all__ = [
    "Compressor",
    "Context",
    "Identity",
    "Lattice",
    "Packet",
    "Plane",
    "Range",
    "Scalar",
    "Schedule",
    "TopK",
    "build",
    "known",
    "register",
]
