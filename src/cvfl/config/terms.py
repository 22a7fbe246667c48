"""Terms: what all roles have alike, in one signed file that each role's own file names.

    terms.toml    what was agreed on, a section for every party, empty but for a fingerprint, and [signature]
    bank.toml     terms = "terms.toml", how the bank reaches the server, and the bank's section

Values are signed, not comments. A role takes terms whose signature is of a role of its own authority alone; that the
others have the same ones is then checked key by key when roles meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, RemoteProtocolError, suggest
from cvfl.privacy.identity import Identity
from cvfl.types import Section

_NEVER_TERMS = {"device", "analysis", "consent", "network", "limits", "terms", "terms_sha256"}
NOT_TERMS = _NEVER_TERMS | {"party", "party_model", "compressor"}
NOT_TERMS_OF_DATA = {"path", "id", "prepare"}
"""What a role decides for itself."""
_OF_A_PARTY = {"fingerprint"}
SIGNATURE = "signature"
_SERVER = "server"


class Signature(Section):
    """Who signed terms, with which certificate, and the signature in hexadecimal."""

    by: str
    sha256: str
    certificate: str
    signature: str


def digest(terms: Mapping[str, Any]) -> str:
    """SHA-256 of the values of terms, without their signature: people can compare it over the telephone."""
    return hashlib.sha256(_content(terms)).hexdigest()


def signed(terms: Mapping[str, Any], identity: Identity, name: str) -> Signature:
    """The signature of the role `name` under these terms."""
    check_signer(terms, name)
    signature = identity.sign(_content(terms)).hex()
    return Signature(by=name, sha256=digest(terms), certificate=identity.certificate.decode(), signature=signature)


def check_signer(terms: Mapping[str, Any], name: str) -> None:
    """Only roles of a federation sign its terms."""
    roles = [_SERVER, *terms.get("party", {})]
    if name not in roles:
        raise ConfigError(f"{name!r} is no role of these terms{suggest(name, roles)}")


def signature_of(path: Path, terms: Mapping[str, Any]) -> Signature | None:
    """The signature in a file of terms, if there is one; refuses values that were changed after it."""
    if SIGNATURE not in terms:
        return None
    try:
        found = Signature.model_validate(terms[SIGNATURE])
    except ValueError:
        raise ConfigError(f"{path}: [signature] is damaged; {_again(path)}") from None
    if found.sha256 != digest(terms):
        raise ConfigError(f"{path}: was changed after {found.by} signed it; {_again(path, found.by)}")
    return found


def check_signature(path: Path, terms: Mapping[str, Any], config: RunConfig, folder: Path | None) -> bool:
    """Refuse terms that no role of the authority signed whose certificate is in the folder; without it nobody can tell.

    Whether it could be told.
    """
    if folder is None or not (folder / "ca.crt").exists():
        return False
    found = signature_of(path, terms)
    if found is None:
        raise ConfigError(f"{path}: is not signed; {_again(path)}")
    check_signer(terms, found.by)
    authority = Identity((folder / "ca.crt").read_bytes(), b"", b"")
    pinned = config.party[found.by].fingerprint if found.by in config.party else None
    try:
        signature = bytes.fromhex(found.signature)
        authority.verify(found.by, found.certificate.encode(), signature, _content(terms), pinned)
    except (RemoteProtocolError, ValueError):
        raise ConfigError(
            f"{path}: its signature is not one of {found.by} by the authority of {folder / 'ca.crt'}, or out of date; "
            f"{_again(path, found.by)}"
        ) from None
    return True


def check_terms(path: Path, terms: Mapping[str, Any]) -> None:
    """Refuse in a file of terms what a role decides for itself."""
    own = [key for key in terms if key in _NEVER_TERMS]
    own += [f"data.{key}" for key in ("path", "id") if key in terms.get("data", {})]
    own += [f"party.{name}.{key}" for name, key in _said(terms) if key not in _OF_A_PARTY]
    if own:
        raise ConfigError(f"{path}: {own[0]} is no term; the role's own file says it")


def check_own(path: Path, own: Mapping[str, Any], terms: Mapping[str, Any], source: Path) -> None:
    """Refuse in a role's own file what is agreed on, or a section of a party that nobody agreed on."""
    agreed = [key for key in own if key not in {*NOT_TERMS, "data"}]
    agreed += [f"data.{key}" for key in own.get("data", {}) if key not in NOT_TERMS_OF_DATA]
    if agreed:
        raise ConfigError(f"{path}: {agreed[0]} is a term: {source} alone says it, for all roles")
    parties = terms.get("party", {})
    if strangers := [name for name in own.get("party", {}) if name not in parties]:
        raise ConfigError(f"{path}: party.{strangers[0]} is not in {source}{suggest(strangers[0], parties)}")
    if own.get("terms_sha256", found := digest(terms)) != found:
        raise ConfigError(f"{path}: terms_sha256 names other terms than {source}, which has {found}")


def _said(terms: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every key of every party's section."""
    return ((name, key) for name, section in terms.get("party", {}).items() for key in section)


def _content(terms: Mapping[str, Any]) -> bytes:
    """What is signed: the values in one order, whatever their comments and layout."""
    values = {key: value for key, value in terms.items() if key != SIGNATURE}
    return b"cvfl terms\n" + json.dumps(values, sort_keys=True, default=str).encode()


def _again(path: Path, who: str = "ROLE") -> str:
    return f"get it again, or have it signed: cvfl terms {path} --as {who}"
