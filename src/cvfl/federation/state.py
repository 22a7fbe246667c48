"""The folder of a role's state: what belongs to other terms stays beside it, and one process at a time uses it.

    FOLDER/lock               held by the process that plays the role
    FOLDER/actions.jsonl      what the role did, in this run and earlier ones
    FOLDER/noise.secret       what the noise of this party comes from, in every run; never drawn again
    FOLDER/TERMS/noise.secret the same where parties share their noise: of this run alone, like what was released in it
    FOLDER/alignment/         which ids are shared, and what comparing new ones needs: for the next run
    FOLDER/TERMS/terms.json   the terms that the state is of, by a hash of which the folder is named
    FOLDER/TERMS/row.secret   by what the first party has rows ordered in this run
    FOLDER/TERMS/...          the state of the role
    FOLDER/TERMS.old-1/       what --restart put aside

Nothing is removed before the run is over. Nobody but the user who runs the role can read the folder.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from cvfl.errors import ConfigError, writing
from cvfl.federation.agreement.terms import digest_of
from cvfl.files import held, write_hidden
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
        _, self.close = held(self, folder, LOCK)
        """`close`: let others use the folder."""
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
            write_hidden(path, secrets.token_bytes(SECRET))
        return path.read_bytes()
