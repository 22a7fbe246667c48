"""Certificates of a federation: who may be what, for how long, and who can read the keys."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cvfl.errors import ConfigError, OutputError
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.runtime.grpc.channel import Identity, check_insecure


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def usage(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "certs", ["cvfl.example.org", "127.0.0.1", "::1"], ["bank", "shop"])
    return tmp_path / "certs"


def test_one_authority_and_a_pair_for_every_role(certs: Path) -> None:
    names = {"ca", "server", "bank", "shop"}
    assert {path.name for path in certs.iterdir()} == {f"{name}.{end}" for name in names for end in ("crt", "key")}
    authority = read(certs / "ca.crt")
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for name in names - {"ca"}:
        certificate = read(certs / f"{name}.crt")
        certificate.verify_directly_issued_by(authority)
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == name
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_party_cannot_be_the_server(certs: Path) -> None:
    assert usage(read(certs / "server.crt")) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert usage(read(certs / "bank.crt")) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_server_is_known_by_all_its_addresses(certs: Path) -> None:
    names = read(certs / "server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["cvfl.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_nobody_else_reads_a_key(certs: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in certs.glob("*.key")} == {0o600}


def test_days(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["here"], ["bank"], days=3)
    left = read(tmp_path / "bank.crt").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=2.9) < left <= datetime.timedelta(days=3)


def test_renewing_keeps_the_authority_and_the_others(certs: Path) -> None:
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    make_certificates(certs, ["127.0.0.1"], ["bank"], force=True)
    after = {path.name: path.read_bytes() for path in certs.iterdir()}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"server.crt", "server.key", "bank.crt", "bank.key"}
    read(certs / "bank.crt").verify_directly_issued_by(read(certs / "ca.crt"))


def test_nothing_is_replaced_unasked(certs: Path) -> None:
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    for hosts, parties in ((["127.0.0.1"], []), ([], ["bank"]), (["127.0.0.1"], ["new", "shop"])):
        with pytest.raises(ConfigError, match=r"\.crt or its key is there already; --force replaces both"):
            make_certificates(certs, hosts, parties)
    assert {path.name: path.read_bytes() for path in certs.iterdir()} == before
    make_certificates(certs, [], ["new"])
    read(certs / "new.crt").verify_directly_issued_by(read(certs / "ca.crt"))
    assert {name: (certs / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("missing", ["ca.key", "ca.crt"])
def test_an_authority_is_not_replaced_unasked(missing: str, certs: Path) -> None:
    """Its key is best kept elsewhere: then its certificate alone is there."""
    (certs / missing).rename(certs.parent / missing)
    left = {path.name: path.read_bytes() for path in certs.iterdir()}
    with pytest.raises(ConfigError, match=rf"an authority without its {missing}; bring that back"):
        make_certificates(certs, [], ["new"])
    assert {path.name: path.read_bytes() for path in certs.iterdir()} == left
    make_certificates(certs, [], ["new"], force=True)
    assert (certs / "ca.crt").read_bytes() != left.get("ca.crt")


@pytest.mark.parametrize("parties", [["bank", "bank"]])
def test_names_that_cannot_be(parties: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every role needs a name of its own"):
        make_certificates(tmp_path, ["here"], parties)


@pytest.mark.parametrize("name", ["server", "ca", "a" * 64, "x.y"])
def test_names_that_no_party_can_have(name: str, certs: Path) -> None:
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    with pytest.raises(ConfigError, match="is no name for a party"):
        make_certificates(certs, [], [name], force=True)
    assert {path.name: path.read_bytes() for path in certs.iterdir()} == before


@pytest.mark.parametrize("name", ["", "a b", "bänk", "../bank", "bank/x", "bank\n", "a" * 254])
def test_names_that_no_certificate_can_have(name: str, tmp_path: Path) -> None:
    for hosts, parties in (([name], ["bank"]), (["here"], [name])):
        with pytest.raises(ConfigError, match="is no name"):
            make_certificates(tmp_path / "certs", hosts, parties)
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("file", ["ca.crt", "ca.key"])
def test_an_authority_that_cannot_be_read(file: str, certs: Path) -> None:
    (certs / file).write_text("garbage")
    with pytest.raises(ConfigError) as caught:
        make_certificates(certs, ["here"], ["bank"], force=True)
    assert "ca.crt or ca.key cannot be read" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_authority_of_another_kind(certs: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    (certs / "ca.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigError, match="another kind"):
        make_certificates(certs, ["here"], ["bank"], force=True)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError) as caught:
        make_certificates(tmp_path / "file" / "certs", ["here"], ["bank"])
    assert "cannot be written" in str(caught.value)


def test_an_identity_is_read(certs: Path) -> None:
    identity = Identity.load(certs, "bank")
    assert identity.certificate == (certs / "bank.crt").read_bytes()


@pytest.mark.parametrize("file", ["ca.crt", "bank.crt", "bank.key"])
def test_a_file_that_is_missing(file: str, certs: Path) -> None:
    (certs / file).unlink()
    remedy = "ask the authority for it: cvfl certs request"
    with pytest.raises(ConfigError, match=f"{file}: No such file or directory; {remedy}"):
        Identity.load(certs, "bank")


@pytest.mark.parametrize("file", ["ca.crt", "bank.crt", "bank.key"])
def test_a_file_that_is_garbage(file: str, certs: Path) -> None:
    (certs / file).write_text("garbage")
    with pytest.raises(ConfigError, match=r"bank.crt, its key or ca.crt is not what it should be"):
        Identity.load(certs, "bank")


def test_a_key_of_somebody_else(certs: Path) -> None:
    (certs / "bank.key").write_bytes((certs / "shop.key").read_bytes())
    with pytest.raises(ConfigError, match="do not belong together"):
        Identity.load(certs, "bank")


def test_an_expired_certificate_is_told_where_it_is(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime(2100, 1, 1, tzinfo=tz)

    monkeypatch.setattr("cvfl.runtime.grpc.certificates.datetime.datetime", Later)
    with pytest.raises(
        ConfigError, match=r"bank.crt is valid from \d{4}-\d\d-\d\d to .*, not today; ask the authority"
    ):
        Identity.load(certs, "bank")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:8443", "[::1]:8443", "127.8.8.8:1"])
def test_plain_text_on_this_machine(address: str) -> None:
    check_insecure(address)


@pytest.mark.parametrize("address", ["0.0.0.0:8443", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.org:1", ":1"])
def test_plain_text_beyond_this_machine(address: str) -> None:
    with pytest.raises(ConfigError, match="--insecure is for this machine only"):
        check_insecure(address)
