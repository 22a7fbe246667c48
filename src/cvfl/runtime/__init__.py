"""Carriers of messages between roles."""

from cvfl.runtime.inprocess import RoundReport, one_thread_a_role, rounds
from cvfl.runtime.meter import Meter, Traffic

__all__ = ["Meter", "RoundReport", "Traffic", "one_thread_a_role", "rounds"]
