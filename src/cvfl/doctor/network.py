"""What a role needs to talk to others: its certificate, an address, and a server that speaks as it does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from cvfl.config.schema import RunConfig
from cvfl.doctor.finding import Finding, caught, fine, look, wrong
from cvfl.privacy.identity import asking
from cvfl.runtime.address import host_and_port
from cvfl.runtime.grpc.channel import SERVER_NAME, Identity
from cvfl.runtime.grpc.probe import check_listens, check_reaches, server_certificate, server_protocol
from cvfl.wire.control import PROTOCOL

SOON = timedelta(days=30)
_WHAT = "certificate"


def begins(folder: Path | None, name: str) -> datetime | None:
    """When the newest certificate here became valid."""
    found = [_read(folder / f"{one}.crt") for one in ("ca", name)] if folder else []
    return max((one.not_valid_before_utc for one in found if one), default=None)


def _read(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None


def certificate(folder: Path | None, name: str) -> tuple[list[Finding], Identity | None]:
    """The role's certificate and key, and the authority's."""
    findings: list[Finding] = []
    if folder is None:
        remedy = f"name their folder; {asking(Path('certs', f'{name}.crt'))}"
        return [wrong(_WHAT, "network.certificates is not set", remedy)], None
    with caught(_WHAT, findings):
        identity = Identity.load(folder, name)
        findings += [*_of(folder, name, identity), *_key(folder / f"{name}.key")]
        return findings, identity
    return findings, None


def _of(folder: Path, name: str, identity: Identity) -> list[Finding]:
    own, ca = (x509.load_pem_x509_certificate(content) for content in (identity.certificate, identity.ca))
    names = [str(one.value) for one in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        return [wrong(_WHAT, f"{folder / name}.crt is for {names}, not {name!r}", "have one signed for that name")]
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return [wrong(_WHAT, f"{folder / name}.crt is not of the authority of {folder}/ca.crt", "get both again")]
    ends = min(own.not_valid_after_utc, ca.not_valid_after_utc)
    said = f"for {name}, until {ends:%Y-%m-%d}"
    if name == SERVER_NAME:
        said += f", at {', '.join(_hosts(own)) or 'no host'}"
    if ends - datetime.now(UTC) < SOON:
        return [look(_WHAT, said, asking(folder / f"{name}.crt", renew=True))]
    return [fine(_WHAT, said)]


def _hosts(own: x509.Certificate) -> list[str]:
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(one.value) for one in names]


def _key(path: Path) -> list[Finding]:
    if path.stat().st_mode & 0o077:
        return [wrong("key", f"others than its user can read {path}", f"chmod 600 {path}")]
    return [fine("key", "readable by its user alone")]


def server(config: RunConfig) -> list[Finding]:
    """Where the server listens."""
    findings: list[Finding] = []
    with caught("address", findings):
        check_listens(config.network.address)
        findings.append(fine("address", f"{config.network.address} is free to listen on"))
    return findings


def party(config: RunConfig, name: str, identity: Identity | None, insecure: bool) -> list[Finding]:
    """The way to the server, as far as it leads."""
    address, folder, findings = config.network.address, config.network.certificates, list[Finding]()
    with caught("server", findings):
        check_reaches(address)
        findings.append(fine("server", f"{address} answers"))
        if not insecure:
            if identity is None or folder is None:
                return findings  # said already
            ends = server_certificate(address, folder, name)
            findings.append(fine("TLS", f"it is the server at {host_and_port(address)[0]}, until {ends:%Y-%m-%d}"))
        findings.append(_protocol(address, name, identity))
    return findings


def _protocol(address: str, name: str, identity: Identity | None) -> Finding:
    theirs = server_protocol(address, identity, name)
    if theirs != PROTOCOL:
        remedy = "install the same cvfl everywhere"
        return wrong("protocol", f"the server speaks version {theirs}, this is version {PROTOCOL}", remedy)
    return fine("protocol", f"version {PROTOCOL}, as the server; {name} is let in")
