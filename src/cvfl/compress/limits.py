"""Which values a compressor takes."""

from __future__ import annotations

from cvfl.compress.base import Compressor
from cvfl.compress.entropy import Entropy
from cvfl.compress.feedback import Feedback
from cvfl.compress.quantizer import Quantizer
from cvfl.compress.schedule import Schedule
from cvfl.errors import ConfigError


def limits(compressor: Compressor) -> tuple[float, float] | None:
    """The interval to clamp tensors to, if a compressor takes no others; refuses limits that clamping cannot keep."""
    match compressor:
        case Quantizer():
            return compressor.range.fixed
        case Entropy() | Schedule():
            return limits(compressor.inner)
        case Feedback() if limits(compressor.inner):
            raise ConfigError("low and high inside feedback limit differences, which noise exceeds; leave them out")
    return None
