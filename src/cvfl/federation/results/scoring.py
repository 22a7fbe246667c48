"""The role that scores: it has the labels and the server model, and at the end says how good the run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from cvfl.analysis.analyse import analyse
from cvfl.analysis.columns import what_columns_bring, what_own_columns_bring
from cvfl.config.schema import RunConfig
from cvfl.data.tables.prepare import Preparation
from cvfl.privacy.relay import Holder
from cvfl.privacy.sealed_party import party_of
from cvfl.protocol import Loss, Party, PartyMachine, Server, ServerMachine
from cvfl.runs.analysis import Analysis, Columns
from cvfl.runtime import one_thread_a_role


def scorer(machine: ServerMachine | PartyMachine) -> Server | None:
    """The server that scores, if it is here: in its own place, or beside the party that holds the labels."""
    if isinstance(machine, Holder):
        return machine.server
    return machine if isinstance(machine, Server) else None


def analysis_of(
    machine: ServerMachine | PartyMachine,
    names: Sequence[str],
    classes: Sequence[str] = (),
    parties: Sequence[Party] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Analysis | None:
    """How good the models of a run that is over are, if that can be said here, with what its classes are called.

    Of `parties`, which are here, too, it says what their `columns` bring, by their names.
    """
    server = scorer(machine)
    if server is not None and server.plan.randomised is not None:
        return None  # by labels that were randomised there is nothing to say of single rows
    found = analyse(server, names) if server is not None and server.done else None
    if server is None or found is None:
        return None
    found = found.model_copy(update={"names": tuple(classes)})
    if not columns:
        return found
    with one_thread_a_role():
        brought = (what_columns_bring(server, party, columns.get(party.holding.name, ())) for party in parties)
        return found.model_copy(update={"columns": tuple(one for one in brought if one)})


def own_columns(machine: PartyMachine | None, names: Sequence[str]) -> Columns | None:
    """What a party's columns bring, as it can tell by itself: of training rows, where it has their labels."""
    if machine is None or not names:
        return None
    with one_thread_a_role():
        return what_own_columns_bring(party_of(machine), names)


def columns_of(config: RunConfig, preparations: Mapping[str, Preparation]) -> dict[str, tuple[str, ...]]:
    """For every party the columns that its prepared ones come from, if the configuration asks what they bring."""
    return {name: one.columns for name, one in preparations.items()} if config.analysis.columns else {}


def units_of(machine: ServerMachine | PartyMachine) -> dict[str, float] | None:
    """The units of a label that is a quantity, where they are known."""
    server = scorer(machine)
    if server is None or server.plan.loss is not Loss.SQUARED:
        return None
    return asdict(server.labels.units)
