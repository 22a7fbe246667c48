"""Files of a role that nobody else is to read, and that one process at a time is to have."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError, writing


def held(of: Any, folder: Path, name: str, flags: int = 0) -> tuple[int, weakref.finalize[..., Any]]:
    """A file in the folder of a role's state, open for this process alone, and what closes it: the end of `of` at last.

    The folder and the file are made if they are not there.
    """
    path = folder / name
    with writing(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    close = weakref.finalize(of, os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        close()
        raise ConfigError(f"{folder} is in use by another process; every role needs a --state of its own") from None
    return file, close


def write_hidden(path: Path, content: bytes) -> None:
    """Write a file that nobody else can read, not even for a moment; a crash leaves it whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
