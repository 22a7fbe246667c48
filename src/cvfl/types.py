"""Words that all layers share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

OnStep = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, of how much); a total of 0 is not known yet."""

SERVER = 0
"""The server is m = 0, as in the paper; parties are m = 1..M."""


class Direction(StrEnum):
    """Which way a frame goes: up from a party to the server, or down."""

    UP = "up"
    DOWN = "down"


class Section(BaseModel):
    """Values that are checked when they are made and do not change: a section of a configuration file, or like one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
