"""What a party has released with noise, by purpose and round: each once, whatever crashes or is asked of it again.

Noise hides a row as often as the account says that it is released. A round that is repeated after a crash releases the
same again, which tells nothing new. A server that makes a party repeat a round with other values would average the
noise away: the second release of a round that differs from the first is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from cvfl.errors import RemoteProtocolError, writing


class Released:
    """A line a release in one file, on the disk before the release leaves."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        text = path.read_text(encoding="ascii") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        if text and not text.endswith("\n"):  # torn by a crash: that release has not left
            path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        self._known = {(purpose, int(t0)): digest for purpose, t0, digest in map(str.split, lines)}

    @property
    def some(self) -> bool:
        """Whether anything was released."""
        return bool(self._known)

    def note(self, purpose: str, t0: int, digest: bytes) -> None:
        """Take note of a release, or refuse it if the round was released otherwise."""
        known = self._known.get((purpose, t0))
        if known is None:
            self._append(f"{purpose} {t0} {digest.hex()}\n")
            self._known[purpose, t0] = digest.hex()
        elif known != digest.hex():
            raise RemoteProtocolError(
                f"{self._name}: from the server: the {purpose} of round {t0} is to be released again with other values"
            )

    def _append(self, line: str) -> None:
        with writing(self._path), self._path.open("a", encoding="ascii") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
