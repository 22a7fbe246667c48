"""Law 3 for what is on the disk: states that are damaged, lost, full or of another run cost rounds and no bit."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import SERVER, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, rows_apart, same
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, DataError, OutputError, RemoteProtocolError, check_writable
from cvfl.federation.roles import PartyRun
from cvfl.runtime.checkpoint import CheckpointError
from cvfl.wire.control import Begin, Recall, Settle, encode_control

pytestmark = pytest.mark.usefixtures("tidy")


def middle(config: RunConfig, folder: Path, frames: int = 40) -> Loop:
    loop = Loop(config, folder)
    while loop.delivered < frames:
        loop.step()
    return loop


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("round-*.safetensors"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "one bit": flip,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xff" * 5000),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("role", [SERVER, "bank"])
def test_a_damaged_checkpoint_costs_rounds_and_no_bit(role: str, damage: str, tmp_path: Path) -> None:
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    whole = loop.kept(role)
    assert len(whole) > 1
    DAMAGE[damage](newest(loop.state(role)))
    (loop.state(role) / "checkpoints" / "round-00000099.partial").write_bytes(b"left over")
    assert loop.kept(role) == whole[:-1]
    loop.kill_all()
    same(loop.run(), in_process(config))


LOST = ("checkpoints", "")


@pytest.mark.parametrize("role", [SERVER, "shop"])
def test_checkpoints_without_their_setup_are_of_no_use(role: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = middle(table_settings(tmp_path), tmp_path / "loop", 40)
    shutil.rmtree(loop.state(role) / "setup")
    with pytest.raises(CheckpointError, match=r"checkpoints without the setup .* begin anew with --restart"):
        loop.kill(role)


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("role", [SERVER, "shop"])
def test_a_state_that_is_lost_early_costs_rounds_and_no_bit(role: str, lost: str, tmp_path: Path) -> None:
    """No more rounds than lie between two checkpoints."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=4)
    loop = Loop(config, tmp_path / "loop")
    while not all(loop.kept(name) for name in (SERVER, "bank", "shop")):
        loop.step()
    shutil.rmtree(loop.state(role) / lost)
    loop.kill(role)
    # Rows may be found again by the alignment that was kept, and then no id travels.
    same(rows_apart(loop.run()), rows_apart(in_process(config)))


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("role", [SERVER, "shop"])
def test_a_state_that_is_lost_later_makes_nobody_else_give_up_its_own(role: str, lost: str, tmp_path: Path) -> None:
    """The run stops with one line, with all that others have kept, and goes on when the state is there again."""
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=8)
    loop = middle(config, tmp_path / "loop", 60)
    others = [name for name in (SERVER, "bank", "shop") if name != role]
    before, place = {name: loop.kept(name) for name in others}, loop.state(role) / lost
    assert min(map(max, before.values())) > config.network.checkpoint_every
    shutil.move(place, tmp_path / "lost")
    loop.kill_all()
    with pytest.raises(RemoteProtocolError, match=r"has kept .* begin anew with --restart at every role"):
        loop.run()
    assert {name: loop.kept(name) for name in others} == before
    loop.close()
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(tmp_path / "lost", place)
    same(Loop(config, tmp_path / "loop").run(), in_process(config))


def test_begun_anew_by_all_the_old_state_is_put_aside(tmp_path: Path) -> None:
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    before = {role: sorted(path.name for path in loop.state(role).rglob("round-*")) for role in (SERVER, *loop.names)}
    loop.restart_all()
    assert all(loop.kept(role) == [] for role in (SERVER, *loop.names))
    for role, files in before.items():
        aside = loop.state(role).with_name(f"{loop.state(role).name}.old-1")
        assert sorted(path.name for path in aside.rglob("round-*")) == files
    same(loop.run(), in_process(config))


def test_a_server_that_begins_anew_alone_takes_nobody_along(tmp_path: Path) -> None:
    """Neither by a new run, nor by sending everyone back to its start."""
    loop = middle(settings(rounds=8), tmp_path, 44)
    kept = loop.kept("bank")
    bank = loop.parties["bank"].role
    list(bank.receive(encode_control(Recall(session=99), 0)))
    settle = Settle(session=99, run="ab", m=2, how="as-is")
    with pytest.raises(RemoteProtocolError, match=r"bank: from the server: the run is to begin anew; round 6 is kept"):
        list(bank.receive(encode_control(settle, 0)))
    list(bank.receive(encode_control(Recall(session=100), 0)))
    list(bank.receive(encode_control(settle.model_copy(update={"session": 100, "run": bank._run, "how": "known"}), 0)))
    begin = Begin(session=100, m=2, t0=0, facts=loop.server.role.facts)
    with pytest.raises(RemoteProtocolError, match=r"bank: from the server: the run is to begin anew; round 6 is kept"):
        list(bank.receive(encode_control(begin, 0)))
    assert loop.kept("bank") == kept


