"""A federation as a notebook uses it: made of tables, tensors or a configuration file, and trained by `fit`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tomlkit
import torch
from torch import Tensor, nn

from cvfl.api.frames import write_frames
from cvfl.api.progress import shown
from cvfl.api.run import Bytes, Metrics, Run, Scores
from cvfl.config.draft import configuration
from cvfl.config.examine import Choices, check_choices, examine
from cvfl.config.files import load_config, merged, parse_config, read_values
from cvfl.config.schema import RunConfig
from cvfl.config.sections import id_columns
from cvfl.data import VerticalData
from cvfl.data.tables.sources import Source, open_table
from cvfl.errors import ConfigError, DataError
from cvfl.federation.rows.load import load_data
from cvfl.federation.start import Start
from cvfl.federation.train import train
from cvfl.protocol import Loss
from cvfl.protocol.recipe import MakeModel
from cvfl.runs.directory import RunDirectory
from cvfl.runs.progress import Progress, progress_of
from cvfl.runs.status import StatusFile, status_kept
from cvfl.scratch import Scratch

Runtime = Literal["inprocess", "grpc", "nvflare"]
Model = nn.Module | Callable[[], nn.Module]
"""A module, which is trained from the parameters that it has, or a function that makes one."""
_DEFAULTS: dict[str, Any] = {
    "epochs": 10,
    "local_iterations": 5,
    "optimizer": {"name": "adam"},
    "step_size": {"eta": 0.001},
}


@dataclass(frozen=True)
class Round:
    """What a callback sees after each round: its number (from 1) of so many, loss, bytes so far, and metrics if any."""

    number: int
    of: int
    loss: float
    seconds: float
    bytes: Bytes
    metrics: Metrics | None


Callback = Callable[[Round], bool | None]
"""Is called after every round; a run stops when one returns True."""


class _Stop(KeyboardInterrupt):
    """A callback wants no more rounds: like Ctrl-C, which ends a run after its last full round."""


class Federation:
    """Organisations that hold different columns about the same people; `fit` trains one model across them.

    Made by `from_frames`, `from_tensors`, `from_data_set` or `from_config`.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        data: VerticalData | None = None,
        folder: Scratch | None = None,
    ) -> None:
        self._settings, self._data = dict(settings), data
        self._folder = folder  # with the tables; it lives as long as this object

    @classmethod
    def from_config(cls, path: str | Path) -> Federation:
        """The federation of a configuration file, as `cvfl train` takes it."""
        config = load_config(Path(path))  # refuses what is wrong, and finds files from where the configuration is
        values = read_values(Path(path))
        for name, section in config.party.items():
            for key in ("table", "row_secret", "label_secret"):
                if path_of := getattr(section, key):
                    values["party"][name][key] = str(path_of)
        if config.data.path:
            values["data"]["path"] = str(config.data.path)
        return cls(values)

    @classmethod
    def from_frames(cls, frames: Mapping[str, Any], id: str | Sequence[str], label: str) -> Federation:
        """One frame a party, by name: pandas, polars, Arrow, or anything else that speaks Arrow's C interface.

        `id` is the column that names a person in every frame, or several that do together; `label` is what to predict,
        as "party.column". People are found by private set intersection, and every party's columns are prepared apart,
        as on machines of their own.
        """
        holder, dot, column = label.partition(".")
        if not dot:
            raise ConfigError(f"label: say whose it is, as 'party.column', not {label!r}")
        folder = Scratch()
        paths = write_frames(frames, folder.path)
        with ExitStack() as stack:
            drafts = []
            for name, path in paths.items():
                source = Source(name, path=path)
                drafts.append(examine(source, stack.enter_context(open_table(source))))
            choices = Choices(dict.fromkeys(paths, id_columns(id)), holder, column)
            found, drafts = check_choices(drafts, choices)
            text = configuration(drafts, choices, found, Path())
        values = tomlkit.parse(text).unwrap()
        for name, path in paths.items():
            values["party"][name]["table"] = str(path)
        return cls(values, folder=folder)

    @classmethod
    def from_tensors(
        cls,
        train: Mapping[str, Tensor],
        labels: Tensor,
        test: Mapping[str, Tensor] | None = None,
        test_labels: Tensor | None = None,
        loss: str | None = None,
    ) -> Federation:
        """Rows as tensors, one a party by name, row i the same person in each; labels of two classes, more, or numbers.

        Without `loss` ("binary", "multiclass" or "squared") whole numbers are classes, and anything else a quantity.
        """
        if (test is None) != (test_labels is None):
            raise DataError("test rows and test_labels belong together")
        names = tuple(train)
        held_out = {name: train[name][:0] for name in names} if test is None else test
        if set(held_out) != set(names):
            raise DataError(f"test rows of {', '.join(held_out)}; training rows of {', '.join(names)}")
        kind = Loss(loss) if loss else _kind(labels)
        y_test = labels[:0] if test_labels is None else test_labels
        data = VerticalData(
            names=names,
            train=tuple(train.values()),
            test=tuple(held_out[name] for name in names),
            train_labels=kind.labels(labels, torch.float32),
            test_labels=kind.labels(y_test, torch.float32),
            loss=kind,
        )
        batch = max(1, min(256, len(labels)))
        return cls(_DEFAULTS | {"data": {}, "party": {name: {} for name in names}, "batch_size": batch}, data)

    @classmethod
    def from_data_set(cls, name: str, parties: int | None = None, path: str | Path | None = None) -> Federation:
        """A data set by name (`cvfl data list` shows them), divided among parties."""
        data = {"name": name, "parties": parties, "path": None if path is None else str(path)}
        return cls(_DEFAULTS | {"data": {key: value for key, value in data.items() if value is not None}})

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in their order."""
        if self._data is not None:
            return self._data.names
        config = self.config()
        return tuple(config.party) if config.data.name is None else load_data(config).data.names

    def config(self, **settings: Any) -> RunConfig:
        """The configuration of a run with these settings, checked; keys are those of the TOML file."""
        values = merged(self._settings, settings)
        if "rounds" in settings:
            values.pop("epochs", None)
        elif "epochs" in settings:
            values.pop("rounds", None)
        config = parse_config(values, "fit")
        holder = config.party.get(config.privacy.labels)
        if config.privacy.randomised and self._folder and holder and holder.label_secret is None:
            raise ConfigError(
                f"party.{config.privacy.labels}.label_secret: name a file that is kept; a draw that is made anew with "
                "every frame tells more of each row"
            )
        return config

    def fit(
        self,
        compressor: str = "auto",
        *,
        runtime: Runtime = "inprocess",
        models: Mapping[str, Model] | None = None,
        server_model: Model | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        resume: bool = False,
        start: Run | str | Path | None = None,
        progress: bool | None = None,
        noise_secrets: Mapping[str, bytes] | None = None,
        **settings: Any,
    ) -> Run:
        """Train, and return the run.

        `settings` are keys of the configuration: ``epochs=20, local_iterations=10, step_size={"eta": 0.01}``. Own
        `models` by party map a batch of its rows to B x P embeddings; an own `server_model` maps the list of embeddings
        to outputs, and one as a mapping is that section of the configuration. A callback that returns True stops the
        run after that round, and so does Ctrl-C. With `out` the run directory is kept there, and `resume` goes on with
        one that was stopped. `start` is an earlier run, or its directory: new rows, the same columns; models begin with
        its weights, and columns become numbers as they did there. Every runtime ends in the same bits. A progress bar
        is shown in notebooks and terminals, unless `progress` says otherwise. Noise comes from secrets of the parties:
        given ones repeat a run. `cvfl board` shows a run with `out` as it goes on.
        """
        if isinstance(server_model, Mapping):
            settings["server_model"], server_model = server_model, None
        config = self.config(compressor=compressor, **settings)
        folder = None if out else Scratch()
        target = folder.path / "run" if folder else Path(str(out))
        begun = _started(start)
        with shown(compressor, progress) as bar, _status(runtime, config, out, resume, begun) as status:

            def seen(at: Progress) -> None:
                bar(at)
                if status:
                    status.round(at)
                asked = [callback(_round(at)) for callback in callbacks]  # each of them hears of the round
                if True in asked:
                    raise _Stop

            if runtime == "inprocess":
                own = self._makers(models)
                head = None if server_model is None else _maker(server_model)
                result = train(
                    config,
                    self._data,
                    target,
                    compressor,
                    seen,
                    own,
                    head,
                    resume,
                    noise_secrets=noise_secrets,
                    start=begun,
                )
                if status and not result.summary["completed"]:
                    status.over = "stopped"
                return Run(target, result.models, folder)
            self._elsewhere(runtime, models or server_model, resume)
            try:
                self._apart(runtime, config, target, seen, begun)
            except _Stop:
                raise ConfigError(f"runtime = {runtime!r}: a run that a callback stops leaves no record") from None
        return Run(target, folder=folder)

    def _makers(self, models: Mapping[str, Model] | None) -> list[MakeModel] | None:
        if models is None:
            return None
        if set(models) != set(self.parties):
            raise ConfigError(f"models of {', '.join(models)}; the parties are {', '.join(self.parties)}")
        return [_maker(models[name]) for name in self.parties]

    def _elsewhere(self, runtime: str, own_models: object, resume: bool) -> None:
        """What cannot leave this process."""
        if runtime not in ("grpc", "nvflare"):
            raise ConfigError(f"runtime: 'inprocess', 'grpc' or 'nvflare', not {runtime!r}")
        if self._data is not None:
            raise ConfigError(f"runtime = {runtime!r}: tensors are in this process; use Federation.from_frames")
        if own_models:
            raise ConfigError(
                f"runtime = {runtime!r}: modules are in this process; name a function that makes them, as in "
                'party_model={"name": "my_package:make_model"}'
            )
        if resume:
            raise ConfigError(f"runtime = {runtime!r}: resume goes on with runs in one process")

    def _apart(
        self, runtime: str, config: RunConfig, out: Path, seen: Callable[[Progress], None], start: Start | None
    ) -> None:
        """Train with every role in a process of its own."""
        if start:
            start.check(config)
        if runtime == "nvflare":
            from cvfl.federation.nvflare_simulator import train_nvflare  # noqa: PLC0415  an extra

            train_nvflare(config, out, "fit", seen, start)
            return
        from cvfl.federation.processes import train_grpc  # noqa: PLC0415  an extra

        with Scratch() as scratch:
            path = scratch.path / "fit.toml"
            values = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            for name, section in config.party.items():
                values["party"][name] |= {"url": section.url} if section.url else {}  # with its password
            path.write_text(tomlkit.dumps(values), encoding="utf-8")
            on_event = lambda event: seen(progress_of(event)) if event["event"] == "round" else None  # noqa: E731
            train_grpc(path, [], out, on_event, start_from=start)


@contextmanager
def _status(
    runtime: Runtime, config: RunConfig, out: str | Path | None, resume: bool, start: Start | None
) -> Iterator[StatusFile | None]:
    """What `cvfl board` reads of a run that is kept; over gRPC the server's process tells it."""
    if out is None or runtime == "grpc":
        yield None
        return
    RunDirectory(Path(out), resume, start.told if start else None).check(config)  # whose own status is not touched
    with status_kept(Path(out), config.model_dump(mode="json")) as status:
        yield status


def _started(run: Run | str | Path | None) -> Start | None:
    if run is None:
        return None
    from cvfl.serving.bundles import start_from  # noqa: PLC0415  not needed by those who start afresh

    return start_from(run.path if isinstance(run, Run) else Path(run))


def _maker(model: Model) -> MakeModel:
    """How to make a module for one run: a fresh copy of a given one, or what the function makes."""
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    return model


def _kind(labels: Tensor) -> Loss:
    """What labels look like: classes are whole numbers from 0 on."""
    values = torch.unique(labels)
    if not bool((values == values.round()).all()) or bool((values < 0).any()) or len(values) > 100:
        return Loss.SQUARED
    return Loss.BINARY if set(values.tolist()) <= {0, 1} else Loss.MULTICLASS


def _round(at: Progress) -> Round:
    found, sent = at.report.evaluation, at.sent
    metrics = Metrics(Scores(found.train), Scores(found.validation), Scores(found.test)) if found else None
    counted = Bytes(**asdict(sent))
    return Round(at.report.t0 + 1, at.rounds, at.report.loss, at.report.seconds, counted, metrics)
