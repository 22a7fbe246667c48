"""Certificates by request: a key is made where it stays, and the authority sees a request of its public half alone.

    at the bank        DIR/bank.key   stays there             DIR/bank.csr   goes to the authority
    at the authority   DIR/bank.csr, and who is expected  ─▶  DIR/bank.crt   goes back, with ca.crt

Of a request the authority takes the public key and nothing else: name, days and use are what it was told itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cvfl.errors import ConfigError, plain, writing
from cvfl.privacy.identity import SERVER_NAME
from cvfl.runtime.grpc.certificates import (
    PEM,
    Names,
    authority_of,
    check_authority,
    named,
    read_key,
    write_certificate,
    write_file,
    write_key,
)

CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Keys that are signed: TLS 1.3 alone is spoken with them."""
_LARGEST = 1 << 16


def make_request(folder: Path, hosts: Sequence[str], party: str | None, renew: bool = False) -> tuple[Path, str]:
    """Write a role's key and a request for its certificate; the request's file, and the fingerprint to compare.

    With `renew` the key that is there is used again, so that the old certificate works until the new one has come.
    """
    ((name, known_as),) = named(hosts, [party] if party else []).items()
    key_file, request = folder / f"{name}.key", folder / f"{name}.csr"
    with writing(folder):
        if renew and not key_file.exists():
            raise ConfigError(f"{key_file}: there is no key to renew a certificate of; leave --renew out")
        if key_file.exists() and not renew:
            raise ConfigError(f"{key_file} is there already; --renew asks for a new certificate of that key")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = read_key(key_file) if renew else write_key(key_file, ec.generate_private_key(ec.SECP256R1()))
        asked = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .add_extension(x509.SubjectAlternativeName(known_as), critical=False)
            .sign(key, hashes.SHA256())
        )
        return write_file(request, asked.public_bytes(PEM)), fingerprint(key.public_key())


def sign_requests(
    folder: Path, requests: Sequence[Path], hosts: Sequence[str], parties: Sequence[str], days: int, force: bool
) -> list[tuple[Path, str]]:
    """Write the certificates of these requests, which must be of those roles; each with its key's fingerprint.

    The folder has the authority, or gets one. Nothing is written before every request was found to be right.
    """
    names = named(hosts, parties)
    asked = _asked(requests, names)
    with writing(folder):
        for name in asked:
            if (folder / f"{name}.crt").exists() and not force:
                raise ConfigError(f"{folder / name}.crt is there already; --force replaces it")
        check_authority(folder, force=False)
        authority = authority_of(folder, days)
        return [
            (write_certificate(folder, name, names[name], key, days, authority), fingerprint(key))
            for name, key in asked.items()
        ]


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of a public key: the same at the role and at the authority, if nobody has changed the request."""
    digest = hashes.Hash(hashes.SHA256())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest.update(key.public_bytes(serialization.Encoding.DER, form))
    return digest.finalize().hex()


def _asked(requests: Sequence[Path], names: Names) -> dict[str, ec.EllipticCurvePublicKey]:
    """The key of every role that was told, from its request."""
    asked: dict[str, tuple[Path, ec.EllipticCurvePublicKey]] = {}
    for path in requests:
        request = _read(path)
        name = _name(path, request, names)
        if name in asked:
            raise ConfigError(f"{path} and {asked[name][0]} are both requests of {name}; give one of them")
        asked[name] = path, _key(path, request)
    if missing := [name for name in names if name not in asked]:
        raise ConfigError(f"no request of {missing[0]} was given; add its file, {missing[0]}.csr")
    return {name: key for name, (_, key) in asked.items()}


def _read(path: Path) -> x509.CertificateSigningRequest:
    """A request whose signature says that who made it has the key."""
    with writing(path, "read"), path.open("rb") as file:
        content = file.read(_LARGEST)
    try:
        request = x509.load_pem_x509_csr(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} is no request for a certificate; make one with: cvfl certs request") from None
    try:
        genuine = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        genuine = False
    if not genuine:
        raise ConfigError(f"{path}: its signature does not fit its key: it was changed, or damaged; get it again")
    return request


def _name(path: Path, request: x509.CertificateSigningRequest, names: Mapping[str, list[x509.GeneralName]]) -> str:
    """Which of these roles it is of; refused if it asks for any other name."""
    found = [str(one.value) for one in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    name = found[0] if len(found) == 1 else ""
    if name not in names:
        said = plain(repr(name), 100) if name else "no name, or several"
        raise ConfigError(f"{path} is of {said}, and you named {', '.join(names)}; look at who sent it")
    try:
        more = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return name
    except ValueError:
        raise ConfigError(f"{path}: its extensions cannot be read; make it with: cvfl certs request") from None
    if strange := [one for one in more if one not in names[name]]:
        said = plain(str(getattr(strange[0], "value", strange[0])), 100)
        remedy = f"--server {said}" if name == SERVER_NAME else "look at who sent it"
        raise ConfigError(f"{path} also asks for the name {said}, which you have not named; {remedy}")
    return name


def _key(path: Path, request: x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    key = request.public_key()  # which can be read, since its signature was checked by it
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise ConfigError(f"{path}: its key is of a kind that is not signed here; make it with: cvfl certs request")
    return key
