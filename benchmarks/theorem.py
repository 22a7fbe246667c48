"""Theorem 1 beside a real run: does its third term, that of compression, explain where the gradient stays?

    python benchmarks/theorem.py OUT

    OUT    a folder: theorem.jsonl gets a line a run, theorem.svg is the figure, and the table is printed

UCI digits in quarters: every party has a linear layer of 8 numbers and a tanh, the server a linear layer, so the loss
is smooth as the theorem asks. A batch is all rows, so that the second term, which is of batches, is zero. Q = 5. Of the
exact gradient of all roles by all rows the mean square over rounds so far is what the theorem bounds.

    none       exact embeddings
    b = 2      scalar quantizer: an error that stays
    falling    the same with bits added as the error has to fall with one over the root of rounds

The constants of the assumptions are not known, so those take their place with which they held in the rounds that were
looked at: L and L_m are the largest eigenvalues of second derivatives, H_m G_m the largest ratio of both sides of
Lemma 1, E_m what was measured of every message. The first step size is one that the theorem allows; with the other,
ten times larger, training goes further in as many rounds, but the theorem says nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from theorem_figure import drawn, table
from torch import Tensor, nn

from cvfl.compress import Context, build
from cvfl.config.files import parse_config
from cvfl.data import VerticalData
from cvfl.federation.builder.machines import make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.runtime import Meter, rounds
from cvfl.theory.convergence import Constants, max_step_size, theorem1, theorem1_proved

CELLS = {"none": "identity", "b = 2": "scalar:bits=2", "falling": "schedule(scalar:bits=2):rate=0.5"}
Q, WIDTH = 5, 8
LOOKS = 12
"""Rounds of a run whose constants are looked at."""
POINTS = 200
_POWER = 40


@dataclass
class Looked:
    """The smallest constants with which the assumptions held so far, one a role, the server first."""

    L: float
    L_m: list[float]
    HG: list[float]

    def also(self, other: Looked) -> Looked:
        """The constants of both."""
        return Looked(max(self.L, other.L), [*map(max, self.L_m, other.L_m)], [*map(max, self.HG, other.HG)])


class Model:
    """All parameters of a federation as one function of the rows: the loss, and what is derived from it."""

    def __init__(self, data: VerticalData, parties: Sequence[nn.Module], server: nn.Module) -> None:
        self.data, self.parties, self.server = data, parties, server
        self.labels = data.loss.labels(data.train_labels, torch.float64)
        self.roles = [list(model.parameters()) for model in (server, *parties)]
        self.all = [one for role in self.roles for one in role]

    def embeddings(self) -> list[Tensor]:
        """Those of all training rows, one tensor a party."""
        return [party(x) for party, x in zip(self.parties, self.data.train, strict=True)]

    def loss(self, h: Sequence[Tensor] | None = None) -> Tensor:
        """F, by these embeddings or by those that the models have."""
        found: Tensor = self.data.loss(self.server(list(h) if h else self.embeddings()), self.labels)
        return found

    def gradient(self) -> Tensor:
        """That of all roles, at the exact embeddings."""
        return torch.cat([flat(part) for part in torch.autograd.grad(self.loss(), self.all)])

    def look(self, spec: str, t0: int) -> Looked:
        """What the assumptions ask of their constants at these parameters."""
        blocks = [largest_eigenvalue(self.loss, role) for role in self.roles]
        whole = largest_eigenvalue(self.loss, self.all)
        return Looked(whole, blocks, [*self._ratios(spec, t0)] if spec != "identity" else [0.0] * len(self.roles))

    def _ratios(self, spec: str, t0: int) -> Iterator[float]:
        """Of each role the root of Lemma 1's left side over the errors of the others' messages."""
        h = self.embeddings()
        sent = [received(spec, own.detach(), t0, m) for m, own in enumerate(h, start=1)]
        errors = [(a - b).square().sum().item() for a, b in zip(sent, h, strict=True)]
        exact = torch.autograd.grad(self.loss(h), self.all, retain_graph=True)
        of_role = iter(exact)
        for m, role in enumerate(self.roles):
            heard = [own if j == m else other for j, (own, other) in enumerate(zip(h, sent, strict=True), start=1)]
            inexact = torch.autograd.grad(self.loss(heard), role, retain_graph=True)
            off = sum(float((a - next(of_role)).square().sum()) for a in inexact)
            yield math.sqrt(off / sum(error for j, error in enumerate(errors, start=1) if j != m))


def flat(part: Tensor) -> Tensor:
    """A tensor as a vector."""
    return part.reshape(-1)


def received(spec: str, h: Tensor, t0: int, m: int) -> Tensor:
    """What receivers make of this embedding."""
    compressor, context = build(spec), Context(seed=1, t0=t0, m=m)
    return compressor.decompress(compressor.compress(h, context), context)


def largest_eigenvalue(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> float:
    """The largest one, by size, of the loss's second derivatives in these parameters, by the power method."""
    first = torch.cat([flat(part) for part in torch.autograd.grad(loss(), parameters, create_graph=True)])
    v = torch.ones_like(first) / math.sqrt(len(first))
    size = 0.0
    for _ in range(_POWER):
        second = torch.autograd.grad(first @ v.detach(), parameters, retain_graph=True)
        v = torch.cat([flat(part) for part in second])
        size = float(v.norm())
        v = v / size
    return size


