"""The tables of label_privacy.py from its lines: what epsilons cost, what private models add, what audits found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cvfl.runs.audit import ToldFound

NAMES = {"credit_default": "UCI credit default", "physionet": "PhysioNet 2012, summaries", "adult": "UCI Adult"}
Line = dict[str, Any]


def published(lines: Sequence[Line]) -> str:
    """The page's tables."""
    return "\n".join([*_costs(lines), "", *_heads(lines), "", *_audits(lines)]) + "\n"


def _costs(lines: Sequence[Line]) -> Iterable[str]:
    yield "| | ε | seeds | test ROC AUC, true labels | minus open | estimate minus true | MB | without alignment |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, epsilon, some in _settings(lines):
        open_ = {one["seed"]: _auc(one) for one in lines if one["federation"] == name and one["epsilon"] is None}
        differences = [_auc(one) - open_[one["seed"]] for one in some if one["seed"] in open_]
        off = [one["told"]["roc_auc"] - _auc(one) for one in some]
        sent = [one["bytes"]["total"] / 1e6 for one in some]
        other = [(one["bytes"]["total"] - one["bytes"]["alignment"]) / 1e6 for one in some]
        minus = "" if epsilon is None else _signed(differences)
        off_said = "" if epsilon is None else _signed(off)
        yield (
            f"| {NAMES[name]} | {'open' if epsilon is None else f'{epsilon:g}'} | {len(some)} | "
            f"{np.mean([_auc(one) for one in some]):.4f} | {minus} | {off_said} | {np.mean(sent):.1f} | "
            f"{np.mean(other):.1f} |"
        )


def _heads(lines: Sequence[Line]) -> Iterable[str]:
    yield "| | ε | seeds | public | private | private minus public | private minus open | stacked minus public |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, epsilon, all_of in _settings(lines):
        if some := [one for one in all_of if "private" in one]:
            open_ = {one["seed"]: _auc(one) for one in lines if one["federation"] == name and one["epsilon"] is None}
            public, private = np.array([(_auc(one), one["private"]["roc_auc"]) for one in some]).T
            beside = [own - open_[one["seed"]] for one, own in zip(some, private, strict=True) if one["seed"] in open_]
            stacked = [one["heads"]["stacked"] - one["heads"]["public"] for one in some]
            yield (
                f"| {NAMES[name]} | {epsilon:g} | {len(some)} | {public.mean():.4f} | {private.mean():.4f} | "
                f"{_signed(private - public)} | {_signed(beside)} | {_signed(stacked)} |"
            )


def _audits(lines: Sequence[Line]) -> Iterable[str]:
    yield (
        "| | ε | audits | who | own columns | and what is seen | and told | right without | right | bound | within |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name, epsilon, _ in _settings(lines):
        key = (name, epsilon)
        audits = [one["audit"] for one in lines if (one["federation"], one["epsilon"]) == key and "audit" in one]
        for told in zip(*([ToldFound(**one) for one in audit] for audit in audits), strict=True):
            head = f"| {NAMES[name]} | {epsilon:g} | {len(told)} | {told[0].observer}"
            keys = ("own", "without", "joint", "right_without", "right_joint", "bound")
            cells = " | ".join(f"{np.mean([getattr(one, key) for one in told]):.3f}" for key in keys)
            yield f"{head} | {cells} | {sum(one.within for one in told)} of {len(told)} |"


def _settings(lines: Sequence[Line]) -> Iterable[tuple[str, float | None, list[Line]]]:
    for name in NAMES:
        epsilons = {one["epsilon"] for one in lines if one["federation"] == name}
        for epsilon in sorted(epsilons, key=lambda one: -(one or 100)):
            some = [one for one in lines if (one["federation"], one["epsilon"]) == (name, epsilon)]
            yield name, epsilon, list({one["seed"]: one for one in some}.values())


def _auc(line: Line) -> float:
    return float(line["true"]["roc_auc"])


def _signed(values: Sequence[float]) -> str:
    """Mean and, of several, deviation."""
    if not len(values):
        return ""
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):+.4f}{spread}".replace("-", "−")
