"""What the JSON of the handshake is made of, from its models: words for libFuzzer, and a message of every kind.

Validation happens in compiled code, which coverage does not see: a fuzzer that has to find `"row secret"` byte by byte
never will.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from cvfl.compress.registry import AUTO, COMPRESSORS, known
from cvfl.federation.agreement.facts import Facts
from cvfl.wire.control import Control

Schema = dict[str, Any]
_CONTROL, _FACTS = TypeAdapter[Control](Control).json_schema(), TypeAdapter(Facts).json_schema()
_TEXTS = ("auto", "", "00" * 32)
"""One of them fits wherever there is a text; the first is a compressor, too."""
_BOUNDS = ("minimum", "maximum", "exclusiveMaximum", "maxLength", "maxItems")


def words() -> list[str]:
    """Keys, constants and bounds of all messages as they stand in JSON, and what compressors are written with."""
    found = {*"{}[],:()", '"', "null", "true", "false", "0", "-1", "1.5", "1e400", "NaN"}
    found.update(_words(_CONTROL), _words(_FACTS), known(), AUTO.values())
    found.update(f"{key}=" for name in known() for key in inspect.signature(COMPRESSORS[name]).parameters)
    return sorted(found)


def dictionary() -> str:
    """The words as a file that libFuzzer reads."""
    return "".join('"{}"\n'.format("".join(f"\\x{byte:02x}" for byte in word.encode())) for word in words())


def messages() -> Iterator[tuple[str, bytes]]:
    """A message of each kind, with a value for every key it may have."""
    for name, schema in _CONTROL["$defs"].items():
        if "type" in schema["properties"]:
            value = _example(schema)
            if "facts" in value:
                value["facts"] = _example(_FACTS)
            yield name, json.dumps(value).encode()


def _words(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for one in schema:
            yield from _words(one)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from (f"{json.dumps(name)}:" for name in value)
            if key in ("const", "enum"):
                yield from (json.dumps(one) for one in (value if key == "enum" else [value]))
            if key in _BOUNDS:
                yield str(value)
            yield from _words(value)


def _example(schema: Schema) -> Any:
    """A value that the schema takes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _example((_CONTROL["$defs"] | _FACTS.get("$defs", {}))[name])
    if "anyOf" in schema:
        return _example(schema["anyOf"][0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            return {name: _example(value) for name, value in schema.get("properties", {}).items()}
        case "array":
            items = schema.get("prefixItems") or [schema["items"]] * max(1, schema.get("minItems", 1))
            return [_example(item) for item in items]
        case "string":
            return next(text for text in _TEXTS if re.search(schema.get("pattern", ""), text))
        case "boolean":
            return True
    # The greatest, where the least is not among them.
    return schema["maximum"] if "exclusiveMinimum" in schema else schema.get("minimum", 0)
