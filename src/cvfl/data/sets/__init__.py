"""Data sets by name, in their publishers' layouts; facts about them are in the TOML files here."""

import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any

Progress = Callable[[int, int], None]
"""How much is read so far, and in all, or 0 where nobody says."""


def shipped(file: str) -> dict[str, Any]:
    """One of the TOML files that lie beside the loaders."""
    return tomllib.loads((resources.files(__name__) / file).read_text(encoding="utf-8"))
