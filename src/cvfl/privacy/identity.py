"""Who a role is: its certificate and key, and the authority that all trust. What it signs, others can check.

A certificate is for one name. A signature counts if its certificate is of the authority, valid today, and for the name
that is expected; and, where a fingerprint was agreed on, is that very certificate.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from cvfl.errors import ConfigError, RemoteProtocolError

SERVER_NAME = "server"
"""The name in the server's certificate; no party has it."""


@dataclass(frozen=True)
class Identity:
    """A role's certificate and key, and the certificate of the authority, as PEM."""

    ca: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, ca: Path, certificate: Path, key: Path) -> Self:
        """From their files; refuses here what the other end would refuse without a word."""
        try:
            found = cls(*(path.read_bytes() for path in (ca, certificate, key)))
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}; {asking(certificate)}") from None
        found._check(certificate)
        return found

    def _check(self, path: Path) -> None:
        try:
            own, _ = (x509.load_pem_x509_certificate(content) for content in (self.certificate, self.ca))
            private = load_pem_private_key(self.key, None)
        except (ValueError, TypeError):
            raise ConfigError(f"{path}, its key or ca.crt is not what it should be; {asking(path)}") from None
        if own.public_key() != private.public_key():
            raise ConfigError(f"{path} and its key do not belong together; copy both again")
        if not _valid(own):
            raise ConfigError(
                f"{path} is valid from {own.not_valid_before_utc:%Y-%m-%d} to {own.not_valid_after_utc:%Y-%m-%d}, "
                f"not today; {asking(path, renew=True)}"
            )

    def sign(self, content: bytes) -> bytes:
        """A signature that anyone with the certificate can check."""
        key = load_pem_private_key(self.key, None)
        match key:
            case ec.EllipticCurvePrivateKey():
                return key.sign(content, ec.ECDSA(SHA256()))
            case rsa.RSAPrivateKey():
                return key.sign(content, padding.PKCS1v15(), SHA256())
        raise ConfigError(
            f"a certificate's key of the kind {type(key).__name__} cannot sign; take an elliptic or RSA key"
        )

    def verify(self, name: str, certificate: bytes, signature: bytes, content: bytes, fingerprint: str | None) -> None:
        """Refuse a signature that is not of the role `name`."""
        try:
            theirs = x509.load_pem_x509_certificate(certificate)
            theirs.verify_directly_issued_by(x509.load_pem_x509_certificate(self.ca))
            _check_signature(theirs, signature, content)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            raise RemoteProtocolError(f"{name}: its key is not signed with a certificate of the authority") from None
        names = [attribute.value for attribute in theirs.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [name] or not _valid(theirs):
            raise RemoteProtocolError(f"{name}: its key is signed with a certificate of another role, or out of date")
        found = theirs.fingerprint(SHA256()).hex()
        if fingerprint is not None and found != fingerprint.replace(":", "").lower():
            raise RemoteProtocolError(f"{name}: its certificate has the fingerprint {found}, another one was agreed on")


def asking(certificate: Path, renew: bool = False) -> str:
    """How the role of this certificate asks the authority for one; its key stays where it is."""
    name = certificate.stem
    who = "--server HOST" if name == SERVER_NAME else f"--party {name}"
    return f"ask the authority for it: cvfl certs request {certificate.parent} {who}{' --renew' if renew else ''}"


def _valid(certificate: x509.Certificate) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _check_signature(certificate: x509.Certificate, signature: bytes, content: bytes) -> None:
    key = certificate.public_key()
    match key:
        case ec.EllipticCurvePublicKey():
            key.verify(signature, content, ec.ECDSA(SHA256()))
        case rsa.RSAPublicKey():
            key.verify(signature, content, padding.PKCS1v15(), SHA256())
        case _:
            raise ValueError("a key that cannot sign")
