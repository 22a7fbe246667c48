"""How the runs of a study came about: preset, command and machines, written beside them."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from cvfl.errors import DataError

FILE = "study.json"


@dataclass(frozen=True)
class Machine:
    """What a run's seconds depend on; nothing that tells whose it is."""

    cores: int
    cpu: str
    memory_gb: int

    @classmethod
    def this(cls) -> Self:
        """The machine that this runs on."""
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(os.cpu_count() or 1, _cpu(), round(pages / 2**30))


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True)
class Origin:
    """How the runs of a folder came about."""

    preset: str
    command: str
    machines: tuple[Machine, ...]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The origin of a folder, if it has any."""
        path = folder / FILE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            told = "not as `cvfl reproduce` writes it; remove it and run that with --resume"
            raise DataError(f"{path}: {told}") from None

    def on(self, *machines: Machine) -> Self:
        """The same with the machines that runs were made on, each once."""
        return replace(self, machines=tuple(dict.fromkeys(machines)))

    def write(self, folder: Path) -> None:
        """Write the file."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
