"""Rows of the label holder between machines: every role knows which rows it holds as in one process, and no more."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.cases import AUTO, SERVER, settings
from conformance.loop import Loop
from conformance.outcome import in_process, rows_apart, same
from conformance.test_align_once import Heard, again, change
from conformance.test_law3_restart import FAULTS, SHORT
from conformance.threads import threads
from cvfl.config.schema import RunConfig
from cvfl.errors import RemoteProtocolError
from cvfl.federation.results.scoring import scorer
from cvfl.federation.roles import PartyRun, ServerRun
from cvfl.federation.rows.load import load_data
from cvfl.privacy.relay import Relay
from cvfl.protocol import Party, Presence
from cvfl.wire import pack, unpack
from cvfl.wire.control import encode_control
from cvfl.wire.read import read_frame
from cvfl.wire.targets import Targets

pytestmark = pytest.mark.usefixtures("tidy")
NAMES = ("shop", "bank", "registry")
HELD = {"shop": range(79, 19, -1), "bank": range(60), "registry": [*range(0, 60, 3), *range(80, 90)]}
SHARED: dict[str, Any] = AUTO | {"batch_size": 16, "rounds": 3}
PRIVATE: dict[str, Any] = {"privacy": {"labels": "bank"}, "rounds": 3}


def write(folder: Path) -> None:
    """A shop and a registry that know some of the people of a bank, which has the label, and some strangers."""
    draw = np.random.default_rng(1)
    for name in NAMES:
        rows = [[f"person-{i:04d}", draw.normal(), draw.choice(["a", "b", "c"])] for i in HELD[name]]
        header = ["ID", f"n {name}", f"w {name}"]
        if name == "bank":
            header, rows = [*header, "y"], [[*row, "yes" if row[1] > 0 else "no"] for row in rows]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    (folder / "row_secret").write_bytes(b"what the parties agreed on")


def config(folder: Path, data: Mapping[str, Any] | None = None, **changes: Any) -> RunConfig:
    write(folder)
    party: dict[str, Any] = {name: {"table": str(folder / f"{name}.csv")} for name in NAMES}
    party["shop"]["row_secret"], party["bank"]["label"] = str(folder / "row_secret"), "y"
    section = {"id": "ID", "alignment": "outer", "validation_share": 0.2} | dict(data or {})
    return settings(**{"data": section, "party": party} | changes)


def check(server: ServerRun, parties: Mapping[str, PartyRun], config: RunConfig) -> None:
    """All roles hold the rows that they would in one process, and know as much of who holds them."""
    data = load_data(config).data
    assert data.present is not None
    machine = server.role.rounds.server
    machines = {name: run.role.party for name, run in parties.items()}
    scores = [scorer(role) for role in (machine, *machines.values()) if role is not None]
    (found,) = [one.present for one in scores if one is not None]
    assert_same(found, data.present)
    assert isinstance(machine, Relay) == config.privacy.relayed
    for at, name in enumerate(NAMES):
        party = machines[name]
        assert party is not None
        holding = (party if isinstance(party, Party) else party.party).holding  # type: ignore[attr-defined]
        assert torch.equal(holding.present, data.present.train[at])
        assert torch.equal(holding.held_out_present, data.present.held_out[at])
        assert torch.equal(holding.train, data.train[at])
        assert torch.equal(torch.cat(holding.held_out), torch.cat([data.validation[at], data.test[at]]))  # type: ignore[list-item]


def assert_same(one: Presence | None, other: Presence) -> None:
    assert one is not None
    for part, expected in ((one.train, other.train), (one.held_out, other.held_out)):
        assert all(torch.equal(a, b) for a, b in zip(part, expected, strict=True))
        assert all(held.dtype == torch.bool for held in part)


@pytest.mark.parametrize("mode", [SHARED, PRIVATE], ids=["shared", "private"])
def test_every_role_knows_what_it_would_in_one_process(mode: dict[str, Any], tmp_path: Path) -> None:
    settings = config(tmp_path, **mode)
    loop = Loop(settings, tmp_path / "loop")
    same(loop.run(), in_process(settings), setup=True)
    check(loop.server, loop.parties, settings)


@pytest.mark.parametrize("mode", [SHARED, PRIVATE], ids=["shared", "private"])
def test_the_same_by_grpc(mode: dict[str, Any], tmp_path: Path) -> None:
    settings = config(tmp_path, **mode)
    with threads(settings, tmp_path) as federation:
        federation.start_all()
        same(federation.outcome(), in_process(settings))
        check(federation.server, federation.parties, settings)


QUICK = [("server", "shared"), ("everyone", "private")]
ALL = [(who, mode) for who in FAULTS for mode in ("shared", "private")]


@pytest.mark.parametrize(
    ("who", "mode"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in ALL]
)
def test_a_restart_brings_it_back(who: str, mode: str, tmp_path: Path) -> None:
    """In the middle of the alignment, anew; and between two rounds, from what the roles kept."""
    settings = config(tmp_path, **{"shared": SHARED, "private": PRIVATE}[mode] | SHORT)
    loop = Loop(settings, tmp_path / "loop")

    def in_rounds(loop: Loop) -> None:
        assert loop.kept(SERVER)
        assert all(loop.kept(name) for name in NAMES)
        FAULTS[who](loop)

    same(rows_apart(loop.run({20: FAULTS[who], 88: in_rounds})), rows_apart(in_process(settings)))
    check(loop.server, loop.parties, settings)


def test_no_id_travels_when_none_has_changed(tmp_path: Path) -> None:
    settings = config(tmp_path, **SHARED)
    first = Heard(settings, tmp_path / "loop")
    first.run()
    assert first.points == sum(map(len, HELD.values()))
    loop = again(settings, tmp_path / "loop")
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.counts["Blinded"] == loop.counts["Gone"] == 0
    check(loop.server, loop.parties, loop.config)
    change(tmp_path / "registry.csv", gone=4)
    change(tmp_path / "bank.csv", new=2)
    loop = again(settings, tmp_path / "loop", seed=2)
    same(rows_apart(loop.run()), rows_apart(in_process(loop.config)))
    assert loop.points == 2
    assert loop.counts["Gone"] == 1
    check(loop.server, loop.parties, loop.config)
    aligned = loop.server.role.aligned
    assert aligned is not None
    assert (aligned.rows, aligned.held) == (62, (40, 62, 16))


def down(loop: Loop, name: str) -> Targets:
    """The targets that are on their way to a party; they do not arrive."""
    while True:
        for frame in loop.down[name]:
            if isinstance(message := read_frame(frame), Targets):
                loop.down[name].clear()
                return message
        loop.step()


def up(loop: Loop) -> Targets:
    """The targets that are on their way from the bank to the server; they do not arrive."""
    while True:
        for kind, frame in loop.up["bank"]:
            if kind == "frame" and isinstance(message := read_frame(frame), Targets):
                loop.up["bank"].clear()
                return message
        loop.step()


def bits(settings: RunConfig, name: str) -> list[int]:
    """Which rows a party holds, in their order, as it is packed."""
    loaded, at = load_data(settings), NAMES.index(name)
    assert loaded.data.present is not None
    parts = np.frombuffer(loaded.told, dtype=np.int8)
    held = torch.cat([loaded.data.present.train[at], loaded.data.present.held_out[at]]).numpy()
    told = np.empty(len(parts), dtype=int)
    told[np.argsort(parts, kind="stable")] = held
    return told.tolist()


def test_a_party_hears_of_its_own_rows_alone(tmp_path: Path) -> None:
    settings = config(tmp_path, **SHARED)
    for name in ("shop", "registry"):
        (told,) = down(Loop(settings, tmp_path / name), name).present
        assert unpack(told, 1, 60).tolist() == bits(settings, name)
        assert sum(bits(settings, name)) == {"shop": 40, "registry": 20}[name]


def test_with_private_labels_the_server_reads_none_of_it(tmp_path: Path) -> None:
    settings = config(tmp_path, **PRIVATE)
    loop = Loop(settings, tmp_path / "loop")
    targets = up(loop)
    assert targets.sealed
    open_ = [pack(bits(settings, name), 1) for name in ("shop", "registry")]
    for sealed, plain in zip(targets.present, open_, strict=True):
        assert bytes(plain)[:4] not in bytes(sealed)
    other = up(Loop(settings, tmp_path / "other"))
    assert all(one != two for one, two in zip(targets.present, other.present, strict=True))
    server = loop.server.role
    server.rows.accept(targets)
    assert server.rows._present is None


def flipped(data: Any, at: int) -> bytes:
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def hears(loop: Loop, targets: Targets) -> None:
    list(loop.parties["shop"].role.receive(encode_control(targets, 0)))


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda bits: (flipped(bits, 0),), r"(41|39) rows are held here, of which there are 40"),
        (lambda bits: (bits, bits), "which rows 2 parties hold; 1 were expected"),
        (lambda bits: (), "which rows 0 parties hold; 1 were expected"),
    ],
)
def test_the_server_lies_about_what_a_party_holds(lie: Any, said: str, tmp_path: Path) -> None:
    loop = Loop(config(tmp_path, **SHARED), tmp_path / "loop")
    told = down(loop, "shop")
    with pytest.raises(RemoteProtocolError, match=rf"^shop: from the server: {said}"):
        hears(loop, replace(told, present=lie(told.present[0])))


def test_the_server_moves_a_row_to_another_part(tmp_path: Path) -> None:
    """A party knows by itself whether a row of its own is for training."""
    loop = Loop(config(tmp_path, **SHARED), tmp_path / "loop")
    told = down(loop, "shop")
    held, parts = unpack(told.present[0], 1, 60), np.frombuffer(told.parts, dtype=np.int8)
    here = np.flatnonzero((held == 1) & (parts == 0))[0]
    there = np.flatnonzero((held == 0) & (parts == 2))[0]
    moved = flipped(flipped(told.present[0], int(here)), int(there))
    with pytest.raises(RemoteProtocolError, match="rows for other parts than their key says"):
        hears(loop, replace(told, present=(moved,)))


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (
            lambda told: replace(told, present=(flipped(told.present[0], 3),)),
            "bank: which rows are held here does not open",
        ),
        (
            lambda told: replace(told, present=(bytes(8),), sealed=False),
            "shop: from the server: rows of others, or some",
        ),
        (lambda told: replace(told, present=told.present * 2), "shop: from the server: rows of others, or some"),
        (lambda told: replace(told, present=(), sealed=False), "shop: from the server: which rows 0 parties hold"),
    ],
)
def test_the_server_lies_about_what_is_sealed(lie: Any, said: str, tmp_path: Path) -> None:
    loop = Loop(config(tmp_path, **PRIVATE), tmp_path / "loop")
    with pytest.raises(RemoteProtocolError, match=f"^{said}"):
        hears(loop, lie(down(loop, "shop")))


@pytest.mark.parametrize("mode", [SHARED, PRIVATE], ids=["shared", "private"])
def test_the_holder_tells_of_another_number_of_parties(mode: dict[str, Any], tmp_path: Path) -> None:
    loop = Loop(config(tmp_path, **mode), tmp_path / "loop")
    told = up(loop)
    for present in (told.present[:1], (), (*told.present, told.present[0])):
        with pytest.raises(
            RemoteProtocolError, match=rf"^bank: which rows {len(present)} parties hold; 2 were expected"
        ):
            loop.server.role.rows.accept(replace(told, m=2, present=present))


def test_nobody_tells_of_it_where_all_hold_all_rows(tmp_path: Path) -> None:
    loop = Loop(config(tmp_path, {"alignment": "private"}, **SHARED), tmp_path / "loop")
    told = down(loop, "shop")
    assert told.present == ()
    with pytest.raises(RemoteProtocolError, match="which rows 1 parties hold; 0 were expected"):
        hears(loop, replace(told, present=(bytes(-(-len(told.parts) // 8)),)))
    assert loop.server.role.rows.state()["present"] == ()


def test_roles_that_are_told_another_alignment_do_not_meet(tmp_path: Path) -> None:
    settings = config(tmp_path, **SHARED)
    other = settings.model_copy(update={"data": settings.data.model_copy(update={"alignment": "private"})})
    loop = Loop(settings, tmp_path / "loop")
    hello = PartyRun(other, "shop", tmp_path / "other", loop.stack).role.hello()
    with pytest.raises(RemoteProtocolError, match=r"data\.alignment"):
        loop.server.role.join(hello, "shop")
    assert SERVER not in loop.names
