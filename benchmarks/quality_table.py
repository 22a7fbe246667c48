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
joined, "beyond none" `auto` minus none, better upwards, by seed, with the 95% interval of Student's t and the range.
Bytes are all that a run sends: alignment of ids, set-up, training and evaluation. Constants were chosen on all
generated tables but `interaction`, and earlier ones also on that, credit default and Adult; the others are as they came
out. Seconds are of a machine with other work to do. What is missing has not been measured with what `init` writes now.

| federation | metric | seeds | auto | none | beyond none | joined | beyond joined | best party | MB auto | MB none \
| s auto |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def published(lines: Sequence[dict[str, Any]]) -> str:
    """The page."""
    names = dict.fromkeys(line["federation"] for line in lines)
    rows = (_row(name, [line for line in lines if line["federation"] == name]) for name in names)
    return HEAD + "".join(row for row in rows if row)


def _row(name: str, lines: Sequence[dict[str, Any]]) -> str:
    metric = lines[0]["metric"]
    sign = -1 if metric == "rmse" else 1
    runs = {run: {line["seed"]: line for line in lines if line["run"] == run} for run in ("references", "auto", "none")}
    auto, none = runs["auto"], runs["none"]
    seeds = sorted(auto.keys() & runs["references"].keys())
    if not seeds:
        return ""
    joined, kind = _best(runs["references"], seeds, metric, sign, alone=False)
    party, who = _best(runs["references"], seeds, metric, sign, alone=True)
    own = [auto[seed]["test"][metric] for seed in seeds]
    plain = [none[seed]["test"][metric] for seed in seeds if seed in none]
    both = len(plain) == len(seeds)
    cells = [
        name.replace("_", " "),
        {"roc_auc": "ROC AUC", "rmse": "RMSE"}[metric],
        str(len(seeds)),
        _number(own),
        _number(plain) if both else "",
        paired([sign * (a - b) for a, b in zip(own, plain, strict=True)]) if both else "",
        f"{_number(joined)} ({kind})",
        paired([sign * (a - b) for a, b in zip(own, joined, strict=True)]),
        f"{_number(party)} ({who})",
        _megabytes(auto, seeds),
        _megabytes(none, seeds),
        f"{fmean(auto[seed]['seconds'] for seed in seeds):.0f}",
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


def _megabytes(runs: dict[int, dict[str, Any]], seeds: Sequence[int]) -> str:
    there = [runs[seed]["bytes"] / 1e6 for seed in seeds if seed in runs]
    return f"{fmean(there):.2f}" if len(there) == len(seeds) else ""
