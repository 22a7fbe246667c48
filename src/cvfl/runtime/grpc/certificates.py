"""Certificates for a federation: one authority, one certificate a role; the name in it is the role's name.

DIR/ca.crt                   everyone gets it
DIR/ca.key                   stays with whoever makes certificates
DIR/NAME.crt, DIR/NAME.key   for role NAME alone
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cvfl.errors import ConfigError, writing
from cvfl.privacy.identity import SERVER_NAME

RESERVED = (SERVER_NAME, "ca")
PEM = serialization.Encoding.PEM
Names = Mapping[str, list[x509.GeneralName]]
"""What each role is known as: a party by its name, the server by its hosts."""
Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_certificates(
    folder: Path, hosts: Sequence[str], parties: Sequence[str], days: int = 365, force: bool = False
) -> list[Path]:
    """Write a certificate for the server at these hosts and for each party; an authority that is there is used again.

    What is there already is replaced with `force` alone, which is how certificates are renewed.
    """
    names = named(hosts, parties)
    with writing(folder):
        _check_free(folder, list(names), force)
        return _written(folder, names, days)


def named(hosts: Sequence[str], parties: Sequence[str]) -> Names:
    """The roles that certificates are for, the server first if it has hosts; refuses names that none can have."""
    for name in parties:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name) or name in RESERVED:
            raise ConfigError(f"{name!r} is no name for a party: letters, digits, - and _, and neither server nor ca")
    if len(set(parties)) != len(parties):
        raise ConfigError("every role needs a name of its own")
    server = {SERVER_NAME: [_general(host) for host in hosts]} if hosts else {}
    return server | {name: [_general(name)] for name in parties}


def _check_free(folder: Path, names: Sequence[str], force: bool) -> None:
    """Refuse to replace a certificate, or an authority that others know, without being told to."""
    for name in names:
        if not force and ((folder / f"{name}.crt").exists() or (folder / f"{name}.key").exists()):
            raise ConfigError(f"{folder / name}.crt or its key is there already; --force replaces both")
    check_authority(folder, force)


def check_authority(folder: Path, force: bool) -> None:
    """Refuse to make a new authority where half of one is."""
    there = [(folder / f"ca.{end}").exists() for end in ("crt", "key")]
    if any(there) and not all(there) and not force:
        missing = "ca.crt" if there[1] else "ca.key"
        raise ConfigError(
            f"{folder} has an authority without its {missing}; bring that back. With --force a new authority is made, "
            "and nobody trusts certificates of the old one any more"
        )


def _written(folder: Path, names: Names, days: int) -> list[Path]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = authority_of(folder, days)
    written = []
    for name, known_as in names.items():
        own = ec.generate_private_key(ec.SECP256R1())
        written.append(write_certificate(folder, name, known_as, own.public_key(), days, authority))
        write_key(folder / f"{name}.key", own)
        written.append(folder / f"{name}.key")
    return written


def write_certificate(
    folder: Path,
    name: str,
    known_as: Sequence[x509.GeneralName],
    key: ec.EllipticCurvePublicKey,
    days: int,
    authority: Authority,
) -> Path:
    """Sign a role's public key: the server may be a server, a party may connect, and neither may sign others."""
    certificate, own = authority
    usage = ExtendedKeyUsageOID.SERVER_AUTH if name == SERVER_NAME else ExtendedKeyUsageOID.CLIENT_AUTH
    signed = (
        _builder(name, days)
        .issuer_name(certificate.subject)
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .sign(own, hashes.SHA256())
    )
    return write_file(folder / f"{name}.crt", signed.public_bytes(PEM))


def authority_of(folder: Path, days: int) -> Authority:
    """The authority in a folder; made if there is none."""
    if (folder / "ca.crt").exists() and (folder / "ca.key").exists():
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            found = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{folder}/ca.crt or ca.key cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{folder}/ca.key is of another kind than this command makes")
        if found.public_key() != key.public_key():
            raise ConfigError(f"{folder}/ca.crt and ca.key do not belong together; bring back those that do")
        return found, key
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("cvfl federation", 10 * days)
    usage = {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cvfl federation")]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(**usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_file(folder / "ca.crt", certificate.public_bytes(PEM))
    write_key(folder / "ca.key", key)
    return certificate, key


def _key_usage(key_cert_sign: bool, crl_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(name: str, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9_.*-]{1,253}", host):
            raise ConfigError(f"{host!r} is no name; write letters, digits, - and _, or an address") from None
        return x509.DNSName(host)


def write_file(path: Path, content: bytes) -> Path:
    """Write a file that others may read."""
    path.write_bytes(content)
    return path


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> ec.EllipticCurvePrivateKey:
    """Write a key that nobody else can read, not even for a moment."""
    content = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return key


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A key that this command has made."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is of another kind than this command makes")
    return key
