"""Certificates by request: nobody's key travels, and the authority signs what it was told to and nothing else."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typer.testing import CliRunner

from conformance.cases import SERVER, settings
from conformance.outcome import in_process, same
from conformance.threads import Threads
from cvfl.cli import app
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, OutputError
from cvfl.runtime.grpc.channel import Identity
from cvfl.runtime.grpc.requests import make_request, sign_requests

pytestmark = pytest.mark.usefixtures("no_pages")


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    return result.exit_code, result.output


def request(
    path: Path, *names: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None, also: str | None = None
) -> Path:
    """A request that is not as `cvfl certs request` makes it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=9), critical=True)
    if also:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(also)]), critical=False)
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    path.write_bytes(signed.public_bytes(Encoding.PEM))
    return path


def changed(path: Path) -> Path:
    """The request of the bank with another name in it, of the same length, and its old signature."""
    make_request(path.parent / "own", [], "bank")
    der = x509.load_pem_x509_csr((path.parent / "own" / "bank.csr").read_bytes()).public_bytes(Encoding.DER)
    forged = x509.load_der_x509_csr(der.replace(b"bank", b"tank"))
    path.write_bytes(forged.public_bytes(Encoding.PEM))
    return path


def made(folder: Path) -> Path:
    return make_request(folder, [], "bank")[0]


def test_the_key_stays_and_the_request_does_not_hold_it(tmp_path: Path) -> None:
    code, output = call("request", tmp_path / "certs", "--party", "bank")
    assert code == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").glob("*.key")} == {
        "bank.key": 0o600
    }
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in (tmp_path / "certs" / "bank.csr").read_text()
    code, signed = call(
        "sign", tmp_path / "certs" / "bank.csr", "--party", "bank", "--folder", tmp_path / "authority", "--days", 2
    )
    assert code == 0, signed
    told = output.split("fingerprint of the key: ")[1].split()[0]
    assert told in signed
    assert {path.name for path in (tmp_path / "authority").iterdir()} == {"ca.crt", "ca.key", "bank.crt"}
    for name in ("bank.crt", "ca.crt"):
        shutil.copy(tmp_path / "authority" / name, tmp_path / "certs")
    identity = Identity.load(tmp_path / "certs", "bank")
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=1.9) < left <= datetime.timedelta(days=2)


def test_what_a_request_asks_for_besides_its_name_is_not_given(tmp_path: Path) -> None:
    """It asks to be an authority itself."""
    ((path, _),) = sign_requests(tmp_path, [request(tmp_path / "x.csr", "bank")], [], ["bank"], 9, False)
    extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


