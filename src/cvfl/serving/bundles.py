"""The bundles of a run, found and held against each other: those of another run or federation are refused by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cvfl.config.schema import RunConfig
from cvfl.errors import DataError
from cvfl.federation.start import Start
from cvfl.runs.bundle import MODEL, PRIVATE, Bundle, PartyBundle, ServerBundle, read_bundle
from cvfl.runs.directory import PARAMETERS
from cvfl.serving.earlier import earlier_bundles


@dataclass(frozen=True)
class Bundles:
    """Those of one run, each in the folder where its weights are: of its parties, and of the role that scores."""

    folders: Mapping[str, Path]
    parties: Mapping[str, PartyBundle]
    server: ServerBundle | None

    def everyone(self, partly: bool = False) -> tuple[ServerBundle, list[PartyBundle]]:
        """The bundles of all roles, as a prediction in one process needs them.

        With `partly` those of some parties will do, where the model was prepared for their absence.
        """
        found = self.parties.values() or [self.server]
        names = next(bundle.names for bundle in found if bundle)
        missing = [name for name in names if name not in self.parties]
        if missing and not (partly and self.parties and self.server and self.server.stand_ins):
            raise DataError(f"{self._where}: the bundle of {missing[0]} is missing; each party has its own, bring it")
        if self.server is None:
            raise DataError(f"{self._where}: the bundle of the server model is missing; the role that scores has it")
        # Where labels are shared, the server that scores knows classes by their numbers, and their party the names.
        told = (bundle.table.classes for bundle in self.parties.values() if bundle.table)
        classes = self.server.classes or next(filter(None, told), ())
        server = self.server.model_copy(update={"classes": classes})
        return server, [self.parties[name] for name in names if name in self.parties]

    @property
    def _where(self) -> str:
        return ", ".join(dict.fromkeys(str(folder) for folder in self.folders.values()))


def read_bundles(
    places: Sequence[Path], roles: Collection[str] | None = None, private: bool = True, shown: bool = False
) -> Bundles:
    """The bundles in these run directories or folders of models, which must be of one run; of some `roles`, or all.

    A holder's `private` model takes the place of the server's, where there is one and rows are to be scored. One that
    should be there and is not is missing, unless bundles are only `shown`: the other one gives other scores.
    """
    found: dict[str, tuple[Path, Bundle]] = {}
    holders: dict[str, tuple[Path, Bundle]] = {}
    for place in places:
        folder, bundles = _in_folder(place)
        for bundle in bundles:
            if roles is None or bundle.role in roles:
                if bundle.role in found:
                    _check_once(found[bundle.role], (folder, bundle))
                found[bundle.role] = folder, bundle
        own = folder / PRIVATE / f"server{MODEL}"
        if private and own.exists() and (roles is None or "server" in roles):
            holders["server"] = (own.parent, read_bundle(own))
    found |= holders
    if not found:
        named = " or ".join(roles or ())
        raise DataError(f"{', '.join(map(str, places))}: there is no model of {named}; name its folder")
    first, *rest = [bundle for _, bundle in found.values()]
    for other in rest:
        _check_together(first, other, found[other.role][0])
    parties = {role: bundle for role, (_, bundle) in found.items() if isinstance(bundle, PartyBundle)}
    server = next((bundle for _, bundle in found.values() if isinstance(bundle, ServerBundle)), None)
    if private and not shown and server is not None and server.scored_by and not server.private:
        raise DataError(
            f"{found['server'][0]}: the private model of {server.scored_by} is missing, which alone scores; bring the "
            f"folder {PRIVATE} that {server.scored_by} has beside its model, or if the run was stopped go on with it"
        )
    return Bundles({role: folder for role, (folder, _) in found.items()}, parties, server)


def start_from(run: Path) -> Start:
    """The models of a run, for another one to start from."""
    bundles = read_bundles([run], private=False)
    return Start.of(run, bundles.everyone(), bundles.folders)


def server_start(run: Path, config: RunConfig) -> Start:
    """The same where roles are apart, for the server: its model, or which run it was if labels stay with a party."""
    if config.privacy.relayed:
        return Start(str(run), *recorded_run(run), None, {}, {})
    bundles = read_bundles([run], {"server"}, private=False)
    assert bundles.server is not None
    return Start(str(run), bundles.server.run, bundles.server.names, bundles.server, {}, bundles.folders)


def party_start(folder: Path, name: str, config: RunConfig) -> Start:
    """For a party: its own model, and that of the server if labels stay with it."""
    privacy = config.privacy
    holds = privacy.relayed and privacy.labels == name
    bundles = read_bundles([folder], {name, "server"} if holds else {name}, private=False)
    own = bundles.parties.get(name)
    if own is None:
        raise DataError(f"{folder}: there is no model of {name}; name its folder")
    if holds and bundles.server is None:
        raise DataError(
            f"{folder}: the server model is missing, which the party with the labels goes on with; bring the files "
            "server.* of the role that scored"
        )
    return Start(str(folder), own.run, own.names, bundles.server, {name: own}, bundles.folders)


def recorded_run(path: Path) -> tuple[str, tuple[str, ...]]:
    """The run that a server which only passes on has recorded, and its parties."""
    try:
        values = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        run, names = values["run"], tuple(values["bytes"]["by_party"])
    except (OSError, ValueError, TypeError, KeyError):
        run = None
    if not isinstance(run, str):
        raise DataError(f"{path}: there is no record of a run that says its name; name its run directory")
    return run, names


def _in_folder(place: Path) -> tuple[Path, list[Bundle]]:
    for folder in (place, place / PARAMETERS):
        if files := sorted(folder.glob(f"*{MODEL}")):
            return folder, [read_bundle(path) for path in files]
    if (place / "summary.json").exists():  # of a version before there were bundles
        return place / PARAMETERS, earlier_bundles(place)
    raise DataError(f"{place}: no bundle is there; name a run directory, or the folder of a role's model")


def _check_once(first: tuple[Path, Bundle], second: tuple[Path, Bundle]) -> None:
    """Refuse two models of one role, unless one is a copy of the other."""
    (here, one), (there, other) = first, second
    if one != other:
        raise DataError(
            f"{there / f'{other.role}{MODEL}'}: of run {other.run}, and {here / f'{one.role}{MODEL}'} is of run "
            f"{one.run}: two models of {one.role}; take bundles of one run"
        )


def _check_together(first: Bundle, other: Bundle, folder: Path) -> None:
    path = folder / f"{other.role}{MODEL}"
    if (first.names, first.terms) != (other.names, other.terms):
        theirs, ours = ", ".join(other.names), ", ".join(first.names)
        what = f"of the federation {theirs}, not of {ours}" if theirs != ours else "of other terms"
        raise DataError(f"{path}: {what}; that of {first.role} is of run {first.run}, take bundles of one run")
    if first.run != other.run:
        raise DataError(
            f"{path}: of run {other.run}, and that of {first.role} is of run {first.run}; take bundles of one run"
        )
