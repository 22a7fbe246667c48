"""The table of `quality.py`: means over seeds, and differences seed by seed with their interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from cvfl.studies.suite_table import paired

HEAD = """# How good the default is

Made by `python benchmarks/quality.py DATA docs/results/quality`: tables of organisations, `cvfl init` on them, and what
it wrote trained as it is, with `auto` and without compression. Each seed has its own split; all models of a seed are
tested on the same rows. Joined is the better of boosting (HistGradientBoosting) and logistic regression, ridge for a
quantity, by the mean over seeds, fitted to all prepared columns of the training and validation rows; the best party is
the better of both with the columns of one party. Higher is better, but for RMSE. "Beyond joined" is `auto` minus
joined, "beyond none" `auto` minus none, better upwards, by seed, with the 95% interval of Student's t and the range. F1
is at the threshold that validation rows chose, that of the joined model at its own. Constants were chosen on all
generated tables but `interaction`, and earlier ones also on that, credit default and Adult (a coarser `auto` for many
rows, which credit default allowed, was given up for Adult); the others are as they came out. Seconds are of one core of
a machine with other work to do; some runs were paused meanwhile.

None takes the local steps of `auto`, on rows that were sent before; by itself, with `compressor = "identity"`, a run
takes the batch again, which is [better on some small tables](../../auto.md#rows-that-were-sent-before).

Aims were joined minus 0.003 at most on the tables that are not generated, and 0.005 on those that are; F1 at least that
of the joined model; above the best party by more than noise. Missed are 0.005 on imbalanced by 0.0001, F1 on Adult,
breast cancer and 200 columns, and the best party of breast cancer, which alone is as good as all columns.

| federation | metric | seeds | auto | none | beyond none | joined | beyond joined | best party | F1 auto | F1 joined |
|---|---|---|---|---|---|---|---|---|---|---|
"""
SENT = """
## What was sent

Megabytes of a whole run, which ends when validation rows no longer improve. All: alignment of ids, set-up, training and
evaluation; times fewer than no compression, which took the same local steps.

| federation | MB auto | alignment | evaluation | MB none | times fewer | without alignment | training only | s auto |
|---|---|---|---|---|---|---|---|---|
"""


def published(lines: Sequence[dict[str, Any]]) -> str:
    """The page."""
    found = [_Found(name, lines) for name in dict.fromkeys(line["federation"] for line in lines)]
    there = [one for one in found if one.seeds]
    return HEAD + "".join(map(_quality, there)) + SENT + "".join(map(_sent, there))


class _Found:
    """The runs of a federation, by seed; `seeds` are those of which there are `auto` and references."""

    def __init__(self, name: str, lines: Sequence[dict[str, Any]]) -> None:
        own = [line for line in lines if line["federation"] == name]
        self.name, self.metric = name.replace("_", " "), own[0]["metric"]
        self.auto, self.none, self.references = (
            {line["seed"]: line for line in own if line["run"] == run} for run in ("auto", "none", "references")
        )
        self.seeds = sorted(self.auto.keys() & self.references.keys())

    @property
    def compared(self) -> bool:
        """Whether every seed was also run without compression."""
        return all(seed in self.none for seed in self.seeds)

    def scores(self, runs: dict[int, dict[str, Any]], metric: str) -> list[float]:
        """Of the test rows, seed by seed."""
        return [runs[seed]["test"][metric] for seed in self.seeds]

    def megabytes(self, runs: dict[int, dict[str, Any]], *purposes: str) -> float:
        """The mean over seeds of what was sent for these purposes."""
        return fmean(sum(runs[seed]["bytes"][purpose] for purpose in purposes) for seed in self.seeds) / 1e6


def _quality(found: _Found) -> str:
    metric = found.metric
    sign = -1 if metric == "rmse" else 1
    joined, kind = _best(found.references, found.seeds, metric, sign, alone=False)
    party, who = _best(found.references, found.seeds, metric, sign, alone=True)
    own = found.scores(found.auto, metric)
    plain = found.scores(found.none, metric) if found.compared else []
    f1 = metric != "rmse"
    cells = [
        found.name,
        {"roc_auc": "ROC AUC", "rmse": "RMSE"}[metric],
        str(len(found.seeds)),
        _number(own),
        _number(plain) if plain else "",
        paired([sign * (a - b) for a, b in zip(own, plain, strict=True)]) if plain else "",
        f"{_number(joined)} ({kind})",
        paired([sign * (a - b) for a, b in zip(own, joined, strict=True)]),
        f"{_number(party)} ({who})",
        _number(found.scores(found.auto, "f1")) if f1 else "",
        f"{_joined_f1(found):.4f}" if f1 else "",
    ]
    return f"| {' | '.join(cells)} |\n"


def _joined_f1(found: _Found) -> float:
    """That of the joined model that has the better one in the mean."""
    by_seed = [found.references[seed]["f1"] for seed in found.seeds]
    return max(fmean(f1[model] for f1 in by_seed) for model in by_seed[0])


def _sent(found: _Found) -> str:
    all_, training = ("total",), ("up", "down")
    without = ("up", "down", "evaluation", "setup")
    auto = {purposes: found.megabytes(found.auto, *purposes) for purposes in (all_, without, training)}
    none = {purposes: found.megabytes(found.none, *purposes) for purposes in auto} if found.compared else {}
    cells = [
        found.name,
        f"{auto[all_]:.2f}",
        f"{found.megabytes(found.auto, 'alignment'):.2f}",
        f"{found.megabytes(found.auto, 'evaluation'):.2f}",
        f"{none[all_]:.1f}" if none else "",
        *(f"{none[purposes] / auto[purposes]:.0f}" if none else "" for purposes in auto),
        f"{fmean(found.auto[seed]['seconds'] for seed in found.seeds):.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def _best(
    found: dict[int, dict[str, Any]], seeds: Sequence[int], metric: str, sign: int, alone: bool
) -> tuple[list[float], str]:
    """The scores of the model that is best in the mean, and its name."""
    scores: dict[str, list[float]] = {}
    for seed in seeds:
        for one in found[seed]["models"]:
            if (one["party"] is not None) == alone:
                name = f"{one['party']}, {one['model']}" if alone else one["model"]
                scores.setdefault(name, []).append(one[metric])
    best = max(scores, key=lambda name: sign * fmean(scores[name]))
    return scores[best], best


def _number(values: Iterable[float]) -> str:
    mean = fmean(values)
    return f"{mean:.4f}" if mean < 10 else f"{mean:.2f}"
