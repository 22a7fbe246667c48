"""The search for a good configuration by the validation rows: `cvfl tune`, with Optuna.

    the configured values, then what Optuna proposes ──▶ a run in this process ──▶ validation metric ──▶ Optuna

Nothing depends on when a search was stopped: what is proposed follows from the seed and from the trials that are over,
and a trial that was stopped is done again. Trials have no test rows. All that a trial would send between machines is
counted, and what it would give away of rows if there is noise, also of a trial that was stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from cvfl.advise.space import Choice, Span, keys_of, space_of
from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, CvflError, DataError, writing
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import Loaded
from cvfl.federation.train import train
from cvfl.privacy.account import Account, composed
from cvfl.protocol.learning.metrics import BETTER_LOW
from cvfl.rng import stream
from cvfl.runs.directory import differing
from cvfl.runs.journal import write_whole
from cvfl.runs.progress import Progress

TUNE = "tune"
_UNPRUNED_TRIALS, _UNPRUNED_EPOCHS = 5, 2
"""Trials, and epochs of every other one, that run on however bad they look."""
_LEAST = 5
"""Complete trials that say anything about which settings matter."""
OnRound = Callable[[int, Progress], None]
"""(the number of the trial, how far it is)."""


@dataclass(frozen=True)
class Tried:
    """A trial: the settings that it changed, and keys that are them; its metric, if it ran to its end, and its cost."""

    number: int
    settings: Mapping[str, Any]
    keys: Mapping[str, Any]
    value: float | None = None
    pruned: bool = False
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    account: Account | None = None


@dataclass(frozen=True)
class Tuned:
    """All trials that are over, the best first, what the others cost, and how much each setting matters."""

    metric: str
    tried: Sequence[Tried]
    bytes: int
    account: Account | None = None
    importance: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> Tried | None:
        """The one to take, if any ran to its end."""
        return self.tried[0] if self.tried and self.tried[0].value is not None else None


class Tuning:
    """A search that goes on where it was: what it knows is in its folder."""

    def __init__(
        self, path: Path, changes: Sequence[str], loaded: Loaded, out: Path, wanted: Sequence[str] = ()
    ) -> None:
        self._path, self._changes, self.config = path, changes, load_config(path, changes)
        self._loaded = replace(loaded, assembled=replace(loaded.assembled, data=loaded.data.without_test_rows()))
        self.metric = recipe_for(self.config, self._loaded.data).plan.improving
        self._space = space_of(self.config, len(loaded.data.train_labels), wanted)
        self._study = self._begun(out)

    def _begun(self, out: Path) -> optuna.Study:
        """The study in its folder, new or not; a trial that a kill has stopped is over."""
        if key := differing(out, self.config):
            raise ConfigError(f"{out} was begun with another configuration: {key} differs; choose another --out")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / "config.json", json.dumps(self.config.model_dump(mode="json"), indent=2) + "\n")
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(out / "study.log"))),
                pruner=optuna.pruners.MedianPruner(_UNPRUNED_TRIALS, _UNPRUNED_EPOCHS),
                study_name=TUNE,
                direction="minimize" if self.metric in BETTER_LOW else "maximize",
                load_if_exists=True,
            )
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
        return study

    def run(self, trials: int, on_round: OnRound, on_trial: Callable[[Tried], None]) -> None:
        """Go on until so many trials are over."""
        while (number := len(self._over())) < trials:
            seed = stream(self.config.seed, TUNE, number).seed() % 2**32
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)
            if not number and not self._study.get_trials(states=(TrialState.WAITING,)):
                self._study.enqueue_trial(self._configured())
            self._try(self._study.ask(), number, on_round)
            on_trial(self._over()[-1])

    def _configured(self) -> dict[str, Any]:
        """The configuration as Optuna spells it."""
        kinds = {one.key: json.dumps(one.of(self.config)[0]) for one in self._space if isinstance(one, Choice)}
        return kinds | {one.key: one.now(self.config) for one in self._space if isinstance(one, Span)}

    def _proposed(self, trial: optuna.Trial) -> dict[str, Any]:
        """The keys to change, which the trial notes with the settings that they are."""
        values = {one.key: self._suggested(trial, one) for one in self._space}
        changed = {name: keys for name, value in values.items() if (keys := keys_of(self.config, name, value))}
        keys = {key: value for found in changed.values() for key, value in found.items()}
        trial.set_user_attr("settings", {name: values[name] for name in changed})
        trial.set_user_attr("keys", keys)
        return keys

    def _suggested(self, trial: optuna.Trial, one: Choice | Span) -> Any:
        if isinstance(one, Choice):
            return json.loads(trial.suggest_categorical(one.key, [json.dumps(value) for value in one.of(self.config)]))
        low, high = one.of(self.config)
        return one.rounded(self.config, trial.suggest_float(one.key, low, high, log=True))

    def _try(self, trial: optuna.Trial, number: int, on_round: OnRound) -> None:
        keys = self._proposed(trial)
        watch = _Watch(trial, number, self.metric, on_round)
        try:
            value = self._value(trial, self._with(keys), number, watch)
        except CvflError as error:
            trial.set_user_attr("error", str(error))
            self._study.tell(trial, state=TrialState.FAIL)
        except _Pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        except BaseException:
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        else:
            self._study.tell(trial, value)

    def _with(self, keys: Mapping[str, Any]) -> RunConfig:
        """The configuration of a trial; one evaluation an epoch, so that trials can be compared on their way."""
        changes = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        return load_config(self._path, [*self._changes, *changes]).model_copy(update={"evaluate_every": None})

    def _value(self, trial: optuna.Trial, config: RunConfig, number: int, watch: _Watch) -> float:
        """Run a trial and note what it cost; its metric."""
        names = self._loaded.data.names
        # Frames stay in this process, so that noise may come from the seed, and a search can be repeated.
        noise = {name: stream(config.seed, TUNE, "noise", number, name).words(4).tobytes() for name in names}
        summary = train(config, self._loaded, on_round=watch, noise_secrets=noise).summary
        for key, found in (("bytes", summary["bytes"]["total"]), ("seconds", summary["seconds"])):
            trial.set_user_attr(key, found)
        trial.set_user_attr("privacy", summary["privacy"])
        if not summary["completed"]:
            raise _Pruned if watch.pruned else KeyboardInterrupt
        value = summary["metrics"]["validation"].get(self.metric, math.nan)
        if not math.isfinite(value):
            raise DataError(f"validation rows have no {self.metric}: they are too few, or training diverged")
        return float(value)

    def _over(self) -> list[Tried]:
        """Trials that are over and not to be done again, in their order."""
        over = (TrialState.COMPLETE, TrialState.PRUNED)
        found = [one for one in self._study.get_trials() if one.state in over or "error" in one.user_attrs]
        return [_tried(number, one) for number, one in enumerate(found)]

    def result(self) -> Tuned:
        """What is known by now."""
        sign = 1 if self.metric in BETTER_LOW else -1
        over, every = self._over(), [_tried(one.number, one) for one in self._study.get_trials()]
        order = sorted(over, key=lambda one: math.inf if one.value is None else sign * one.value)
        accounts = [one.account for one in every if one.account]
        account = composed(accounts) if accounts else None
        return Tuned(self.metric, order, sum(one.bytes for one in every), account, self._importance())

    def _importance(self) -> dict[str, float]:
        """The share of the metric's variance that each setting explains, the largest first."""
        if len(self._study.get_trials(states=(TrialState.COMPLETE,))) < _LEAST:
            return {}
        return get_param_importances(self._study, evaluator=FanovaImportanceEvaluator(seed=0))


