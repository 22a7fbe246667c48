"""A recorded run brought back to be audited: its roles at rest with their final parameters, and what rows are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from cvfl.audit.attacks import AUDIT
from cvfl.config.files import parse_config
from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import CvflError, DataError
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import Loaded, load_data
from cvfl.protocol import Loss, Recipe, Rows, StepSize
from cvfl.rng import stream
from cvfl.runs.directory import fingerprint
from cvfl.runs.read import read_run
from cvfl.runs.record import Run
from cvfl.types import OnStep

ROWS = 4000
"""Most rows that are audited; the attacker knows half of them."""
LOOKS = 20
"""Most times that a row is sent: once for every epoch of the run."""
_READ = 256  # rows that are read together where rows are files


class Still(StepSize):
    """No step at all: rounds are played, not trained."""

    def at(self, t0: int, R: int, Q: int) -> float:
        """Nothing moves."""
        return 0.0


@dataclass(frozen=True)
class Subject:
    """A federation as it was before and after training, its record, and its data; each row is sent `looks` times."""

    config: RunConfig
    record: Run
    loaded: Loaded
    data: VerticalData
    before: Federation
    federation: Federation
    looks: int
    truth: Tensor
    """The labels of training rows as their holder has them: what an attacker wants, whatever was told."""

    @classmethod
    def of(cls, run: Path, on_step: OnStep, most: int = LOOKS) -> Subject:
        """Read a run directory whose data can be loaded here; rows are sent `most` times at most."""
        config, record = _recorded(run)
        if record.started_from:
            raise DataError(f"{run}: it started from another run; what both told together is not audited yet")
        if config.data.alignment == "outer":
            raise DataError(f"{run}: its parties do not hold all of its rows; that is not audited yet")
        loaded = _loaded(run, config, record, on_step)
        whole = loaded.data
        chosen = _audited_rows(whole, max(ROWS, config.batch_size), config.seed)
        data = replace(whole.of_training_rows(chosen), augment=None)
        epoch = math.ceil(len(whole.train_labels) / config.batch_size)
        looks = min(most, math.ceil(record.rounds / epoch))
        recipe, noisy = recipe_for(config, data), config.privacy.noise is not None
        # Not the secrets of the run, which parties keep to themselves: others, so that an audit can be repeated.
        secrets = {name: stream(config.seed, AUDIT, "noise", name).words(4).tobytes() for name in data.names}
        before, federation = (
            make_federation(_at_rest(recipe, times, noisy), data, noise_secrets=secrets) for times in (1, looks)
        )
        roles = {"server": federation.server.model} | {party.holding.name: party.model for party in federation.parties}
        for name, model in roles.items():
            _restore(model, run / "parameters" / f"{name}.safetensors", record.parameters.get(name))
        return cls(config, record, loaded, data, before, federation, looks, loaded.truth.train_labels[chosen])

    @property
    def loss(self) -> Loss:
        """What kind of labels there are."""
        return self.federation.plan.loss

    def columns(self, m: int, most: int, held_out: bool = False) -> Columns:
        """Columns of party m, as many as that at most, for training rows or for those held out."""
        data, at = self.data, m - 1
        rows = (*data.validation[at : at + 1], data.test[at]) if held_out else (data.train[at],)
        preparation = self.loaded.assembled.preparations.get(data.names[at])
        total = math.prod(rows[0].shape[1:])
        drawn = torch.from_numpy(stream(self.config.seed, AUDIT, "columns").permutation(total)[:most])
        return Columns(rows, drawn.sort().values, preparation.columns if preparation else ())

    @property
    def bits(self) -> float | None:
        """Bits of a number of an embedding as the run sent it: bytes up over numbers, headers included."""
        if self.reader != "server":
            return None
        rows, batch = self.record.rows["train"], self.config.batch_size
        epochs, rest = divmod(self.record.rounds, math.ceil(rows / batch))
        numbers = (epochs * rows + rest * batch) * sum(self.federation.plan.widths)
        return 8 * self.record.sent.up / numbers

    @property
    def reader(self) -> str:
        """The role that reads what parties send: the server, or the party with the labels."""
        return self.config.privacy.labels if self.config.privacy.relayed else "server"

    @property
    def label_holders(self) -> tuple[str, ...]:
        """The roles that have the labels anyway."""
        if self.config.privacy.labels != "shared":
            return (self.config.privacy.labels,)
        own = [name for name, party in self.config.party.items() if party.label is not None]
        return ("server", *(self.data.names if self.config.algorithm == 1 else own))

    @property
    def task(self) -> float | None:
        """How well the joint model does on test rows, in the unit of the attacks on labels."""
        test = self.record.tested
        if self.loss is not Loss.SQUARED:
            return test.get("roc_auc")
        return test.get("r2")


@dataclass(frozen=True)
class Columns:
    """Some of a party's columns, rows flattened, and what they are called."""

    parts: tuple[Rows, ...]
    places: Tensor
    names: Sequence[str]

    @property
    def shaped(self) -> bool:
        """Whether a row is a picture or a series."""
        return len(self.parts[0].shape) > 2

    def read(self, order: Tensor) -> Tensor:
        """The columns of these rows of all parts after each other."""
        whole, start = torch.empty(len(order), len(self.places), dtype=torch.float64), 0
        for part in self.parts:
            inside = ((order >= start) & (order < start + len(part))).nonzero()[:, 0]
            for places in torch.split(inside, _READ):
                whole[places] = part[order[places] - start].flatten(1)[:, self.places].double()
            start += len(part)
        return whole

    def name(self, n: int) -> str:
        """What the nth of these columns is called, or where it is."""
        place, shape = int(self.places[n]), self.parts[0].shape[1:]
        if self.names:
            return self.names[place]
        if not self.shaped:
            return f"column {place + 1}"
        return str([int(at) for at in torch.unravel_index(torch.tensor(place), torch.Size(shape))])


