"""Inputs by which fuzzing reached new code, or broke something once: each ends in a value or in a typed refusal."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from pydantic import TypeAdapter

from cvfl.wire.control import Control

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
CONTROL: TypeAdapter[Control] = TypeAdapter(Control)


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    return module("fuzz_targets")


@pytest.fixture(scope="module")
def grammar() -> ModuleType:
    return module("fuzz_grammar")


@pytest.mark.parametrize("target", ["wire", "setup", "checkpoint"])
def test_no_input_of_the_corpus_ends_otherwise(target: str, targets: ModuleType) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) > 20
    for path in inputs:
        targets.tried(target, path.read_bytes())


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000


def test_every_receiver_takes_the_packet_that_is_meant_for_it(targets: ModuleType) -> None:
    """Fuzzing starts from these: a target that refuses them all would find nothing."""
    for which, (_, data) in enumerate(targets.RECEIVERS):
        for _ in range(2):  # what was learned from the first is forgotten again
            targets.open_packet(data, which)
    targets.open_packet(targets.SHARE, len(targets.SPECS))


def test_the_grammar_follows_the_messages(grammar: ModuleType) -> None:
    """A message of every kind that there is, and the words that it is made of."""
    made = {name: CONTROL.validate_json(data) for name, data in grammar.messages()}
    assert {name: type(message) for name, message in made.items()} == {one.__name__: one for one in get_args(Control)}
    words = set(grammar.words())
    for message in made.values():
        assert {f'"{key}":' for key in type(message).model_fields} <= words
        assert f'"{message.type}"' in words


def test_the_dictionary_is_one_that_libfuzzer_reads(grammar: ModuleType) -> None:
    lines = grammar.dictionary().splitlines()
    assert all(re.fullmatch(r'"(\\x[0-9a-f]{2})+"', line) for line in lines)
    assert [bytes.fromhex(line[1:-1].replace("\\x", "")).decode() for line in lines] == grammar.words()
