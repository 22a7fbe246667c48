"""The role that scores: it has the labels and the server model, and at the end says how good the run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cvfl.analysis.analyse import analyse
from cvfl.privacy.relay import Holder
from cvfl.protocol import Loss, PartyMachine, Server, ServerMachine
from cvfl.runs.analysis import Analysis


def scorer(machine: ServerMachine | PartyMachine) -> Server | None:
    """The server that scores, if it is here: in its own place, or beside the party that holds the labels."""
    if isinstance(machine, Holder):
        return machine.server
    return machine if isinstance(machine, Server) else None


def analysis_of(machine: ServerMachine | PartyMachine, names: Sequence[str]) -> Analysis | None:
    """How good the models of a run that is over are, if that can be said here."""
    server = scorer(machine)
    return analyse(server, names) if server is not None and server.done else None


def units_of(machine: ServerMachine | PartyMachine) -> dict[str, float] | None:
    """The units of a label that is a quantity, where they are known."""
    server = scorer(machine)
    if server is None or server.plan.loss is not Loss.SQUARED:
        return None
    return asdict(server.labels.units)