def _recorded(run: Path) -> tuple[RunConfig, Run]:
    path = run / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{run}: no run directory to audit, it has no config.json") from None
    except (OSError, ValueError):
        raise DataError(f"{path}: cannot be read") from None
    return parse_config(values, str(path)), read_run(run)


def _loaded(run: Path, config: RunConfig, record: Run, on_step: OnStep) -> Loaded:
    try:
        loaded = load_data(config, on_step)
    except CvflError as error:
        raise DataError(f"{run}: an audit needs the data of all parties, as in training: {error}") from None
    here, then = len(loaded.data.train_labels), record.rows["train"]
    if here != then:
        raise DataError(f"{run}: the data here has {here:,} training rows, the run had {then:,}")
    return loaded


def _audited_rows(data: VerticalData, most: int, seed: int) -> Tensor:
    """Training rows drawn at random, every class among them."""
    order = torch.from_numpy(stream(seed, AUDIT, "rows").permutation(len(data.train_labels)))
    if data.loss is not Loss.SQUARED:
        drawn = data.train_labels[order]
        first = torch.zeros(len(order), dtype=torch.bool)
        first[[int((drawn == label).nonzero()[0]) for label in torch.unique(drawn)]] = True
        order = torch.cat([order[first], order[~first]])
    return order[:most].sort().values


def _at_rest(recipe: Recipe, looks: int, noisy: bool) -> Recipe:
    """The same roles with a step size of 0, and only as many local steps as make a difference to frames.

    Held-out rows are evaluated at the end; where each time is another one, because of noise, once a pass. What follows
    the last round for a private model is looked at apart, in again.py.
    """
    plan, epoch = recipe.plan, recipe.plan.rounds_per_epoch
    played = replace(
        plan,
        step_size=Still(eta=1.0),
        optimizer=plan.optimizer.model_copy(update={"average": None}),  # the model that was kept is the one at rest
        Q=min(plan.Q, 2) if plan.algorithm == 2 else 1,
        rounds=max(1, looks) * epoch,
        evaluate_every=epoch if noisy else 0,
        private_holder=0,
    )
    return replace(recipe, plan=played)


def _restore(model: nn.Module, path: Path, digest: str | None) -> None:
    try:
        model.load_state_dict(load(path.read_bytes()))
    except FileNotFoundError:
        raise DataError(f"{path}: not there; an audit needs the final parameters of every role") from None
    except (OSError, SafetensorError, RuntimeError):
        raise DataError(f"{path}: does not hold the parameters of the configured model") from None
    if digest is not None and fingerprint(model) != digest:
        raise DataError(f"{path}: not the parameters that summary.json has the hash of")
