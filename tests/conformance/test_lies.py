"""Roles that have a certificate and lie: a role holds every other one to the terms that it agreed to itself.

What a server could do with its place in the middle, and a party with its place in the handshake. Each attack is tried
as far as it goes, and ends in one line that names who sent what it should not have; nothing is changed by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cases import PEOPLE, SERVER, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.config.schema import RunConfig
from cvfl.data.tables.split import seed_key
from cvfl.errors import CvflError, DecodeError, RemoteProtocolError
from cvfl.federation.agreement.handshake import Phase
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.rows.load import in_order
from cvfl.privacy.identity import Identity
from cvfl.privacy.keys import Keyring, SessionKey
from cvfl.runtime.grpc.certificates import make_certificates
from cvfl.wire import Embedding, Gradient, decode, encode
from cvfl.wire.control import (
    Begin,
    Have,
    Hello,
    Recall,
    RowSecret,
    Settle,
    decode_control,
    encode_control,
)
from cvfl.wire.frame import kind_of, seal
from cvfl.wire.message import EMBEDDING
from cvfl.wire.read import read_frame
from cvfl.wire.targets import Targets

pytestmark = pytest.mark.usefixtures("tidy")


def until(loop: Loop, reached: Callable[[], bool]) -> Loop:
    while not reached():
        loop.step()
    return loop


def next_down(loop: Loop, name: str, kind: type) -> Any:
    """Run until a message of this kind is on its way to the party: it is taken from there."""
    until(loop, lambda: bool(loop.down[name]) and isinstance(read_frame(loop.down[name][0]), kind))
    return read_frame(loop.down[name].popleft())


def hears(role: PartyRole, message: Any) -> list[bytes]:
    return list(role.receive(encode_control(message, 0)))


# Labels


def targets(m: int, rows: int = 60) -> Targets:
    """Everything is for training, and every label 1."""
    return Targets(m, 1, 1, bytes(rows), np.ones(rows).tobytes())


@pytest.mark.parametrize("phase", [Phase.ALIGNING, Phase.MATCHED, Phase.TOLD, Phase.TRAINING])
def test_a_party_without_the_label_sends_labels(phase: Phase, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    server = loop.server.role
    until(loop, lambda: 2 in server._links.here and server._links.here[2].phase is phase)
    before = server.rows.state() if server.rows.sizes() else None
    with pytest.raises(RemoteProtocolError, match=r"^shop: an unexpected Targets"):
        server.receive(2, encode_control(targets(2), 2))
    assert server._links.here[2].phase is phase
    assert before == (server.rows.state() if server.rows.sizes() else None)
    same(loop.run(), in_process(loop.config))


def test_the_holder_sends_labels_twice(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    server = loop.server.role
    until(loop, lambda: server.rows.sizes() is not None)
    with pytest.raises(RemoteProtocolError, match=r"^bank: an unexpected Targets"):
        server.receive(1, encode_control(targets(1), 1))
    same(loop.run(), in_process(loop.config))


def test_the_server_tells_the_holder_its_labels(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    bank = loop.parties["bank"].role
    until(loop, lambda: bank._link.phase is Phase.SETTLED)
    before = bank.rows.state()["told"]["labels"].clone()
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: an unexpected Targets"):
        list(bank.receive(encode_control(targets(0), 0)))
    assert bool((bank.rows.state()["told"]["labels"] == before).all())
    same(loop.run(), in_process(loop.config))


@pytest.mark.parametrize("stratify", [False, True])
def test_the_server_has_most_rows_held_out(stratify: bool, tmp_path: Path) -> None:
    """Held-out rows are sent in full."""
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path, {"stratify": stratify}), tmp_path / "loop")
    told = next_down(loop, "shop", Targets)
    held_out = bytes([0] * 3 + [2] * (len(told.parts) - 3))
    with pytest.raises(RemoteProtocolError, match=r"^shop: from the server: 57 of 60 rows for test, the terms say"):
        hears(loop.parties["shop"].role, replace(told, parts=held_out, labels=bytes(told.labels)[:24]))


def test_the_server_swaps_what_rows_are_for(tmp_path: Path) -> None:
    """Without stratification a party knows by itself what a row is for."""
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    told = next_down(loop, "shop", Targets)
    parts = bytearray(told.parts)
    first, last = parts.index(0), parts.index(2)
    parts[first], parts[last] = parts[last], parts[first]
    with pytest.raises(RemoteProtocolError, match="rows for other parts than their key says"):
        hears(loop.parties["shop"].role, replace(told, parts=bytes(parts)))


# Ids


def people(config: RunConfig, folder: Path) -> tuple[Loop, list[str]]:
    """A run in which nobody named a secret, and the ids that both parties have."""
    party = {name: section.model_copy(update={"row_secret": None}) for name, section in config.party.items()}
    loop = Loop(config.model_copy(update={"party": party}), folder)
    return loop, [f"person-{i:04d}" for i in range(15, 75)]


@pytest.mark.parametrize("alignment", ["private", "aligned"])
def test_a_server_does_not_learn_whose_label_is_whose(alignment: str, tmp_path: Path) -> None:
    """It knows the ids of all people, the seed and the order in which labels came, and guesses as before."""
    write_tables(tmp_path, aligned=alignment == "aligned")
    loop, shared = people(table_settings(tmp_path, {"alignment": alignment}), tmp_path / "loop")
    until(loop, lambda: loop.server.role.rows.sizes() is not None)
    bank = loop.parties["bank"].role.rows
    places = bank.state()["places"].numpy()
    if alignment == "private":
        ids = {place: text for text, place in bank.table.ids().items()}  # type: ignore[attr-defined]
        truth, guess = [ids[int(place)] for place in places], in_order(shared, seed_key(loop.config.data.split_seed))[0]
        assert sorted(truth) == sorted(guess)
    else:
        truth, guess = [str(place) for place in places], [str(place) for place in range(PEOPLE)]
    linked = sum(one == other for one, other in zip(truth, guess, strict=True))
    assert linked < 0.15 * len(truth)  # by chance one or so
    known = loop.parties["bank"].role._row_secret
    assert len(known) == 32
    told = b"".join(path.read_bytes() for path in loop.state(SERVER).rglob("*") if path.is_file())
    assert known not in told
    assert known.hex().encode() not in told


def test_who_has_the_secret_repeats_the_run(tmp_path: Path) -> None:
    """Each party keeps it with its model; other runs have other ones."""
    write_tables(tmp_path)
    config = table_settings(tmp_path)
    loop, _ = people(config, tmp_path / "loop")
    found = loop.run()
    kept = {name: (tmp_path / "loop" / "models" / f"{name}.row_secret").read_bytes() for name in ("bank", "shop")}
    assert kept["bank"] == kept["shop"]
    (tmp_path / "row_secret").write_bytes(kept["bank"])
    same(found, in_process(config))
    other, _ = people(config, tmp_path / "other")
    assert other.run().models["server"] != found.models["server"]


def test_the_secret_is_in_no_frame(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    secret, said = loop.parties["bank"].role._row_secret, b""
    while not loop.over:
        loop.step()
        said += b"".join(frame for name in loop.names for _, frame in loop.up[name])
        said += b"".join(frame for name in loop.names for frame in loop.down[name])
    assert secret not in said
    assert secret.hex().encode() not in said


# The party's own configuration


def test_a_server_would_have_labels_of_people_whom_nobody_shares(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    settle = next_down(loop, "bank", Settle)
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: rows are to be settled as-is, not align$"):
        hears(loop.parties["bank"].role, settle.model_copy(update={"how": "as-is"}))
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: an unexpected Matched"):
        list(loop.parties["bank"].role.receive(seal(6, 0, 0, [b"\x00" * 4])))


def test_rows_that_are_not_known_are_not_taken_as_known(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    settle = next_down(loop, "bank", Settle)
    with pytest.raises(RemoteProtocolError, match="rows are taken as known that are not"):
        hears(loop.parties["bank"].role, settle.model_copy(update={"how": "known"}))


FACTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no compression": lambda facts: {"compressors": ["identity", facts["compressors"][1]]},
    "another width": lambda facts: {"widths": [facts["widths"][0] + 1, facts["widths"][1]]},
    "a huge width": lambda facts: {"widths": [facts["widths"][0], 1 << 24]},
    "a negative width": lambda facts: {"widths": [facts["widths"][0], -1]},
    "other names": lambda facts: {"names": ["bank", "spy"]},
    "names in another order": lambda facts: {"names": facts["names"][::-1]},
    "a party more": lambda facts: {
        "names": [*facts["names"], "spy"],
        "widths": [*facts["widths"], 4],
        "compressors": [*facts["compressors"], "auto"],
    },
    "too few widths": lambda facts: {"widths": facts["widths"][:1]},
    "no outputs": lambda facts: {"outputs": 0},
    "many outputs": lambda facts: {"outputs": 65_535},
    "another loss": lambda facts: {"loss": "squared"},
    "no loss": lambda facts: {"loss": "none"},
    "other rows": lambda facts: {"rows": [facts["rows"][0] + 1, *facts["rows"][1:]]},
    "negative rows": lambda facts: {"rows": [-1, 0, 0]},
    "a deep compressor": lambda facts: {"compressors": [facts["compressors"][0], "feedback(" * 3000]},
    "nothing": lambda facts: {key: None for key in facts},  # noqa: C420
}


@pytest.mark.parametrize("lie", FACTS)
def test_facts_that_are_not_those_of_the_party(lie: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    begin, bank = next_down(loop, "bank", Begin), loop.parties["bank"].role
    lied = begin.model_copy(update={"facts": begin.facts | FACTS[lie](begin.facts)})
    with pytest.raises(RemoteProtocolError) as caught:
        hears(bank, lied)
    assert "\n" not in str(caught.value)
    assert bank.party is None


def test_a_second_begin_in_one_session_is_refused(tmp_path: Path) -> None:
    """Masks and noise of a session are for one use."""
    loop = Loop(settings(), tmp_path)
    bank = loop.parties["bank"].role
    begin = next_down(loop, "bank", Begin)
    assert hears(bank, begin)
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: an unexpected Begin \(training\)$"):
        hears(bank, begin)


# Noise

NOISY = settings(rounds=6, every=50, privacy={"clip": 1.0, "noise": 0.5}, compressor="identity")


def first_embedding(loop: Loop, name: str) -> bytes:
    """What the party sends of round 0."""
    until(loop, lambda: bool(loop.up[name]) and kind_of(loop.up[name][-1][1]) == EMBEDDING)
    return loop.up[name][-1][1]


@pytest.mark.parametrize("by", ["cut", "kill", "server"])
def test_noise_is_not_drawn_again_in_another_session(by: str, tmp_path: Path) -> None:
    """Else a server would average it away by ending sessions."""
    loop = Loop(NOISY, tmp_path)
    once = first_embedding(loop, "bank")
    for _ in range(5):
        {"cut": lambda: loop.cut("bank"), "kill": lambda: loop.kill("bank"), "server": lambda: loop.kill(SERVER)}[by]()
        assert first_embedding(loop, "bank") == once


def test_a_round_is_not_released_again_with_other_values(tmp_path: Path) -> None:
    """A server that answers differently each time would have many draws of nearly the same embedding."""
    config = NOISY.model_copy(update={"algorithm": 2})
    loop, bank = Loop(config, tmp_path), None
    first_embedding(loop, "bank")
    answer = next_down(loop, "bank", Gradient)
    bank = loop.parties["bank"].role
    assert [type(decode(frame)) for frame in bank.receive(encode(answer))] == [Embedding]
    loop.kill("bank")
    bank = loop.parties["bank"].role
    again = next_down(loop, "bank", Gradient)
    lied = bytearray(again.packet)
    lied[-1] ^= 0x80  # the sign of a number
    said = r"^bank: from the server: the embedding of round 1 is to be released again with other values$"
    with pytest.raises(RemoteProtocolError, match=said):
        list(bank.receive(encode(replace(again, packet=bytes(lied)))))
    loop.kill("bank")
    loop.run()


# Keys


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["127.0.0.1"], ["bank", "shop"])
    make_certificates(folder / "other", ["127.0.0.1"], ["bank", "shop"])
    return folder


def identity(certs: Path, name: str) -> Identity:
    return Identity.read(certs / "ca.crt", certs / f"{name}.crt", certs / f"{name}.key")


class InTheMiddle(Loop):
    """Parties with certificates, and a server that puts its own key in the place of the bank's."""

    def __init__(self, config: RunConfig, folder: Path, certs: Path, forge: Callable[[Have], Have]) -> None:
        self.certs, self.forge = certs, forge
        super().__init__(config, folder)

    def start(self, role: str) -> None:
        super().start(role)
        if role != SERVER:
            self.parties[role].role.identity = identity(self.certs, role)

    def _serve(self, name: str, kind: str, frame: bytes) -> None:
        message = read_frame(frame) if kind == "frame" else None
        if name == "bank" and isinstance(message, Have):
            frame = encode_control(self.forge(message), 1)
        super()._serve(name, kind, frame)