@pytest.mark.parametrize("keep", [0, 1, 2, 4])
def test_lines_that_were_lost_are_written_again(keep: int, tmp_path: Path) -> None:
    """A power cut may lose lines of the journal that a checkpoint already counts on."""
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    journal = loop.state(SERVER) / "metrics.jsonl"
    text = journal.read_text().splitlines(keepends=True)
    assert len(text) > 4
    journal.write_text("".join(text[:keep]) + text[keep][:20])
    if keep < min(loop.kept("bank")):
        loop.restart_all()
    else:
        loop.kill_all()
    same(loop.run(), in_process(config))


def test_the_state_of_another_configuration_is_not_used_and_not_touched(tmp_path: Path) -> None:
    """A mistake in a term costs nothing: with the right one the run goes on."""
    first = middle(settings(), tmp_path)
    kept = {role: first.kept(role) for role in (SERVER, *first.names)}
    first.close()
    config = settings(seed=4, compressor="identity")
    same(Loop(config, tmp_path).run(), in_process(config))
    again = Loop(settings(), tmp_path)
    assert {role: again.kept(role) for role in kept} == kept
    again.folder = tmp_path / "again"
    again.folder.mkdir()
    same(again.run(), in_process(settings()))


@pytest.mark.parametrize(
    "own", [{"model": {"width": 3}}, {"model": {"name": "linear", "width": 4}}, {"compressor": "scalar:bits=2"}]
)
def test_a_party_that_changes_its_mind_begins_anew_with_the_others(own: dict[str, Any], tmp_path: Path) -> None:
    loop = middle(settings(), tmp_path)
    loop.config = settings(party={"bank": own})
    loop.kill_all()
    with pytest.raises(RemoteProtocolError, match=r"^bank has kept nothing and the server round 4"):
        loop.run()
    loop.restart_all()
    same(loop.run(), in_process(loop.config))


def test_two_processes_do_not_share_a_state(tmp_path: Path) -> None:
    loop = Loop(settings(), tmp_path)
    with pytest.raises(ConfigError, match="bank is in use by another process"):
        PartyRun(settings(), "bank", tmp_path / "bank", loop.stack)
    same(loop.run(), in_process(settings()))


def test_a_checkpoint_of_another_role_or_run_is_refused(tmp_path: Path) -> None:
    loop = middle(settings(), tmp_path / "one")
    shutil.copy(newest(loop.state("hospital")), newest(loop.state("bank")))
    with pytest.raises(CheckpointError, match=r"a checkpoint of hospital in run [0-9a-f]+, not of bank in run"):
        loop.kill("bank")
    other = middle(settings(), tmp_path / "other")
    shutil.copy(newest(loop.state("hospital")), newest(other.state("hospital")))
    with pytest.raises(CheckpointError, match=r"a checkpoint of hospital in run [0-9a-f]+, not of hospital in run"):
        other.kill("hospital")


def test_nobody_else_can_read_a_state(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        loop = middle(settings(), tmp_path)
    finally:
        os.umask(old)
    for role in (SERVER, *loop.names):
        assert stat.S_IMODE((tmp_path / role).stat().st_mode) == 0o700


@contextmanager
def full_disk(room: int = 100) -> Iterator[None]:
    """No file can grow beyond `room` bytes: writing fails in the system itself, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_found_at_the_start(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OutputError, match="run: cannot be written: File too large"):
        check_writable(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_writable(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    config = settings(every=1)
    loop = middle(config, tmp_path, 30)
    before = {name: loop.kept(name) for name in (SERVER, *loop.names)}
    assert all(before.values())
    with full_disk(), pytest.raises(OutputError) as caught:
        loop.run()
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    for name, rounds in before.items():
        assert set(rounds) <= set(loop.kept(name))
    assert not list(tmp_path.rglob("*.partial"))
    loop.kill_all()
    same(loop.run(), in_process(config))


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "fewer rows": lambda rows: rows[:-10],
    "another order": lambda rows: rows[::-1],
    "one value": lambda rows: [*rows[:40], rows[40].replace(",", ",Bonn", 1), *rows[41:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_is_another_one_after_a_restart(change: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = middle(table_settings(tmp_path), tmp_path / "loop")
    header, *rows = (tmp_path / "shop.csv").read_text().splitlines()
    (tmp_path / "shop.csv").write_text("\n".join([header, *CHANGES[change](rows)]) + "\n")
    with pytest.raises(DataError, match=r"shop.csv: this is not the table that the run began with"):
        loop.kill("shop")
