"""The configuration that `cvfl plan` writes: that of the user with the keys that are recommended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cvfl.config.schema import load_config, read_values
from cvfl.config.toml import to_toml
from cvfl.errors import writing


def write_planned(path: Path, changes: Sequence[str], keys: Mapping[str, Any], out: Path, comment: str) -> None:
    """Write `path` with these changes and keys to `out`; files are then named as seen from there."""
    # Taken from the file itself: in a checked configuration a password of a database is blotted out.
    values = read_values(path, changes) | dict(keys)
    for section in values.get("party", {}).values():
        section.pop("compressor", None)
    for section, key in _files(values):
        section[key] = _seen_from(out.parent, path.parent, section[key])
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"# {comment}\n{to_toml(values)}", encoding="utf-8")
    load_config(out)


def _files(values: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Every place of a configuration that names a file."""
    parties = [(section, "table") for section in values.get("party", {}).values()]
    places = [(values.get("data", {}), "path"), (values.get("network", {}), "certificates"), *parties]
    return [(section, key) for section, key in places if key in section]


def _seen_from(folder: Path, before: Path, path: str) -> str:
    return path if Path(path).is_absolute() else os.path.relpath(before / path, folder)
