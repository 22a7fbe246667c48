"""The file from which a holder's randomised labels come, and a ledger of what was told: beside its table.

    {"secret": "64 hexadecimal digits"}
    {"column": "default", "epsilon": 1.0, "labels": ["0", "1"]}      a line a release, written before it is told

Nobody but the user who runs the role can read it. A new run on the same rows repeats the same draw, and adds no line.
Without the file labels would be drawn anew, and who has both draws knows more than either epsilon says: it belongs to
the backups of the table.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from cvfl.errors import DataError, writing
from cvfl.federation.state import SECRET
from cvfl.types import Section

SUFFIX = ".label_secret"


class Release(Section):
    """Labels that were told of a column: with which epsilon, and which could be told."""

    column: str
    epsilon: float
    labels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None


class _Secret(Section):
    secret: str = Field(pattern=f"^[0-9a-f]{{{2 * SECRET}}}$")


def told_before(path: Path, release: Release) -> tuple[bytes, list[Release]]:
    """The secret, and all releases of the column with this one among them; both are kept from now on."""
    with writing(path), _opened(path) as (file, kept):
        lines = kept or [_Secret(secret=secrets.token_hex(SECRET)).model_dump_json()]
        if not kept:
            _append(file, lines[0])
        try:
            secret = bytes.fromhex(_Secret.model_validate_json(lines[0]).secret)
            releases = [Release.model_validate_json(line) for line in lines[1:]]
        except ValidationError:
            raise DataError(
                f"{path}: damaged; bring it back from a backup, since labels that are drawn anew tell more of each row"
            ) from None
        if release not in releases:
            releases.append(release)
            _append(file, release.model_dump_json())
    return secret, [one for one in releases if one.column == release.column]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The file, which one process at a time has, and its whole lines: of one that a crash cut nothing was told."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        os.ftruncate(file, len(whole))
        os.lseek(file, 0, os.SEEK_END)
        yield file, whole.decode("utf-8", "replace").splitlines()
    finally:
        os.close(file)


def _append(file: int, line: str) -> None:
    os.write(file, line.encode() + b"\n")
    os.fsync(file)
