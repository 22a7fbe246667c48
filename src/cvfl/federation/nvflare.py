"""A run as a job of NVIDIA FLARE: the folder that is submitted, and the roles inside its processes.

    JOB/meta.json                          the sites that must take part: those of the parties' names
    JOB/app/config/config_fed_*.json       cvfl's controller and executor; no code travels
    JOB/app/config/cvfl.json               the run's terms and the parties' names

    SITE/local/cvfl.toml                   what is a party's own: its table, its model, its compressor
    SITE/local/approved.toml               what its owner has approved, if that is asked for
    SITE/cvfl/NAME/                        its state while the run goes on, its model afterwards; at the server its run

From a job a site takes the terms and the names, nothing else: tables, columns, code and compressors are its own affair.
Its file is laid over the terms. If it changes one, the server refuses the party.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit

from cvfl.config.files import parse_config, read_values
from cvfl.config.schema import RunConfig, check_tables
from cvfl.config.terms import NOT_TERMS, NOT_TERMS_OF_DATA
from cvfl.data.sets.catalogue import READERS
from cvfl.errors import ConfigError, writing
from cvfl.federation.consent import FILE, Consent, Use, check_consent
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.rows.load import federation_names, row_key
from cvfl.federation.start import Start
from cvfl.privacy.identity import Identity
from cvfl.runs.actions import ActionLog
from cvfl.runs.progress import Progress, progress_values
from cvfl.runtime.nvflare.mailbox import PartyDuty
from cvfl.runtime.nvflare.place import Place, ServerDuty

JOB_FILE, SITE_FILE, ERROR_FILE, PROGRESS_FILE = "cvfl.json", "cvfl.toml", "error.txt", "progress.jsonl"
CONTROLLER = "cvfl.runtime.nvflare.controller.ServerController"
EXECUTOR = "cvfl.runtime.nvflare.executor.PartyExecutor"
ROLES = "cvfl.federation.nvflare.JobRoles"
START_ROLES, PREDICT_ROLES = "cvfl.serving.nvflare.StartRoles", "cvfl.serving.nvflare.PredictRoles"
"""Of jobs that use models which sites have: to start from them, or to predict with them."""
CLASSES = (CONTROLLER, EXECUTOR, ROLES, START_ROLES, PREDICT_ROLES)
"""What a site must allow FLARE to build."""
SITE_VARIABLE = "CVFL_SITE_FILE"
"""Names the site's file where there is another one than in its folder; a job cannot set it."""
OF_MODELS = ("start", "predict")
"""Sections of a site's file that say which models such jobs use."""
RUN = "run"
"""The folder in which the server keeps its run directory, for such jobs."""
_PATIENCE = {"checkpoint_every", "wait_limit", "round_limit"}
_log = logging.getLogger(__name__)


