"""A folder that lives as long as the object that holds it."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from tempfile import mkdtemp


class Folder:
    """A private temporary folder; it is removed with this object, at the latest when Python ends."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="cvfl-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
