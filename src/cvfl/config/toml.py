"""Values as TOML text that people can read; `tomllib` reads the same values back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """A section for every table, what is inside it a line a key; TOML has no null, so such keys are left out."""
    plain = {key: value for key, value in values.items() if not _is_table(value)}
    parts = [*_pairs(plain)]
    for key, value in values.items():
        if _is_table(value):
            parts += _sections(_key(key), value)
    return "\n".join(parts).lstrip("\n") + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(one, Mapping) for one in value)
    )


def _sections(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        for one in value:
            yield f"\n[[{path}]]"
            yield from _pairs(one)
    elif value and all(isinstance(inner, Mapping) for inner in value.values()):
        for key, inner in value.items():
            yield from _sections(f"{path}.{_key(key)}", inner)
    else:
        yield f"\n[{path}]"
        yield from _pairs(value)


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_inline(value)}" for key, value in values.items() if value is not None)


def _inline(value: Any) -> str:
    match value:
        case Mapping():
            return f"{{ {', '.join(_pairs(value))} }}" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_inline, value))}]"
    # Of what a configuration holds, JSON's spelling is TOML's, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _inline(key)
