"""Reference pages, made from the code when the site is built: every name, every command, every configuration key.

    <!-- generated: python -->          names in `cvfl.__all__`, for mkdocstrings
    <!-- generated: commands -->        the Typer app
    <!-- generated: configuration -->   the pydantic sections

No part of it needs mkdocs, so tests read the same tables.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic.fields import FieldInfo
from typer import Context
from typer.main import get_command

import cvfl
from cvfl.cli import app
from cvfl.config.schema import RunConfig
from cvfl.types import Section

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}
_SIGNS = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}


@dataclass(frozen=True)
class Key:
    """One key of a configuration file, as the page shows it."""

    section: str
    name: str
    type: str
    default: str
    allowed: str
    meaning: str

    @property
    def path(self) -> str:
        """The key as `--set` takes it."""
        return f"{self.section}.{self.name}" if self.section else self.name


@dataclass(frozen=True)
class Command:
    """One command: what its help says, its example, and the arguments and options that it takes."""

    name: str
    help: str
    example: str
    usage: str
    takes: tuple[tuple[str, str, str], ...]
    """(argument or option, default, meaning)"""


def keys(section: type[Section] = RunConfig, path: str = "") -> Iterator[Key]:
    """Every key of a section, then those of the sections in it."""
    inner = {name: found for name, field in section.model_fields.items() if (found := _section_of(field.annotation))}
    for name, field in section.model_fields.items():
        if name not in inner:
            default, allowed = _default(field), _allowed(field)
            yield Key(path, name, _type(field.annotation), default, allowed, field.description or "")
    for name, (held, by_name) in inner.items():
        at = f"{path}.{name}" if path else name
        yield from keys(held, f"{at}.NAME" if by_name else at)


def sections(section: type[Section] = RunConfig, path: str = "") -> Iterator[tuple[str, str]]:
    """Every section with what it is for; the first one is the file itself."""
    if not path:
        yield "", ""
    for name, field in section.model_fields.items():
        if found := _section_of(field.annotation):
            at = f"{path}.{name}" if path else name
            at = f"{at}.NAME" if found[1] else at
            yield at, field.description or ""
            yield from sections(found[0], at)


def commands() -> Iterator[Command]:
    """Every command in the order of `cvfl --help`, those of groups behind their group's name."""
    yield from _commands(get_command(app), "cvfl")


def _commands(group: Any, path: str) -> Iterator[Command]:
    for name in group.list_commands(context := Context(group)):
        command = group.get_command(context, name)
        at = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, at)
            continue
        text, _, example = (command.help or "").partition("Example: ")
        hints = get_type_hints(command.callback)
        takes = tuple(_parameter(given, hints[given.name]) for given in command.params if given.name in hints)
        arguments = " ".join(shown for shown, _, _ in takes if not shown.startswith("-"))
        options = " [OPTIONS]" if any(shown.startswith("-") for shown, _, _ in takes) else ""
        usage = f"{at}{options} {arguments}".strip()
        yield Command(at, text.strip(), " ".join(example.split()), usage, takes)


def _parameter(given: Any, annotation: Any) -> tuple[str, str, str]:
    default, meaning = "needed" if given.required else _plain(given.default), given.help or ""
    if given.param_type_name == "argument":
        return (given.metavar or given.name.upper()), default, meaning
    flag = ", ".join((*given.opts, *given.secondary_opts))
    return (flag if given.is_flag else f"{flag} {given.metavar or _metavar(annotation)}"), default, meaning


def _metavar(annotation: Any) -> str:
    """What an option takes: `inprocess|grpc`, or the kind of value in capitals."""
    if parts := [part for part in get_args(annotation) if part is not type(None)]:
        return _metavar(parts[0])
    if issubclass(annotation, StrEnum):
        return "|".join(annotation)
    return _WORDS[annotation].upper()


def _plain(value: object) -> str:
    """A default as it would be typed; nothing for a flag that is off and for what is found out only when it runs."""
    if value is None or isinstance(value, bool) or callable(value):
        return "yes" if value is True else ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _section_of(annotation: Any) -> tuple[type[Section], bool] | None:
    """The section that a key holds, and whether it is one of many by name."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for part in get_args(annotation):
        if found := _section_of(part):
            return found[0], issubclass(get_origin(annotation) or object, dict)
    return None


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in parts if part is not type(None))
    if origin is Literal:
        return " or ".join(_toml(part) for part in parts)
    if origin is tuple:
        return f"list of {_type(parts[0])}s"
    if origin is dict:
        return f"table, each {_type(parts[1])}"
    if issubclass(annotation, StrEnum):
        return " or ".join(_toml(str(value)) for value in annotation)
    return _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    return "" if value is None else _toml(value)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, (tuple, list)):
        return f"`[{', '.join(_toml(part).strip('`') for part in value)}]`"
    if isinstance(value, Mapping):
        return "`{}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _allowed(field: FieldInfo) -> str:
    said = []
    for rule in field.metadata:
        if isinstance(rule, annotated_types.MaxLen):
            said.append(f"{rule.max_length} character" if rule.max_length == 1 else f"≤ {rule.max_length} characters")
        for kind, sign in _SIGNS.items():
            if isinstance(rule, kind):
                said.append(f"{sign} {_number(getattr(rule, kind.__name__.lower()))}")
    return ", ".join(said)


def _number(value: float) -> str:
    power = value.bit_length() - 1 if isinstance(value, int) else 0
    return (
        f"2^{power}" if power > 20 and value == 1 << power else f"{value:,}" if isinstance(value, int) else f"{value:g}"
    )


def python_page() -> str:
    """What mkdocstrings is asked to show: every public name."""
    return "\n\n".join(f"::: cvfl.{name}" for name in cvfl.__all__)


def commands_page() -> str:
    """A heading, a usage line, an example and a table for every command."""
    return "\n\n".join(_command(command) for command in commands())


def _command(command: Command) -> str:
    rows = [f"| `{_cell(shown)}` | {_cell(meaning)} | {_cell(default)} |" for shown, default, meaning in command.takes]
    table = (
        "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows])
        if rows
        else "It takes no options."
    )
    shown = f"```\n{command.usage}\n```\n\nExample:\n\n```\n{command.example}\n```"
    said = re.sub(r"docs/([\w-]+)\.md", r"[docs/\1.md](../\1.md)", command.help)
    return f"## {command.name}\n\n{said}\n\n{shown}\n\n{table}"


def configuration_page() -> str:
    """A heading and a table for every section of a file."""
    known, parts = list(keys()), []
    for path, meaning in sections():
        rows = [key for key in known if key.section == path]
        head = f"## `[{path}]`\n\n{meaning}" if path else "## At the top of the file"
        lines = [
            f"| `{key.path}` | {_cell(key.meaning)} | {_cell(key.type)} | {key.default} | {key.allowed} |"
            for key in rows
        ]
        parts.append(
            "\n".join([head, "", "| key | meaning | type | default | allowed |", "|---|---|---|---|---|", *lines])
        )
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {"python": python_page, "commands": commands_page, "configuration": configuration_page}