Bad = Callable[[Path], Path]
BAD: dict[str, tuple[Bad, str]] = {
    "another name": (lambda folder: request(folder / "x.csr", "shop"), "x.csr is of 'shop', and you named bank"),
    "no name": (lambda folder: request(folder / "x.csr"), "is of no name, or several, and you named bank"),
    "two names": (lambda folder: request(folder / "x.csr", "bank", "shop"), "is of no name, or several"),
    "a path": (lambda folder: request(folder / "x.csr", "../bank"), "is of '../bank', and you named bank"),
    "a line": (lambda folder: request(folder / "x.csr", "bank\nok"), "is of 'bank\\nok', and you named"),
    "a host as well": (
        lambda folder: request(folder / "x.csr", "bank", also="evil.example.org"),
        "also asks for the name evil.example.org, which you have not named",
    ),
    "an RSA key": (
        lambda folder: request(folder / "x.csr", "bank", key=rsa.generate_private_key(65537, 2048)),
        "its key is of a kind that is not signed here",
    ),
    "a curve of its own": (
        lambda folder: request(folder / "x.csr", "bank", key=ec.generate_private_key(ec.SECP256K1())),
        "its key is of a kind that is not signed here",
    ),
    "changed on the way": (lambda folder: changed(folder / "x.csr"), "its signature does not fit its key"),
    "not there": (lambda folder: folder / "x.csr", "x.csr: cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_one_line(what: str, tmp_path: Path) -> None:
    make, line = BAD[what]
    with pytest.raises((ConfigError, OutputError)) as caught:
        sign_requests(tmp_path / "authority", [make(tmp_path)], [], ["bank"], 9, False)
    assert line in str(caught.value).replace("\\\\n", "\\n")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "authority").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100, b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_what_is_no_request(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.csr").write_bytes(content)
    code, output = call("sign", tmp_path / "x.csr", "--party", "bank", "--folder", tmp_path / "authority")
    assert code == 2
    (line,) = output.splitlines()
    assert line.endswith("x.csr is no request for a certificate; make one with: cvfl certs request")


def test_a_key_in_place_of_a_request(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError, match=r"bank\.key is no request for a certificate"):
        sign_requests(tmp_path / "authority", [tmp_path / "bank.key"], [], ["bank"], 9, False)


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(ConfigError, match=r"bank\.key is there already; --renew asks for a new certificate"):
        made(tmp_path)
    authority = tmp_path / "authority"
    ((certificate, _),) = sign_requests(authority, [path], [], ["bank"], 9, False)
    before = certificate.read_bytes()
    with pytest.raises(ConfigError, match=r"bank\.crt is there already; --force replaces it"):
        sign_requests(authority, [path], [], ["bank"], 9, False)
    assert certificate.read_bytes() == before
    sign_requests(authority, [path], [], ["bank"], 9, True)
    assert certificate.read_bytes() != before


def test_a_renewed_certificate_is_of_the_same_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no key to renew a certificate of"):
        make_request(tmp_path, [], "bank", renew=True)
    path, told = make_request(tmp_path, [], "bank")
    key = (tmp_path / "bank.key").read_bytes()
    assert make_request(tmp_path, [], "bank", renew=True) == (path, told)
    assert (tmp_path / "bank.key").read_bytes() == key


def test_every_name_has_one_request(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(ConfigError, match=r"no request of shop was given; add its file, shop\.csr"):
        sign_requests(tmp_path / "a", [path], [], ["bank", "shop"], 9, False)
    with pytest.raises(ConfigError, match="are both requests of bank"):
        sign_requests(tmp_path / "a", [path, path], [], ["bank"], 9, False)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key"])
def test_half_an_authority(missing: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    sign_requests(tmp_path / "a", [path], [], ["bank"], 9, False)
    (tmp_path / "a" / missing).unlink()
    with pytest.raises(ConfigError, match=f"has an authority without its {missing}"):
        sign_requests(tmp_path / "a", [path], [], ["bank"], 9, True)


def test_an_authority_of_two_halves(tmp_path: Path) -> None:
    path = made(tmp_path)
    for name in "ab":
        sign_requests(tmp_path / name, [path], [], ["bank"], 9, False)
    shutil.copy(tmp_path / "a" / "ca.key", tmp_path / "b")
    with pytest.raises(ConfigError, match=r"ca\.crt and ca\.key do not belong together"):
        sign_requests(tmp_path / "b", [path], [], ["bank"], 9, True)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("request",), "say who this is: --party NAME, or --server HOST"),
        (("request", "--party", "bank", "--server", "x"), "say who this is"),
        (("request", "--party", "server"), "'server' is no name for a party"),
        (("request", "--server", "a b"), "'a b' is no name"),
        (("sign", "x.csr"), "say whose requests these are: --server HOST, --party NAME, or both"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call(*arguments)
    assert code == 2
    assert line in output
    assert list(tmp_path.iterdir()) == []


class Apart(Threads):
    """Roles that have a folder each, with what they made and got themselves."""

    def identity(self, name: str) -> Identity | None:
        return Identity.load(self.folder / name, name)


def signed(config: RunConfig, folder: Path, names: tuple[str, ...]) -> None:
    """Everybody's certificate by request, as people would do it; what travels are requests and certificates."""
    (folder / "certs").mkdir(parents=True)  # of one person for all: there is none
    for name in names:
        assert call("request", folder / name, "--party", name)[0] == 0
    assert call("request", folder / SERVER, "--server", "127.0.0.1")[0] == 0
    requests = [folder / name / f"{name}.csr" for name in (*names, SERVER)]
    told = [word for name in names for word in ("--party", name)]
    authority = folder / "authority"
    code, output = call("sign", *requests, *told, "--server", "127.0.0.1", "--folder", authority)
    assert code == 0, output
    for name in (*names, SERVER):
        for file in ("ca.crt", f"{name}.crt"):
            shutil.copy(authority / file, folder / name)


def test_a_federation_of_requested_certificates_ends_in_the_same_bits(tmp_path: Path) -> None:
    """By gRPC with mutual TLS."""
    config = settings(rounds=2)
    names = ("hospital", "bank")
    signed(config, tmp_path, names)
    federation = Apart(config, tmp_path)
    try:
        assert federation.names == names
        federation.start_all()
        same(federation.outcome(), in_process(config))
    finally:
        federation.close()
    keys = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.key")}
    assert keys == {"authority/ca.key", *(f"{name}/{name}.key" for name in (*names, SERVER))}
