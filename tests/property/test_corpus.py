"""Inputs by which fuzzing reached new code, or broke something once: each ends in a value or in a typed refusal."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_targets", ROOT / "benchmarks" / "fuzz_targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_targets"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["wire", "setup", "checkpoint"])
def test_no_input_of_the_corpus_ends_otherwise(target: str, targets: ModuleType) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) > 20
    for path in inputs:
        targets.tried(target, path.read_bytes())


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
