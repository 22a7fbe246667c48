"""The reference pages: every key, every command and every name are on them, each with a line about it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reference import commands, commands_page, configuration_page, keys, python_page

import cvfl

ROOT = Path(__file__).parents[2]
KEYS = list(keys())
COMMANDS = list(commands())


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        at = f"{path}.{name}" if path else name
        at = "party.NAME" if path == "party" else at
        if isinstance(value, dict) and not at.endswith(".types"):
            yield from leaves(value, at)
        else:
            yield at


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_key_says_what_it_is(key: Any) -> None:
    assert key.meaning.endswith("."), f"{key.path} has no description: a line of text below it in its section"
    assert len(key.meaning) <= 120
    assert key.type


def test_the_keys_of_the_examples_are_there() -> None:
    known = {key.path for key in KEYS}
    assert len(known) == len(KEYS) > 60
    for path in ROOT.glob("examples/**/*.toml"):
        assert set(leaves(tomllib.loads(path.read_text(encoding="utf-8")))) <= known, path


def test_a_key_with_all_there_is_to_say() -> None:
    (width,) = (key for key in KEYS if key.path == "party_model.width")
    assert (width.type, width.default, width.allowed) == ("integer", "`16`", "≥ 1, ≤ 1,048,576")
    (prepare,) = (key for key in KEYS if key.path == "party.NAME.prepare.impute")
    assert (prepare.type, prepare.default) == ('`"median"` or `"mean"` or `"zero"`', '`"median"`')


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_an_example(command: Any) -> None:
    assert command.help
    assert command.example.startswith(command.name), f"{command.name} has no example: a line 'Example: ...' in its help"
    for shown, _, meaning in command.takes:
        assert meaning, f"{command.name}: {shown} has no help"


def test_the_pages_have_them_all() -> None:
    assert {"cvfl train", "cvfl data fetch", "cvfl bench codec"} <= {command.name for command in COMMANDS}
    assert all(f"`{key.path}`" in configuration_page() for key in KEYS)
    assert all(f"## {command.name}\n" in commands_page() for command in COMMANDS)
    assert python_page().split() == [word for name in cvfl.__all__ for word in (":::", f"cvfl.{name}")]
    for page, name in (("python", "python"), ("command-line", "commands"), ("configuration", "configuration")):
        assert f"<!-- generated: {name} -->" in (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