def measured(cell: str, eta: float, R: int, seed: int) -> dict[str, Any]:
    """A run: its gradients by round, the errors of its messages, and the theorem's terms."""
    spec = CELLS[cell]
    config = parse_config(
        {
            "data": {"name": "digits", "parties": 4},
            "seed": seed,
            "precision": "float64",
            "rounds": R,
            "batch_size": 1348,
            "local_iterations": Q,
            "step_size": {"eta": eta},
            "compressor": spec,
            "server_compressor": "identity",
            "folding": False,
            "party_model": {"name": "mlp", "width": WIDTH, "hidden": []},
            "server_model": {"name": "linear"},
            "evaluate_every": 1,
        }
    )
    data = load_data(config).data
    assert len(data.train_labels) == config.batch_size
    federation = make_federation(recipe_for(config, data), data)
    parties = [party.models[name] for name, party in zip(data.names, federation.parties, strict=True)]
    model = Model(data, parties, federation.server.models["server"])
    looks = {round(R ** (k / (LOOKS - 1))) - 1 for k in range(LOOKS)} | {round(R * k / LOOKS) for k in range(LOOKS)}
    squares, errors, losses = [], [], [model.loss().item()]
    constants = model.look(spec, 0)
    squares.append(float(model.gradient().square().sum()))
    for report in rounds(federation.roles[0], federation.roles[1], Meter(), 1):
        errors.append([0.0, *(report.measured[m].error for m in range(1, len(parties) + 1))])
        squares.append(float(model.gradient().square().sum()))
        losses.append(model.loss().item())
        if report.t0 + 1 in looks:
            constants = constants.also(model.look(spec, report.t0 + 1))
    return {"cell": cell, "eta": eta, "seed": seed, "Q": Q} | _told(squares[:R], errors, losses, constants, eta)


def _told(
    squares: Sequence[float], errors: Sequence[Sequence[float]], losses: Sequence[float], found: Looked, eta: float
) -> dict[str, Any]:
    """What is kept of a run: some of its rounds, and the terms after all of them."""
    R = len(squares)
    constants = Constants(
        L=found.L,
        L_m=tuple(found.L_m),
        sigma_m=(0.0,) * len(found.L_m),
        H_m=tuple(found.HG),
        G_m=(1.0,) * len(found.L_m),
    )
    shown = sorted({min(R, round(R ** (k / (POINTS - 1)))) for k in range(POINTS)})
    means = torch.tensor(squares, dtype=torch.float64).cumsum(0) / torch.arange(1, R + 1)
    sums = torch.tensor([sum(sent) for sent in errors], dtype=torch.float64)

    covered = eta <= max_step_size(Q, constants.L, constants.L_m)

    def terms(upto: int) -> dict[str, float]:
        if not covered:
            return {}
        given: dict[str, Any] = {"eta": eta, "Q": Q, "B": 1, "gap": max(0.0, losses[0] - losses[upto])}
        printed = theorem1(constants, **given, errors=errors[:upto])
        proved = theorem1_proved(constants, **given, errors=errors[:upto])
        return {"gap": printed.gap, "compression": printed.compression, "proved": proved.compression}

    return {
        "rounds": R,
        "constants": asdict(found),
        "loss": [losses[0], losses[-1]],
        "last": sum(squares[-R // 10 :]) / len(squares[-R // 10 :]),
        "shown": [
            {"round": r, "mean": float(means[r - 1]), "square": squares[r - 1], "error": float(sums[r - 1])} | terms(r)
            for r in shown
        ],
    }


def main() -> None:
    """Run what is missing, draw the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--etas", default="0.02,0.2")
    parser.add_argument("--rounds", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    record = asked.out / "theorem.jsonl"
    lines = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    etas = sorted(map(float, asked.etas.split(",")))
    for seed in range(asked.seeds):
        for eta in etas:
            for cell in CELLS:
                if any((line["cell"], line["eta"], line["seed"]) == (cell, eta, seed) for line in lines):
                    continue
                line = measured(cell, eta, asked.rounds, seed)
                lines.append(line)
                with record.open("a", encoding="utf-8") as file:
                    print(json.dumps(line), file=file)
                print(cell, eta, seed, line["loss"], line["last"], line["constants"], flush=True)
    (asked.out / "theorem.svg").write_text(drawn(lines), encoding="utf-8")
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main()
