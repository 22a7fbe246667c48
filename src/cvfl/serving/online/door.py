"""Who may ask at the door, how much and how often: API keys, limits on ids a request, requests a second, bytes."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError
from cvfl.runtime.address import is_loopback
from cvfl.serving.online.batching import ROWS, DoorError

_SHORTEST_KEY = 16
_BYTES_AN_ID = 1024
Id = tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and how long it waits."""

    ids: int = 1000
    """Ids of a request."""
    rate: float = 0.0
    """Requests a second of one key; 0: as many as come."""
    timeout: float = 5.0
    """Seconds until a request without an answer is an error."""

    def __post_init__(self) -> None:
        if not 1 <= self.ids <= ROWS:
            raise ConfigError(f"--max-ids is 1 to {ROWS:,}, not {self.ids:,}")
        if self.rate < 0 or not 0 < self.timeout <= 3600:
            raise ConfigError("--rate is 0 or more, and --timeout more than 0 and at most 3,600 seconds")

    @property
    def bytes(self) -> int:
        """Bytes of a request's body."""
        return 4096 + _BYTES_AN_ID * self.ids


class Keys:
    """API keys by the name of who has them: a line `NAME KEY` each. Kept are hashes alone."""

    def __init__(self, path: Path | None) -> None:
        self._names: dict[bytes, str] = {} if path is None else _read_keys(path)

    @property
    def needed(self) -> bool:
        """Whether a key is needed."""
        return bool(self._names)

    def who(self, headers: Mapping[str, str]) -> str:
        """Who asks, by `Authorization: Bearer KEY` or `X-API-Key: KEY`; refused without a key that is known."""
        if not self.needed:
            return "anybody"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not given:
            raise DoorError(401, "no_key", "a key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY")
        digest = _digest(given.strip())
        found = [name for known, name in self._names.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise DoorError(401, "wrong_key", "the key is not known here")
        return found[0]


def _read_keys(path: Path) -> dict[bytes, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the keys cannot be read ({type(error).__name__})") from None
    keys: dict[bytes, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < _SHORTEST_KEY:
            raise ConfigError(f"{path}: line {number} is not NAME KEY with a key of {_SHORTEST_KEY} characters or more")
        keys[_digest(words[1])] = words[0]
    if not keys:
        raise ConfigError(f"{path}: there is no key in it; write a line NAME KEY for each who may ask")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_open(address: str, keys: Keys) -> None:
    """Without keys the door is for this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if not is_loopback(host) and not keys.needed:
        raise ConfigError(f"--http {address}: a door that others can reach needs keys; give --keys FILE")


class Rate:
    """Lets each asker have so many requests a second, and as many at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> None:
        """One more request of this asker, or it is refused."""
        if not self._rate:
            return
        now, most = time.monotonic(), max(1.0, self._rate)
        left, then = self._left.get(who, (most, now))
        left = min(most, left + self._rate * (now - then))
        self._left[who] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise DoorError(
                429, "too_many_requests", f"more than {self._rate:g} requests a second; ask again in a moment"
            )


def read_ids(values: Any, limits: Limits, columns: int) -> list[Id]:
    """The ids that a request has: texts, whole numbers, or of ids of several columns lists of these."""
    if not isinstance(values, list):
        raise DoorError(422, "bad_ids", "ids must be a list")
    if not values:
        raise DoorError(422, "no_ids", "the list of ids is empty")
    if len(values) > limits.ids:
        raise DoorError(
            413, "too_many_ids", f"{len(values):,} ids, more than the {limits.ids:,} that a request may have"
        )
    return [_read_id(value, columns) for value in values]


def _read_id(value: Any, columns: int) -> Id:
    parts = value if columns > 1 and isinstance(value, list) else [value]
    if len(parts) != columns:
        raise DoorError(422, "bad_ids", f"an id has {columns} columns here: write each as a list of {columns} texts")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise DoorError(422, "bad_ids", "an id is a text or a whole number")
        if not 0 < len(str(part)) <= _BYTES_AN_ID // 4:
            raise DoorError(422, "bad_ids", f"an id has 1 to {_BYTES_AN_ID // 4} characters")
    return tuple(map(str, parts))