class _Pruned(KeyboardInterrupt):
    """A trial is worse than most others were at its age: like Ctrl-C, which ends a run after its last full round."""


@dataclass
class _Watch:
    """Tells Optuna of every evaluation, and ends a trial that is not worth its time."""

    trial: optuna.Trial
    number: int
    metric: str
    on_round: OnRound
    pruned: bool = False
    seen: int = 0

    def __call__(self, progress: Progress) -> None:
        self.on_round(self.number, progress)
        report = progress.report
        if report.evaluation is None or report.t0 + 1 == progress.rounds:
            return
        self.seen += 1
        self.trial.report(report.evaluation.validation.get(self.metric, math.nan), self.seen)
        if self.trial.should_prune():
            self.pruned = True
            raise _Pruned


def _tried(number: int, trial: FrozenTrial) -> Tried:
    told, account = trial.user_attrs, trial.user_attrs.get("privacy")
    return Tried(
        number=number,
        settings=told.get("settings", {}),
        keys=told.get("keys", {}),
        value=trial.value if trial.state is TrialState.COMPLETE else None,
        pruned=trial.state is TrialState.PRUNED,
        bytes=told.get("bytes", 0),
        seconds=told.get("seconds", 0.0),
        error=told.get("error", ""),
        account=Account.model_validate(account) if account else None,
    )