def shared_values(values: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration what all roles must have alike, the names of the parties, and how patient roles are."""
    terms = {key: value for key, value in values.items() if key not in NOT_TERMS}
    terms["data"] = {key: value for key, value in _section(values, "data").items() if key not in NOT_TERMS_OF_DATA}
    network = {key: value for key, value in _section(values, "network").items() if key in _PATIENCE}
    return terms | {"party": {name: {} for name in _section(values, "party")}, "network": network}


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    return section if isinstance(section, dict) else {}


def local_values(config: RunConfig) -> dict[str, Any]:
    """Everything, for a simulation on this machine; files are named by their full paths."""
    values = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    if config.data.path:
        values["data"]["path"] = str(config.data.path.resolve())
    for name, section in config.party.items():
        files = {key: getattr(section, key) for key in ("table", "row_secret")}
        own = {key: str(path.resolve()) for key, path in files.items() if path}
        values["party"][name] |= own | ({"url": section.url} if section.url else {})
    return values


def write_job(config: RunConfig, name: str, folder: Path, roles: str = ROLES) -> tuple[str, ...]:
    """Write the job; its parties' names. `roles` is the component that makes the roles."""
    run_folder(folder, name)  # refuses a name that sites would refuse
    names = federation_names(config)
    values = config.model_dump(mode="json", exclude_unset=True)
    values["network"] = config.network.model_dump(include=_PATIENCE)
    write_job_folder(folder, name, names, roles, {"name": name, "config": shared_values(values)})
    return names


def write_site_file(config: RunConfig, path: Path, start: Start | None = None) -> None:
    """Write what all sites of a simulation on this machine have: everything."""
    values = local_values(config)
    if start:
        roles = ("server", *federation_names(config))
        known, new = {"model": str(Path(start.place).resolve())}, {"joins": start.run}
        values["start"] = {role: known if role in ("server", *start.names) else new for role in roles}
    if config.data.name is None:
        check_tables(config)
        secret = path.with_name("row_secret")  # there is nobody to hide rows from: the same order as in one process
        secret.write_bytes(row_key(config))
        values["party"][next(iter(config.party))]["row_secret"] = str(secret)
    path.write_text(tomlkit.dumps(values), encoding="utf-8")


def write_job_folder(folder: Path, name: str, names: tuple[str, ...], roles: str, values: dict[str, Any]) -> None:
    """Write a job of cvfl's controller and executor for these sites; `roles` is the component that makes the roles."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; choose another folder or remove it")
    component = [{"id": "roles", "path": roles, "args": {}}]
    controller = {"id": "server", "path": CONTROLLER, "args": {"roles": "roles"}}
    executor = {"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"roles": "roles"}}}
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": len(names),
        "mandatory_clients": list(names),
        "deploy_map": {"app": ["server", *names]},
    }
    files = {
        "meta.json": meta,
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [controller],
            "components": component,
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [executor],
            "components": component,
        },
        f"app/config/{JOB_FILE}": values,
    }
    with writing(folder):
        (folder / "app" / "config").mkdir(parents=True)
        for path, content in files.items():
            (folder / path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class JobRoles:
    """The component of a job that makes its roles, in the processes of the server and of the sites."""

    def server(self, place: Place) -> ServerDuty:
        """The server role."""
        return ServerJob(place, *job_settings(place))

    def party(self, place: Place) -> PartyDuty:
        """The role of the party with the site's name."""
        return PartyJob(place, *job_settings(place))

    def failed(self, place: Place, reason: str) -> None:
        """Keep the reason in the folder of the run."""
        folder = run_folder(place.root, _job(place)["name"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR_FILE).write_text(reason + "\n", encoding="utf-8")


def run_folder(root: Path, name: str) -> Path:
    """Where a site keeps a run: the same for every submission of the job, so that it goes on where it stopped."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigError(f"the job's name {name!r}: letters, digits, -, _ and . can be used")
    return root / "cvfl" / name


@dataclass
class ServerJob:
    """The server role in its job process."""

    place: Place
    name: str
    config: RunConfig
    start: Start | None = None

    def __post_init__(self) -> None:
        self.folder = clean_folder(self.place, self.name)
        self._run = ServerRun(self.config, self.name, self.folder / "state", self._show, start=self.start)
        network = self.config.network
        self.role, self.limits = self._run.end, (network.wait_limit, network.round_limit)

    def finish(self) -> None:
        """Write the run directory among the job's results, which the one who submitted it can download; and keep it."""
        self._run.finish(self.place.results / "cvfl")
        shutil.rmtree(self.folder / RUN, ignore_errors=True)
        with writing(self.folder):
            shutil.copytree(self.place.results / "cvfl", self.folder / RUN)

    def close(self) -> None:
        """Close the log."""
        self._run.close()

    def _show(self, progress: Progress) -> None:
        with (self.folder / PROGRESS_FILE).open("a", encoding="utf-8") as file:
            print(json.dumps(progress_values(progress)), file=file)
        report = progress.report
        if report.evaluation:
            held_out = report.evaluation.test or report.evaluation.validation
            figures = "".join(f", {key} {value:.4f}" for key, value in held_out.items() if key == progress.metric)
            _log.info("round %d of %d: loss %.4f%s", report.t0 + 1, progress.rounds, report.loss, figures)


@dataclass
class PartyJob:
    """A party role in its job process."""

    place: Place
    name: str
    config: RunConfig
    start: Start | None = None

    def __post_init__(self) -> None:
        self.folder = clean_folder(self.place, self.name)
        agreed = partial(check_owner, self.place, self.config)
        with ExitStack() as stack:
            self._run = PartyRun(
                self.config,
                self.place.site,
                self.folder / "state",
                stack,
                identity=identity_of(self.place),
                start=self.start,
                agreed=agreed,
            )
            self._stack = stack.pop_all()
        self.role = self._run.end

    def finish(self) -> None:
        """Write the party's model and preparation at its site."""
        self._run.finish(self.folder)

    def close(self) -> None:
        """Close the log and the table."""
        self._stack.close()


def check_owner(place: Place, config: RunConfig, consent: Consent, log: ActionLog) -> None:
    """Refuse a job that the owner of the site has not approved, where that must be; approvals are beside its file."""
    folder = site_file(place).parent
    use = "" if consent.use is Use.TRAINING else f" --{consent.use}"
    how = (
        f"`cvfl party CONFIG --name {place.site}{use} --approve --insecure`, where CONFIG has the same terms and is in "
        f"{folder}; it can be stopped when it waits for a server"
    )
    if check_consent(folder / FILE, place.site, consent, config.consent.required, how):
        log.append("approved", consent=consent.sha256)


def identity_of(place: Place) -> Identity | None:
    """The certificate that FLARE has given the site; a simulation has none."""
    files = [place.root / "startup" / name for name in ("rootCA.pem", "client.crt", "client.key")]
    return Identity.read(*files) if all(path.exists() for path in files) else None


def clean_folder(place: Place, run: str) -> Path:
    """Where the site keeps a run, without what an earlier submission said."""
    folder = run_folder(place.root, run)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ERROR_FILE, PROGRESS_FILE):
        (folder / name).unlink(missing_ok=True)
    return folder


def _job(place: Place) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((place.config / JOB_FILE).read_text(encoding="utf-8"))
    return values


def site_file(place: Place) -> Path:
    """The site's own file, if it is there."""
    return Path(os.environ.get(SITE_VARIABLE) or place.local / SITE_FILE)


def job_settings(place: Place, more: dict[str, Any] | None = None) -> tuple[str, RunConfig]:
    """The name of the run and what the role has to do: the terms of the job, and over them the site's own file.

    `more` is laid over both; it is the site's own, too.
    """
    job, own = _job(place), site_file(place)
    values, terms = _own_values(own) if own.exists() else {}, shared_values(job["config"])
    for check in (_check_code, _check_data):
        check(terms, values, own)
    laid = _laid_over(_laid_over(terms, values), more or {})
    return job["name"], parse_config(laid, str(own) if own.exists() else JOB_FILE)


def _check_code(terms: dict[str, Any], own: dict[str, Any], path: Path) -> None:
    """A job may name a model of cvfl, and code only if the site's file does so, too."""
    name = _section(terms, "server_model").get("name", "")
    if ":" in str(name) and _section(own, "server_model").get("name") != name:
        raise ConfigError(f"server_model.name: a job cannot name code; to run {name!r}, say so in {path}")


def _check_data(terms: dict[str, Any], own: dict[str, Any], path: Path) -> None:
    """A job may name a data set that ships with cvfl, and files of a site only if its own file does so, too."""
    name = terms["data"].get("name")
    if name is not None and "path" in READERS[str(name)].takes and _section(own, "data").get("name") != name:
        raise ConfigError(f"data.name: a job cannot open files of a site; to use {name!r}, say so in {path}")


def _own_values(path: Path) -> dict[str, Any]:
    """The site's file; it names files as seen from its own folder."""
    values = {key: value for key, value in read_values(path).items() if key not in OF_MODELS}
    parties = [(section, key) for section in _section(values, "party").values() for key in ("table", "row_secret")]
    sections = [(values.get("data"), "path"), *parties]
    for section, key in sections:
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str(path.parent / section[key])
    return values


def _laid_over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _laid_over(below.get(key), value) for key, value in above.items()}