MINE = SessionKey()


def forged(have: Have, keyring: Keyring, m: int = 1, session: int | None = None) -> Have:
    return have.model_copy(update={"key": keyring.signed(m, have.session if session is None else session, MINE)})


def forgeries(config: RunConfig, certs: Path) -> dict[str, Callable[[Have], Have]]:
    def ring(who: Identity | None) -> Keyring:
        return Keyring(("bank", "shop"), "", who)

    def unsigned(have: Have) -> Have:
        return forged(have, ring(None))

    def kept_signature(have: Have) -> Have:
        assert have.key
        return have.model_copy(update={"key": have.key.model_copy(update={"public": MINE.public.hex()})})

    return {
        "no signature": unsigned,
        "the bank's signature of another key": kept_signature,
        "signed by the server": lambda have: forged(have, ring(identity(certs, "server"))),
        "signed by another party": lambda have: forged(have, ring(identity(certs, "shop"))),
        "a certificate of another authority": lambda have: forged(have, ring(identity(certs / "other", "bank"))),
        "signed for other terms": lambda have: forged(have, ring(identity(certs, "bank"))),
    }


@pytest.mark.parametrize("forgery", forgeries(settings(), Path()))
@pytest.mark.parametrize("case", ["labels at a party", "tables"])
def test_a_server_in_the_middle_of_keys_is_found_out(case: str, forgery: str, certs: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    privacy = {"privacy": {"labels": "bank"}} if case == "labels at a party" else {}
    config = table_settings(tmp_path, **privacy)
    forge = forgeries(config, certs)[forgery]
    loop = InTheMiddle(config, tmp_path / "loop", certs, forge)
    with pytest.raises(RemoteProtocolError, match=r"^(bank: its key is|the key of party 1 is not the one)") as caught:
        loop.run()
    assert "\n" not in str(caught.value)


def test_a_key_of_an_older_session_is_found_out(certs: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path)
    old: list[Have] = []

    def replay(have: Have) -> Have:
        old.append(have)
        return have.model_copy(update={"key": old[0].key})

    loop = InTheMiddle(config, tmp_path / "loop", certs, replay)
    until(loop, lambda: loop.server.role._session.number == 1 and loop.delivered > 12)
    loop.cut("shop")
    with pytest.raises(RemoteProtocolError, match=r"^(bank: its key is not signed|the key of party 1 is not the one)"):
        loop.run()


def test_honest_keys_are_taken(certs: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path, privacy={"labels": "bank"})
    same(InTheMiddle(config, tmp_path / "loop", certs, lambda have: have).run(), in_process(config))


def test_a_certificate_that_was_not_agreed_on(certs: Path) -> None:
    """Of the same authority and for the same name: who has the authority's key can make one."""
    bank, shop, key = identity(certs, "bank"), identity(certs, "shop"), SessionKey()
    names = ("bank", "shop")
    told = [Keyring(names, "", bank).signed(1, 1, key), Keyring(names, "", shop).signed(2, 1, MINE)]
    agreed = "ab" * 32
    with pytest.raises(RemoteProtocolError, match=r"^bank: its certificate has the fingerprint [0-9a-f]{64}, another"):
        Keyring(names, "", shop, {"bank": agreed}).agree(2, 1, MINE, told)


# Set-up that is no set-up


def greeting(**changes: Any) -> bytes:
    config = settings()
    values = Hello(name="bank", terms=terms_of(config), offer=offer_of(config, "bank")).model_dump()
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    return seal(7, 0, 0, [json.dumps(values).encode()])


GREETINGS: dict[str, dict[str, Any]] = {
    "a deep compressor": {"offer": {"compressor": "feedback(" * 3000}},
    "a compressor as deep as may be said": {"offer": {"compressor": "feedback(" * 28}},
    "a wide embedding": {"offer": {"width": 1 << 24}},
    "no width": {"offer": {"width": 0}},
    "a width in words": {"offer": {"width": "16"}},
    "something else to offer": {"offer": {"gift": 1}},
    "a name that is none": {"name": "\x1b[2J" + "x" * 5000},
    "rounds without end": {"rounds": list(range(1000))},
    "negative rounds": {"rounds": [-1]},
    "a run that is none": {"run": "../../etc"},
    "another version": {"protocol": 3},
    "terms without end": {"terms": {"seed": "9" * 100_000}},
}


@pytest.mark.parametrize("case", GREETINGS)
def test_a_hello_that_cannot_be_is_one_line_and_the_others_go_on(case: str, tmp_path: Path) -> None:
    config = settings()
    loop = Loop(config, tmp_path)
    with pytest.raises((RemoteProtocolError, DecodeError)) as caught:  # noqa: PT012  the second may be late to refuse
        loop.server.role.join(greeting(**GREETINGS[case]), "bank")
        loop.present["bank"] = (2, loop.link["bank"])
        loop.up["bank"].clear()
        while True:
            loop.step()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_secret_of_the_rows_for_nobody(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    until(loop, lambda: bool(loop.up["bank"]) and _is(loop.up["bank"][0], RowSecret))
    message = decode_control(loop.up["bank"][0][1])[1]
    assert isinstance(message, RowSecret)
    for sealed in ([], message.sealed * 2):
        with pytest.raises(RemoteProtocolError, match=r"^bank: (not one secret|an unexpected RowSecret)"):
            loop.server.role.receive(1, encode_control(message.model_copy(update={"sealed": sealed}), 1))


def _is(event: tuple[str, bytes], kind: type) -> bool:
    return event[0] == "frame" and isinstance(read_frame(event[1]), kind)


def test_a_changed_secret_of_the_rows_does_not_open(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    told = next_down(loop, "shop", RowSecret)
    wrong = ("0" if told.sealed[0][0] != "0" else "1") + told.sealed[0][1:]
    with pytest.raises(RemoteProtocolError, match=r"^bank: the secret of the rows does not open"):
        hears(loop.parties["shop"].role, told.model_copy(update={"sealed": [wrong]}))


def test_everything_is_for_its_own_session(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    settle = next_down(loop, "bank", Settle)
    with pytest.raises(RemoteProtocolError, match="rows are to be settled for session 7"):
        hears(loop.parties["bank"].role, settle.model_copy(update={"session": 7}))
    hears(loop.parties["bank"].role, Recall(session=9))
    with pytest.raises(CvflError):
        hears(loop.parties["bank"].role, settle)


def test_a_matched_that_was_not_asked_for(tmp_path: Path) -> None:
    loop = Loop(settings(), tmp_path)
    next_down(loop, "bank", Settle)
    with pytest.raises(RemoteProtocolError, match=r"^bank: from the server: an unexpected Matched"):
        list(loop.parties["bank"].role.receive(seal(6, 0, 0, [b"\x01\0\0\0\x01"])))


def test_who_had_how_many_ids_blinded_is_known(tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = Loop(table_settings(tmp_path), tmp_path / "loop")
    until(loop, lambda: all(party.role.party is not None for party in loop.parties.values()))
    assert {name: party.role.blinded for name, party in loop.parties.items()} == {
        "bank": {"shop": 75},
        "shop": {"bank": 75},
    }
