"""Carriers of messages between roles."""

from cvfl.runtime.inprocess import RoundReport, rounds
from cvfl.runtime.meter import Meter, Traffic

__all__ = ["Meter", "RoundReport", "Traffic", "rounds"]
