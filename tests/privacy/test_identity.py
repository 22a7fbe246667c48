"""Signatures of session keys: whatever a certificate's bytes are, they count or are refused with the party's name."""

from __future__ import annotations

import base64
import contextlib
import warnings
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from cvfl.errors import RemoteProtocolError
from cvfl.privacy.identity import Identity
from cvfl.runtime.grpc.certificates import make_certificates


@pytest.fixture
def identities(tmp_path: Path) -> dict[str, Identity]:
    make_certificates(tmp_path, ["127.0.0.1"], ["bank", "shop"])
    files = {name: (tmp_path / f"{name}.crt", tmp_path / f"{name}.key") for name in ("bank", "shop")}
    return {name: Identity.read(tmp_path / "ca.crt", *pair) for name, pair in files.items()}


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def test_every_flipped_bit_of_a_certificate_is_refused(identities: dict[str, Identity]) -> None:
    bank, shop = identities["bank"], identities["shop"]
    der = x509.load_pem_x509_certificate(bank.certificate).public_bytes(Encoding.DER)
    signature = bank.sign(b"key")
    shop.verify("bank", pem(der), signature, b"key", None)
    passed = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a serial number that is not positive
        for at in range(len(der)):
            for bit in range(8):
                damaged = bytearray(der)
                damaged[at] ^= 1 << bit
                with contextlib.suppress(RemoteProtocolError):
                    shop.verify("bank", pem(bytes(damaged)), signature, b"key", None)
                    passed.add(at)
    # How many bits of the last byte of the authority's signature are not used says nothing of who is meant.
    assert len(passed) <= 1


@pytest.mark.parametrize("certificate", [b"", b"garbage", pem(b""), pem(bytes(100)), pem(b"\x30\x80" * 50)])
def test_what_is_no_certificate(certificate: bytes, identities: dict[str, Identity]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^bank: its key is not signed"):
        identities["shop"].verify("bank", certificate, b"", b"key", None)
