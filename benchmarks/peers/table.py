"""The page of `run.py`, from its lines. Figures that others have published are typed here, marked, and cited."""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

Line = dict[str, Any]
NAMES = {
    "cvfl": "cvfl",
    "flare": "NVIDIA FLARE",
    "flower": "Flower",
    "fate": "FATE HeteroNN",
    "xgboost": "vertical XGBoost",
    "fedtree": "FedTree",
    "joined": "joined table",
}
TITLES = {
    "credit": "UCI credit default: 13 columns and the label, and 10",
    "adult": "UCI Adult: four parties",
}
HEAD = """# Peers

Made by `python benchmarks/peers/run.py DATA docs/results/peers` from `peers.jsonl`; figures that others have published
are marked as such, and were not measured here. Every system has an environment of its own, and its program is a file of
[benchmarks/peers](../../../benchmarks/README.md) that was written for this page; nothing of theirs was copied.

**The same work.** Networks, optimiser, step size, batch size, epochs, encoded columns, and the rows for training and
for the test are those of `settings.toml`, fixed before anything was measured and not tuned for any system: ten epochs
of batches of 256, Adam with 0.002; a party has a perceptron of 32 units and an embedding of 16; the model above is
linear. Every system is tested once, at the end. Rows are aligned beforehand for all; finding shared people is not in
any figure. One seed, so differences of a few thousandths of ROC AUC are noise.

**Bytes** are the payload of TCP, both ways, as one proxy between the parties and the server counted it for all systems,
from the first connection to the end: start, labels, messages, test, and what TLS and HTTP/2 add. A dash: there is no
connection to count.

**Seconds** are from the first batch to the test score, in brackets with starting and ending all processes (of FLARE
without a fixed wait of 15 s for its sites). All roles shared two cores of a machine that was **busy with other work**,
some of it other rows of this page: a factor of two between rows says little. Load is how many processes wanted a core
just before. Several measurements give the median.

**Lines** are what a user writes: Python without comments, empty lines and docstrings, configuration, and commands; not
the scripts that measure.

**What is not alike.** With "labels stay" they never leave the party that has them; so do those of FATE and of XGBoost.
In the other rows of cvfl all parties have the labels, as its algorithm has it, and with FLARE and Flower the server has
them. Q is how many local steps cvfl takes for each message; systems without it take one. With Q = 10 and ten epochs of
messages it takes ten times the steps of all others, which these small networks do not need; "a tenth of the rounds"
takes as many as they do; these rows and that of `cvfl init` were added when the others were known. Secure aggregation
takes a sum in the place of embeddings side by side, and so does FATE, whose other way of joining them fails in 2.2.0.
Trees are another model: 50 of depth 5, step 0.1, 64 bins. "As `cvfl init` sets it up" is another network, too, and the
only row in which shared people are found first and training stops by validation rows. With FLARE and Flower a user
writes the algorithm, with cvfl its settings.
"""
TRAINED = "\n| | test ROC AUC | seconds | MB | lines | on the wire | load |\n|---|---|---|---|---|---|---|\n"
BEYOND = """
## Where cvfl falls short

- **XGBoost's trees are better on these tables** than the same small networks in any system, and train about as fast.
  What `cvfl init` sets up, a larger network, closes that gap, but takes minutes; cvfl has no trees.
- **Without compression, four parties send more with cvfl** than by split learning with FLARE: every party gets the
  embeddings of all others, where split learning returns a gradient to each. Labels that stay at a party are relayed,
  which is more, too. Half-precision messages, as in FLARE's example, are not among cvfl's compressors as such.
- **`auto` costs seconds.** On loopback, where bytes are free, it takes about twice as long as no compression for as
  many rounds, and longer than FLARE on credit default. It pays on a link: [plan](../../plan.md) tells when.
- **Many local steps need fewer rounds, and are no gift.** With as many epochs of messages they overfit. With a tenth of
  the rounds they save bytes and seconds; without compression, where all steps of a round take the same rows, they lose
  ROC AUC even so, with `auto`, which takes rows that were sent before, hardly any.
- **Small frames travel in large envelopes**: nearly half of what TCP carried with `auto` and two parties is TLS, HTTP/2
  and window updates.

## What each gives that the others do not

- **NVIDIA FLARE** runs any Python between sites, and has jobs, users, authorisation, provisioning and a dashboard, and
  horizontal learning; [cvfl runs on it](../../nvflare.md), too. Its own example of split learning sends float16.
- **Vertical XGBoost** grows trees, which need no tuning here, and keeps labels at their party (gradients of rows are
  sent to all; FLARE adds homomorphic encryption of them, which was not measured). `cvfl` has no trees.
- **FATE** has encrypted linear models, trees and embeddings (SSHE), a scheduler and a board for many jobs. HeteroNN was
  run open, which is the fastest way it has; its cluster mode needs a service in Java.
- **Flower** starts a process for every message, so that a node keeps nothing between them; it is made for rounds of
  minutes, thousands of nodes, and horizontal learning.
- **FedTree** has vertical trees with homomorphic encryption and in C++ over a network; its Python package simulates.

## What could not be had

| | what happened |
|---|---|
| SecretFlow | 1.12 and 1.14 need an sdc-sdk that the package index does not have, older ones an older torch |
| Flower 1.42 | needs a newer certifi than the package index has; 1.41 was taken |
| FATE with four parties | not tried: its program here is for a guest and one host |
| FATE's SSHE, XGBoost with encryption, simulators | not tried: the fastest path between processes was taken |
"""
PUBLISHED = """
## Published by others, not measured here

| system | work | published |
|---|---|---|
| FATE, perceptron | default_credit_vertical, one epoch | ROC AUC 0.737, 30,952 s |
| CrypTen, perceptron | default_credit_vertical | ROC AUC 0.789, 1,354 s, 69.9 GiB |
| FATE HeteroNN | 100,000 rows, 330 columns | 2.43 s an epoch |
| SecretFlow, split network | 800,000 rows, two parties x 1,500 columns, 100 Mbit/s, 50 ms | 6,844 s |

The first two are of UniFed (Liu et al., [arXiv 2207.10308](https://arxiv.org/abs/2207.10308)), whose machines and
networks were others, and CrypTen computes on secret shares, which hides far more than any row above does. The other two
are of the projects' own benchmarks. None can be compared in seconds with what was measured here.
"""
SHAPE = """
## The shape of SecretFlow's figure

cvfl on 800,000 rows, two parties x 1,500 columns, each party with a link of 100 Mbit/s and 50 ms longer each way (a
round trip of 100 ms; which of the two the published 50 ms is we do not know, and took the slower). **Measured**: the
seconds and bytes of a round, over gRPC with mutual TLS through the proxy that delays, on {rows} rows of made numbers
of that width, all roles on two busy cores, no row sent twice; ROC AUC is after these. **Computed**: an epoch of 800,000
rows as {epoch} rounds of {batch} rows at that pace; what `auto` sends changes as it learns, so its bytes are the less
sure ones. How many epochs and which network the published 6,844 s are of is not known here, so they are a scale and no
rival.

| | rounds measured | test ROC AUC | seconds a round (quartiles) | kB a round | computed epoch: seconds | MB |
|---|---|---|---|---|---|---|
"""
ALGORITHMS = """
## Compressors of other work, by cvfl's code

Error feedback as in EF-VFL (Valdeira et al., [arXiv 2409.17977](https://arxiv.org/abs/2409.17977)), the same
compressors directly, and the quantisers of C-VFL, as specs of cvfl on shapes of data that they use: digits in quarters
({digits}) and CIFAR-10 in quadrants, preset `cpu` ({cifar}). None of the authors' programs was run. All frames count,
evaluation too, which all but `auto` send in full; behind the comma those of training alone, which the papers count. MB
until the test rows reach the target: mean of the seeds that did.

| | spec | Q | digits: MB to {digits_target} | accuracy, end | CIFAR-10: MB to {cifar_target} | accuracy, end |
|---|---|---|---|---|---|---|
"""


