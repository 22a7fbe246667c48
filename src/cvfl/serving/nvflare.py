"""Jobs of NVIDIA FLARE that use models which sites have from an earlier run: to start from, or to predict with.

    SITE/local/cvfl.toml    [start.hospital]     the model that a run starts from
                            [predict.hospital]   the model, the table of new rows and, where the label was, the scores
    JOB/app/config/cvfl.json                     terms and names, as of any run

Which model a site uses, on which rows, and where scores go is in its own file alone: a job cannot name a folder.
Without its section a site takes no part in such a job. That all use models of one run is a term, which the server
compares.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from cvfl.config.files import read_values
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, writing
from cvfl.federation.nvflare import (
    PREDICT_ROLES,
    RUN,
    JobRoles,
    PartyJob,
    ServerJob,
    check_owner,
    clean_folder,
    identity_of,
    job_settings,
    run_folder,
    site_file,
    write_job,
)
from cvfl.federation.start import Start
from cvfl.runtime.nvflare.place import Place
from cvfl.serving.apart import PartyPrediction, ServerPrediction, check_predicts
from cvfl.serving.bundles import party_start, server_start
from cvfl.serving.write import check_form, write_scores
from cvfl.types import Section

SERVER = "server"
PREDICTION_FILE = "prediction.json"
_log = logging.getLogger(__name__)


class OwnStart(Section):
    """What a site starts from: the folder of its model, or the number of a run that it was not in."""

    model: Path | None = None
    joins: Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.model is None) == (self.joins is None):
            raise ValueError("say either model or joins")
        return self


class OwnPrediction(Section):
    """What a site predicts with: the folder of its model, its new rows, and where scores go if it had the label."""

    model: Path
    table: Path | None = None
    url: str | None = None
    query: str | None = None
    scores: Path | None = None


Own = TypeVar("Own", bound=Section)


def own_section(place: Place, kind: str, role: str, form: type[Own]) -> Own:
    """What the site's file says for such a job; files are named as seen from its folder."""
    path = site_file(place)
    sections = read_values(path).get(kind, {}) if path.exists() else {}
    values = sections.get(role) if isinstance(sections, dict) else None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has no section [{kind}.{role}]; say there which model of this site may be used")
    files = {key: str(path.parent / values[key]) for key in ("model", "table", "scores") if key in values}
    try:
        return form.model_validate(values | files)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([kind, role, *map(str, first["loc"])])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None


class StartRoles(JobRoles):
    """The roles of a run that starts from the models which sites have."""

    def server(self, place: Place) -> ServerJob:
        """The server role, with its model."""
        name, config = job_settings(place)
        own = own_section(place, "start", SERVER, OwnStart)
        if own.model is None:
            raise ConfigError(f"{site_file(place)}: start.{SERVER}: name the run directory as model")
        _check_apart(own.model, run_folder(place.root, name) / RUN)
        return ServerJob(place, name, config, server_start(own.model, config))

    def party(self, place: Place) -> PartyJob:
        """The role of the party with the site's name, with its model unless it joins."""
        name, config = job_settings(place)
        own = own_section(place, "start", place.site, OwnStart)
        if own.model is None:
            return PartyJob(place, name, config, Start.joining(own.joins or ""))
        _check_apart(own.model, run_folder(place.root, name))
        return PartyJob(place, name, config, party_start(own.model, place.site, config))


def _check_apart(model: Path, folder: Path) -> None:
    if model.resolve() == folder.resolve():
        raise ConfigError(f"the models of this run go to {folder}, too; give the job another name")


class PredictRoles(JobRoles):
    """The roles of a prediction with the models which sites have."""

    def server(self, place: Place) -> ServerPredictionJob:
        """The server role."""
        return ServerPredictionJob(place, *job_settings(place), own_section(place, "predict", SERVER, OwnPrediction))

    def party(self, place: Place) -> PartyPredictionJob:
        """The role of the party with the site's name, with its new rows."""
        own = own_section(place, "predict", place.site, OwnPrediction)
        new: dict[str, Any] = {"table": own.table and str(own.table), "url": own.url, "query": own.query}
        return PartyPredictionJob(place, *job_settings(place, {"party": {place.site: new}}), own)


@dataclass
class ServerPredictionJob:
    """The server role of a prediction in its job process."""

    place: Place
    name: str
    config: RunConfig
    own: OwnPrediction

    def __post_init__(self) -> None:
        state, self._stack = clean_folder(self.place, self.name) / "state", ExitStack()
        self._prediction = ServerPrediction(self.config, self.own.model, state, self._stack)
        network = self.config.network
        self.role, self.limits = self._prediction.end, (network.wait_limit, network.round_limit)

    def finish(self) -> None:
        """Write what it took among the job's results; scores are not here."""
        folder, counted = self.place.results / "cvfl", self._prediction.counted
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / PREDICTION_FILE).write_text(json.dumps(counted, indent=2) + "\n", encoding="utf-8")
        _log.info("%d rows are predicted", counted["rows"])
        self._prediction.recorder.ended()

    def close(self) -> None:
        """Close the log."""
        self._stack.close()


@dataclass
class PartyPredictionJob:
    """A party role of a prediction in its job process."""

    place: Place
    name: str
    config: RunConfig
    own: OwnPrediction

    def __post_init__(self) -> None:
        state = clean_folder(self.place, self.name) / "state"
        with ExitStack() as stack:
            self._prediction = PartyPrediction(self.config, self.place.site, self.own.model, state, stack)
            self._prediction.role.identity = identity_of(self.place)
            check_owner(self.place, self.config, self._prediction.consent, self._prediction.recorder.log)
            self.role = self._prediction.end
            if self._prediction.rows.label:
                check_form(self._scores())
            self._stack = stack.pop_all()

    def _scores(self) -> Path:
        """Where the site that had the label wants them."""
        if self.own.scores is None:
            raise ConfigError(
                f"{site_file(self.place)}: predict.{self.place.site}.scores: the scores are for this site, which had "
                "the label; say into which file they go"
            )
        return self.own.scores

    def finish(self) -> None:
        """Write the scores, if they are for this site."""
        if self._prediction.rows.label:
            write_scores(self._prediction.rows.batches(), self._scores())
        self._prediction.recorder.ended()

    def close(self) -> None:
        """Close the log and the table."""
        self._stack.close()


def write_prediction_job(config: RunConfig, name: str, folder: Path) -> tuple[str, ...]:
    """Write a job in which sites predict; its parties' names."""
    check_predicts(config)
    return write_job(config, name, folder, PREDICT_ROLES)
