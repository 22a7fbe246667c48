"""What every role makes of its Q local steps alone, and what comes of all of them together.

    python benchmarks/local_steps.py DATA --model mvcnn --eta 0.1 --local-iterations 10

    DATA    the folder of ModelNet10

After every round the training loss is computed with the models before the round, with those of one role after it and
of all others before (the server; the parties, their mean), and with all models after it: on the round's batch, and on
as many training rows that the round did not see. If each role alone makes the loss of the batch smaller and all
together make it larger, steps add up that were each taken as if the others stood still: stale values are what is
unsteady. If all together make it smaller on the batch and larger on other rows, the Q steps learn the batch by heart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.runtime import Meter, rounds

Told = dict[str, float]
CHANGES = tuple(f"{rows} {who}" for rows in ("batch", "others") for who in ("server", "party", "together"))


def config_of(asked: argparse.Namespace) -> RunConfig:
    """The run that is looked at: no compression, evaluated at the end of each epoch."""
    return parse_config(
        {
            "data": {"name": "modelnet10", "path": str(asked.data), "parties": 4, "limit": asked.limit},
            "seed": asked.seed,
            "epochs": asked.epochs,
            "batch_size": 64,
            "local_iterations": asked.local_iterations,
            "step_size": {"eta": asked.eta},
            "optimizer": {"momentum": asked.momentum},
            "compressor": "identity",
            "server_compressor": "identity",
            "party_model": {"name": asked.model, "width": asked.width, "hidden": asked.hidden},
            "server_model": {"name": "linear"},
        }
    )


def watched(config: RunConfig, data: VerticalData) -> Iterator[Told]:
    """Of each round the loss before it and how much each role alone, and all together, changed it."""
    federation = make_federation(recipe_for(config, data), data)
    parties = [party.models[name] for party, name in zip(federation.parties, data.names, strict=True)]
    models = [federation.server.models["server"], *parties]
    plan = federation.server.plan
    before = deepcopy(models)
    for report in rounds(federation.roles[0], federation.roles[1], Meter(), 1):
        told: Told = {"round": report.t0}
        if report.evaluation:
            told["accuracy"] = report.evaluation.test["accuracy"]
        another = (report.t0 + plan.rounds_per_epoch // 2) % plan.rounds
        for name, rows in {"batch": plan.batch(report.t0), "others": plan.batch(another)}.items():
            told |= {f"{name} {who}": by for who, by in changes(data, before, models, rows).items()}
        yield told
        before = deepcopy(models)


def changes(data: VerticalData, before: Sequence[nn.Module], after: Sequence[nn.Module], rows: Tensor) -> Told:
    """The loss of these rows with the models of before, and what those of after add to it."""
    first = loss(data, before, rows)
    alone = [loss(data, [*before[:m], model, *before[m + 1 :]], rows) - first for m, model in enumerate(after)]
    together = loss(data, after, rows) - first
    return {"before": first, "server": alone[0], "party": fmean(alone[1:]), "together": together}


@torch.no_grad()
def loss(data: VerticalData, models: Sequence[nn.Module], rows: Tensor) -> float:
    """That of these rows, by the server's model and those of the parties."""
    server, *parties = models
    h = [party(train[rows]) for party, train in zip(parties, data.train, strict=True)]
    return float(data.loss(server(h), data.loss.labels(data.train_labels[rows], torch.float32)))


def row(rounds_of: Sequence[Told]) -> str:
    """A line of the table: the rounds' means, in how many of them all together made the batch worse, and accuracy."""
    means = [fmean(told[key] for told in rounds_of) for key in ("batch before", *CHANGES)]
    worse = fmean(told["batch together"] > 0 for told in rounds_of)
    accuracy = [told["accuracy"] for told in rounds_of if "accuracy" in told]
    found = [f"{mean:.3f}" for mean in means] + [f"{worse:.0%}", f"{accuracy[-1]:.3f}" if accuracy else ""]
    return f"| {int(rounds_of[0]['round'])} to {int(rounds_of[-1]['round'])} | {' | '.join(found)} |"


def main() -> None:
    """Run, print a row for some rounds at a time, and keep every round if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="mvcnn")
    parser.add_argument("--hidden", type=int, nargs="*", default=[8], help="the model's sizes; of mvcnn its width")
    parser.add_argument("--width", type=int, default=64, help="numbers of an embedding")
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--local-iterations", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=1008)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=2, help="epochs that a row of the table is of")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = config_of(asked)
    data = load_data(config).data
    each = asked.rows * -(-len(data.train_labels) // config.batch_size)
    print(f"| rounds | batch: loss before | {' | '.join(CHANGES)} | worse | accuracy |")
    print(f"|{'---|' * (len(CHANGES) + 4)}")
    seen: list[Told] = []
    for told in watched(config, data):
        seen.append(told)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                print(json.dumps(told), file=file)
        if len(seen) == each:
            print(row(seen), flush=True)
            seen = []
    if seen:
        print(row(seen))


if __name__ == "__main__":
    main()
