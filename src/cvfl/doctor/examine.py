"""All that is looked at for one role, in the order in which a run would come upon it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cvfl.config.files import load_config
from cvfl.config.schema import RunConfig
from cvfl.doctor import machine
from cvfl.doctor.finding import Finding, Health, caught, fine


def examine(path: Path, changes: Sequence[str], role: str, state: Path, insecure: bool = False) -> list[Finding]:
    """Everything that can be known of a role before a run; what a run would fail by is `wrong`."""
    findings = machine.versions()
    with caught("configuration", findings):
        config = load_config(path, changes)
        findings.append(fine("configuration", _terms(config, path)))
        return findings + _role(config, role, state, insecure, findings[0].health is not Health.WRONG)
    return findings


def _terms(config: RunConfig, path: Path) -> str:
    return f"{path}{f', terms {config.terms_sha256[:16]}' if config.terms_sha256 else ''}"


def _role(config: RunConfig, role: str, state: Path, insecure: bool, grpc: bool) -> list[Finding]:
    from cvfl.doctor.table import table  # noqa: PLC0415  scikit-learn is slow to load

    rows, held, known = table(config, role) if role != "server" else ([], 0.0, 0.0)
    others = _network(config, role, insecure) if grpc else []
    room = [machine.disk(state, known), machine.memory(config, held), machine.cores()]
    return [*others, *rows, *machine.state(state), *room]


def _network(config: RunConfig, role: str, insecure: bool) -> list[Finding]:
    from cvfl.doctor import network  # noqa: PLC0415  gRPC is an extra

    folder = None if insecure else config.network.certificates
    own, identity = ([], None) if insecure else network.certificate(folder, role)
    way = network.server(config) if role == "server" else network.party(config, role, identity, insecure)
    return [machine.clock(network.begins(folder, role)), *own, *way]
