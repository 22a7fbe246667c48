"""Things that a configuration calls by name: compressors, models, data sets, and those that a user adds."""

from __future__ import annotations

from typing import TypeVar

from cvfl.errors import ConfigError, suggest

T = TypeVar("T")


class Registry(dict[str, T]):
    """What is known by name; a name that is not is a `ConfigError` with what was probably meant.

    `kind` is the word for one of them, `key` the configuration key that names it, if there is just one.
    """

    def __init__(self, kind: str, key: str = "") -> None:
        super().__init__()
        self._kind, self._prefix = kind, f"{key}: " if key else ""

    def register(self, name: str, thing: T) -> None:
        """Make a thing known by name; a name can be taken once."""
        if not name.replace("_", "").isalnum():
            raise ConfigError(f"a {self._kind}'s name has letters, digits and _, not {name!r}")
        if self.setdefault(name, thing) is not thing:
            raise ConfigError(f"the {self._kind} name {name!r} is taken by {self[name]!r}")

    def __missing__(self, name: str) -> T:
        raise ConfigError(f"{self._prefix}unknown {self._kind} {name!r}{suggest(name, self)}")