def published(lines: Sequence[Line]) -> str:
    """The page."""
    parts = [HEAD]
    for task, title in TITLES.items():
        some = [line for line in lines if line["task"] == task and line["system"] in NAMES]
        if rows := list(_trained(some)):
            parts += [f"\n## {title}\n", TRAINED, *rows, _prose("".join(_plainly(some)) + ".")]
    parts += [*_computed(lines), BEYOND, *_failed(lines), PUBLISHED, *_shape(lines), *_algorithms(lines), _made(lines)]
    return "".join(parts)


def _plainly(lines: Sequence[Line]) -> Iterator[str]:
    """Who is best at what, of the rows that were measured to their end by more than one process."""
    groups = [several for several in _grouped(lines, "system", "variant").values() if several[0]["system"] != "joined"]
    for key, word, unit, best in (
        ("roc_auc", "The highest ROC AUC of a federation", "", max),
        ("seconds", "the fewest seconds", " s", min),
        ("bytes", "the fewest bytes", " MB", min),
    ):
        known = [several for several in groups if key in several[0] and "computed" not in several[0]]
        if key != "roc_auc":  # one process, or files, is no federation over a network
            known = [several for several in known if "bytes" in several[0]]
        if not known:
            continue
        found = best(known, key=lambda several: _middle(several, key))
        value = _middle(found, key)
        shown = {"roc_auc": f"{value:.4f}", "seconds": f"{value:.1f}", "bytes": f"{value / 1e6:.2f}"}[key]
        name = f"{NAMES[found[0]['system']]} ({found[0]['variant']})"
        yield f"{'' if key == 'roc_auc' else '; '}{word}: {name}, {shown}{unit}"


