"""Words that all layers share."""

from __future__ import annotations

from enum import StrEnum

SERVER = 0
"""The server is m = 0, as in the paper; parties are m = 1..M."""


class Direction(StrEnum):
    """Which way a frame goes: up from a party to the server, or down."""

    UP = "up"
    DOWN = "down"
