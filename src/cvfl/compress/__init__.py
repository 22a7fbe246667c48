"""Compressors: tensors to symbols and back, each with a bound for its error."""

from cvfl.compress.base import Compressor, Context
from cvfl.compress.deadzone import DeadZone
from cvfl.compress.entropy import Entropy
from cvfl.compress.feedback import Feedback
from cvfl.compress.identity import Identity
from cvfl.compress.lattice import Lattice
from cvfl.compress.masked import Masked
from cvfl.compress.quantizer import Range
from cvfl.compress.registry import build, known, register
from cvfl.compress.scalar import Scalar
from cvfl.compress.schedule import Schedule
from cvfl.compress.shaped import Shaped
from cvfl.compress.topk import TopK
from cvfl.compress.wrapped import Wrapped
from cvfl.wire.packet import Packet, Plane

__all__ = [
    "Compressor",
    "Context",
    "DeadZone",
    "Entropy",
    "Feedback",
    "Identity",
    "Lattice",
    "Masked",
    "Packet",
    "Plane",
    "Range",
    "Scalar",
    "Schedule",
    "Shaped",
    "TopK",
    "Wrapped",
    "build",
    "known",
    "register",
]