def _grouped(lines: Sequence[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    found: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in lines:
        if "failed" not in line:
            found[tuple(line[key] for key in keys)].append(line)
    return found


def _trained(lines: Sequence[Line]) -> Iterator[str]:
    groups = _grouped(lines, "system", "variant")
    for (system, variant), several in sorted(groups.items(), key=lambda item: list(NAMES).index(item[0][0])):
        one, mark = several[0], "*" if "computed" in several[0] else ""
        auc = f"{_middle(several, 'roc_auc'):.4f}" if "roc_auc" in one else "not run to its end"
        seconds = f"{_middle(several, 'seconds'):,.1f}{mark}"
        if "seconds_in_all" in one:
            seconds += f" ({_middle(several, 'seconds_in_all'):,.0f})"
        sent = f"{_middle(several, 'bytes') / 1e6:.2f}{mark}" if "bytes" in one else "–"
        load = statistics.median(line["machine"]["load_before"] for line in several)
        last = (str(one["lines"]), one.get("tls", "–"), f"{load:.1f}")
        cells = (f"{NAMES[system]}: {variant}", auc, seconds, sent, *last)
        yield f"| {' | '.join(cells)} |\n"


def _computed(lines: Sequence[Line]) -> Iterator[str]:
    if found := [line for line in lines if line["system"] == "flower" and "computed" in line]:
        said = ", ".join(f"{line['task']}: {line['rounds_measured']} of {line['rounds']:,}" for line in found)
        yield f"\n\\* Computed from the rounds of Flower that were measured ({said}), at their median seconds.\n"


def _failed(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if "failed" in line:
            name = NAMES.get(line["system"], line["system"])
            yield f"| {name}: {line['variant']}, {line['task']} | {line['failed']} |\n"


def _shape(lines: Sequence[Line]) -> Iterator[str]:
    found = [line for line in lines if line["system"] == "shape" and "failed" not in line]
    if not found:
        return
    one = found[0]
    yield SHAPE.format(rows=f"{one['rows']:,}", epoch=f"{one['rounds_in_epoch']:,}", batch=f"{one['batch_size']:,}")
    for line in found:
        low, _, high = line["quartiles"]
        pace = f"{line['seconds_a_round']:.3f} ({low:.3f} to {high:.3f})"
        once = f"{line['variant']} | {line['rounds_measured']} | {line['roc_auc']:.3f} | {pace}"
        once += f" | {line['bytes_a_round'] / 1e3:.1f}"
        yield f"| {once} | {line['epoch_seconds']:.0f} | {line['epoch_bytes'] / 1e6:.1f} |\n"


def _algorithms(lines: Sequence[Line]) -> Iterator[str]:
    found = [line for line in lines if line["system"] == "algorithms"]
    tasks = {task: [line for line in found if line["task"] == task] for task in ("digits", "cifar10")}
    if not all(tasks.values()):
        return
    seeds = {task: len({line["time"] for line in some}) for task, some in tasks.items()}
    targets = {task: next(f"{line['target']:.0%}" for line in some if "target" in line) for task, some in tasks.items()}
    yield ALGORITHMS.format(
        digits=_seeds(seeds["digits"]),
        cifar=_seeds(seeds["cifar10"]),
        digits_target=targets["digits"],
        cifar_target=targets["cifar10"],
    )
    for variant in dict.fromkeys(line["variant"] for line in found):
        several = {task: [line for line in some if line["variant"] == variant] for task, some in tasks.items()}
        one = next(line for some in several.values() for line in some)
        cells = [cell for some in several.values() for cell in _reached(some)]
        yield f"| {variant.rpartition(', ')[0]} | `{one['spec']}` | {one['Q']} | {' | '.join(cells)} |\n"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _reached(runs: Sequence[Line]) -> tuple[str, str]:
    ended = [run for run in runs if "final" in run]
    there = [run["bytes_to_target"] / 1e6 for run in ended if run["bytes_to_target"]]
    few = "" if len(there) == len(runs) else f" ({len(there)} of {len(runs)})"
    if not ended:
        return "–", "failed" if runs else "not run"
    training = [run["training_to_target"] / 1e6 for run in ended if run["bytes_to_target"]]
    mean = f"{statistics.mean(there):.2f}, {statistics.mean(training):.2f}{few}" if there else "not reached"
    return mean, f"{statistics.mean(run['final'] for run in ended):.3f}"


def _made(lines: Sequence[Line]) -> str:
    """Versions and machines of all lines."""
    versions: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for package, version in line["versions"].items():
            versions[package].add(version)
    packages = "\n".join(f"| {package} | {', '.join(sorted(found))} |" for package, found in sorted(versions.items()))
    machines = sorted({f"{line['machine']['cores']} cores, {line['machine']['kind']}" for line in lines})
    python = ", ".join(sorted({line["python"] for line in lines}))
    loads = [line["machine"]["load_before"] for line in lines]
    said = f"{'; '.join(machines)}; other work was a load of {min(loads)} to {max(loads)} before the measurements"
    return f"\n## Made with\n\n{said}.\n\n| | |\n|---|---|\n| Python | {python} |\n{packages}\n"


def _prose(text: str) -> str:
    """A paragraph with lines as long as those of code."""
    return f"\n{textwrap.fill(text, 120, break_on_hyphens=False)}\n" if len(text) > 1 else ""


def _middle(several: Sequence[Line], key: str) -> float:
    return float(statistics.median(line[key] for line in several))
