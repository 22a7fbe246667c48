"""The folder of a role's state: what belongs to other terms stays beside it, and one process at a time uses it.

    FOLDER/lock               held by the process that plays the role
    FOLDER/actions.jsonl      what the role did, in this run and earlier ones
    FOLDER/noise.secret       what the noise of this party comes from, in every run; never drawn again
    FOLDER/alignment/         which ids are shared, and what comparing new ones needs: for the next run
    FOLDER/TERMS/terms.json   the terms that the state is of, by a hash of which the folder is named
    FOLDER/TERMS/row.secret   by what the first party has rows ordered in this run
    FOLDER/TERMS/...          the state of the role
    FOLDER/TERMS.old-1/       what --restart put aside

Nothing is removed before the run is over. Nobody but the user who runs the role can read the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import weakref
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError, writing
from cvfl.federation.agreement.terms import digest_of
from cvfl.runs.actions import NAME as LOG

LOCK, NOISE, ALIGNMENT = "lock", "noise.secret", "alignment"
SECRET = 32
"""Bytes of a secret."""


class State:
    """A role's state for these terms; `path` is its folder, which others cannot use until it is closed."""

    def __init__(self, folder: Path, terms: dict[str, Any]) -> None:
        self.folder, self.path, self._terms = folder, folder / digest_of(terms), terms
        of_a_role = any((folder / name).exists() for name in (LOCK, NOISE, LOG))
        if folder.is_dir() and any(folder.iterdir()) and not of_a_role:
            raise ConfigError(f"{folder} holds other things than the state of a role; choose another --state")
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.close = weakref.finalize(self, os.close, lock)
        """Let others use the folder."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(f"{folder} is in use by another process; every role needs a --state of its own") from None
        self._new = not self.path.exists()
        self._make()

    def begin_anew(self) -> None:
        """Put the state of the run so far aside, if there was one."""
        if not self._new:
            with writing(self.folder):
                self.path.rename(self._aside())
            self._make()

    def _make(self) -> None:
        with writing(self.folder):
            self.path.mkdir(mode=0o700, exist_ok=True)
            (self.path / "terms.json").write_text(json.dumps(self._terms, indent=2, sort_keys=True), encoding="utf-8")

    def _aside(self) -> Path:
        tried = (self.path.with_name(f"{self.path.name}.old-{n}") for n in range(1, 1 << 20))
        return next(path for path in tried if not path.exists())

    def remove(self) -> None:
        """The run is over, and what it leaves is written: its state is no longer needed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def kept_secret(path: Path) -> bytes:
    """The secret in this file, which is drawn once."""
    with writing(path):
        if not path.exists():
            write_secret(path, secrets.token_bytes(SECRET))
        return path.read_bytes()


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file that nobody else can read, not even for a moment; a crash leaves it whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
