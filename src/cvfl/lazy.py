"""Modules of libraries that take long to load: each is loaded when something of it is first used."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy(name: str) -> Any:
    """The module of this name, not loaded yet."""
    return Lazy(name)
