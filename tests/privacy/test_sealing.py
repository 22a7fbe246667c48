"""What is sealed opens once, in order, for the one it is for; anything else is refused by name and tells nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvfl.errors import RemoteProtocolError
from cvfl.privacy.keys import SessionKey
from cvfl.privacy.sealing import Sealing
from cvfl.wire import Broadcast, Embedding, Evaluation, Folded, Gradient, Message, Passed, Stop, decode, encode

NAMES = ("hospital", "bank", "insurer")
SECRET = b"nobody may read this of an embedding"


def session(M: int = 3) -> tuple[Sealing, ...]:
    keys = [SessionKey() for _ in range(M)]
    publics = [key.public for key in keys]
    return tuple(Sealing(key.agree(m, publics), NAMES[:M]) for m, key in enumerate(keys, start=1))


def from_party(j: int, t0: int, packet: bytes) -> list[Message]:
    return [Embedding(t0, j, packet), Evaluation(t0, j, packet)]


def from_holder(t0: int, packet: bytes) -> list[Message]:
    return [
        Gradient(t0, packet),
        Gradient(t0, packet, b"weights"),
        Folded(t0, packet, (b"", packet)),
        Broadcast(t0, (packet,), ((2, packet),)),
        Stop(t0, t0 // 2),
    ]


@settings(deadline=None)
@given(packet=st.binary(max_size=300), t0=st.integers(0, 2**32 - 1))
def test_every_message_arrives_as_it_was(packet: bytes, t0: int) -> None:
    holder, bank, _ = session()
    for message in from_party(2, t0, packet):
        assert holder.open(over_the_wire(bank.seal(1, message))) == message
    for message in from_holder(t0, packet):
        assert bank.open(over_the_wire(holder.seal(2, message))) == message


def over_the_wire(passed: Passed) -> Passed:
    received = decode(encode(passed))
    assert isinstance(received, Passed)
    return received


def test_the_server_sees_a_length_and_nothing_twice() -> None:
    holder, bank, insurer = session()
    one, again = bank.seal(1, Embedding(4, 2, SECRET)), bank.seal(1, Embedding(4, 2, SECRET))
    other, back = insurer.seal(1, Embedding(4, 3, SECRET)), holder.seal(2, Gradient(4, SECRET))
    sealed = [bytes(passed.data) for passed in (one, again, other, back)]
    assert len(set(sealed)) == len(sealed)
    assert {len(data) for data in sealed} == {len(SECRET) + 16}
    assert all(SECRET[:4] not in encode(passed) for passed in (one, again, other, back))


def refused(receiver: Sealing, passed: Passed, said: str = "bank: a message of round 4 does not open") -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        receiver.open(passed)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "nobody" not in str(caught.value)


@pytest.mark.parametrize("at", [0, 1, 17, 35, 36, 51])
def test_a_changed_bit_is_noticed(at: int) -> None:
    holder, bank, _ = session()
    passed = bank.seal(1, Embedding(4, 2, SECRET))
    data = bytearray(passed.data)
    data[at] ^= 4
    refused(holder, replace(passed, data=bytes(data)))
    assert holder.open(passed) == Embedding(4, 2, SECRET)  # the true one still does


@pytest.mark.parametrize("data", [b"", b"short", bytes(16)])
def test_what_is_no_sealed_message_is_refused(data: bytes) -> None:
    holder, _, _ = session()
    refused(holder, Passed(4, 2, 1, 1, data))


def test_a_message_cannot_be_said_to_be_another() -> None:
    """Round, kind, sender and receiver are sealed with it."""
    holder, bank, insurer = session()
    passed = bank.seal(1, Embedding(4, 2, SECRET))
    refused(holder, replace(passed, t0=5), "bank: a message of round 5")
    refused(holder, replace(passed, kind=4))
    refused(holder, replace(passed, m=3), "insurer: a message of round 4")
    refused(insurer, replace(passed, to=3))
    refused(insurer, passed, "a message from role 2 for role 1 came to role 3")
    refused(holder, replace(passed, m=9), "a message from role 9")
    refused(bank, replace(passed, m=1, to=2), "hospital: a message of round 4")  # sent back to its sender


def test_repeated_swapped_and_left_out() -> None:
    holder, bank, _ = session()
    first, second, third = (bank.seal(1, Embedding(4, 2, bytes([n]) * 40)) for n in range(3))
    refused(holder, second)  # the first is missing
    holder.open(first)
    refused(holder, first)
    refused(holder, third)
    holder.open(second)
    assert holder.open(third) == Embedding(4, 2, b"\2" * 40)


def test_another_session_has_other_keys() -> None:
    holder, _, _ = session()
    _, bank, _ = session()
    refused(holder, bank.seal(1, Embedding(4, 2, SECRET)))


def test_a_sealed_body_that_is_no_message_names_its_sender() -> None:
    """Its sender had the key, so it is to blame."""
    holder, bank, _ = session()
    broken = holder.seal(2, Gradient(4, b"", b"weights"))
    way = bank._way(2, 1)
    data = way.cipher.encrypt(way.nonce(), b"\xff\xff", bytes.fromhex("04000000 0200 0100 0c"))
    refused(holder, Passed(4, 2, 1, broken.kind, data), "bank: ")


def test_keys_of_all_parties_are_needed() -> None:
    keys = [SessionKey(), SessionKey()]
    secrets = keys[0].agree(1, [key.public for key in keys])
    with pytest.raises(RemoteProtocolError, match="keys of 2 parties for a session of 3"):
        Sealing(secrets, NAMES)
