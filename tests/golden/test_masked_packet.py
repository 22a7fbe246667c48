"""The page on masked packets, step by step, with other parts than the code uses where there are any."""

import hashlib
import hmac
import math
import struct

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from cvfl.compress import Masked, Scalar, Wrapped
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.masks import Masks
from cvfl.privacy.noise_of_sum import Shared
from cvfl.wire import encode_packet, pack
from golden.test_wire_format import Example

EVERYONE, SECRETS = bytes(range(96)), {2: bytes([2]) * 32, 3: bytes([3]) * 32}


def key(secret: bytes) -> bytes:
    extracted = hmac.digest(EVERYONE, secret, hashlib.sha256)
    return hmac.digest(extracted, b"cvfl masks\1", hashlib.sha256)


def test_by_the_page_alone() -> None:
    example = Example("masked-packet.hex")
    total = np.zeros(12, dtype=np.uint16)
    for j, secret in SECRETS.items():
        assert key(secret).hex() == example.says[f"key with {j}"]
        cipher = Cipher(ChaCha20(key(secret), struct.pack("<IIQ", 0, 0, 3)), mode=None)
        total += np.frombuffer(cipher.encryptor().update(bytes(24)), "<u2")
    assert total.tolist() == example["mask"]
    symbols = np.array([*example["symbols"], *[0] * 6])
    assert pack((symbols + total) % 64, 6) == example.bytes[3:]


def test_the_code_gives_these_bytes() -> None:
    example = Example("masked-packet.hex")
    masked = Masked(Scalar(4, -1.0, 1.0), 3)
    masked.mask = Masks(PairSecrets(1, SECRETS, EVERYONE))
    packet = masked.compress(torch.tensor(example["tensor"]), example.context())
    assert encode_packet(packet) == example.bytes
    plain = masked.grid.compress(torch.tensor(example["tensor"]), example.context())
    assert plain.planes[0].symbols.tolist() == example["symbols"]


def test_shared_noise_by_the_page_alone() -> None:
    example, masks = Example("masked-shared.hex"), Example("masked-packet.hex")["mask"]
    steps = [round(value / 0.25) for row in example["tensor"] for value in row]
    assert example["symbols"] == [n % 64 for n in steps]
    assert example["mask"] == masks
    assert pack((np.array([*example["symbols"], *[0] * 6]) + np.array(masks)) % 64, 6) == example.bytes[3:]


def test_the_code_gives_these_bytes_with_shared_noise() -> None:
    example = Example("masked-shared.hex")
    masked = Masked(Wrapped(0.25, 6), 3)
    masked.mask = Masks(PairSecrets(1, SECRETS, EVERYONE))
    tensor = torch.tensor(example["tensor"])
    packet = masked.compress(tensor, example.context())
    assert encode_packet(packet) == example.bytes
    assert torch.equal(masked.decompress(packet, example.context()), tensor)


def test_the_width_is_that_of_the_page() -> None:
    for clip, noise, step, M in ((1.0, 1.0, 2 / 63, 4), (0.5, 3.0, 0.01, 2), (2.0, 0.1, 0.5, 9)):
        K, mu, L = math.floor((clip / step) ** 2), (noise * clip / step) ** 2, math.log(2e12)
        most = M * math.floor(math.sqrt(K)) + math.ceil(L / 3 + math.sqrt(L**2 / 9 + 2 * L * mu))
        assert Shared.of(clip, noise, step, M, 2).width == len(f"{most:b}") + 1
