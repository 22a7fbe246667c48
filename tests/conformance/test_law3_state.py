"""Law 3 for what is on the disk: states that are damaged, lost, full or of another run cost rounds and no bit."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import SERVER, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.config.schema import RunConfig
from cvfl.errors import DataError, OutputError
from cvfl.runtime.checkpoint import Checkpoints

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
    whole = Checkpoints(tmp_path / role / "checkpoints").rounds()
    assert len(whole) > 1
    DAMAGE[damage](newest(tmp_path / role))
    (tmp_path / role / "checkpoints" / "round-00000099.partial").write_bytes(b"left over")
    assert Checkpoints(tmp_path / role / "checkpoints").rounds() == whole[:-1]
    loop.kill_all()
    same(loop.run(), in_process(config))


@pytest.mark.parametrize("lost", ["setup", "checkpoints", "all"])
@pytest.mark.parametrize("role", [SERVER, "shop"])
def test_a_lost_state_starts_again(role: str, lost: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path, rounds=4)
    loop = middle(config, tmp_path / "loop", 40)
    shutil.rmtree(tmp_path / "loop" / role if lost == "all" else tmp_path / "loop" / role / lost)
    loop.kill(role)
    same(loop.run(), in_process(config))


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_lines_that_were_lost_are_written_again(keep: int, tmp_path: Path) -> None:
    """A power cut may lose lines of the journal that a checkpoint already counts on."""
    config = settings(rounds=8)
    loop = middle(config, tmp_path, 44)
    journal = tmp_path / SERVER / "metrics.jsonl"
    text = journal.read_text().splitlines(keepends=True)
    assert len(text) > 3
    journal.write_text("".join(text[:keep]) + text[keep][:20])
    loop.kill_all()
    same(loop.run(), in_process(config))


def test_the_state_of_another_configuration_is_not_used(tmp_path: Path) -> None:
    middle(settings(), tmp_path)
    config = settings(seed=4, compressor="identity")
    same(Loop(config, tmp_path).run(), in_process(config))


@pytest.mark.parametrize(
    "own", [{"model": {"width": 3}}, {"model": {"name": "linear", "width": 4}}, {"compressor": "scalar:bits=2"}]
)
def test_a_party_that_changes_its_mind_starts_the_run_again(own: dict[str, Any], tmp_path: Path) -> None:
    loop = middle(settings(), tmp_path)
    loop.config = settings(party={"bank": own})
    loop.kill_all()
    same(loop.run(), in_process(loop.config))


@contextmanager
def full_disk(room: int = 100) -> Iterator[None]:
    """No file can grow beyond `room` bytes: writing fails in the system itself, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    config = settings(every=1)
    loop = middle(config, tmp_path, 30)
    before = {name: Checkpoints(tmp_path / name / "checkpoints").rounds() for name in (SERVER, *loop.names)}
    assert all(before.values())
    with full_disk(), pytest.raises(OutputError) as caught:
        loop.run()
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    for name, rounds in before.items():
        assert set(rounds) <= set(Checkpoints(tmp_path / name / "checkpoints").rounds())
    assert not list(tmp_path.rglob("*.partial"))
    loop.kill_all()
    same(loop.run(), in_process(config))


@pytest.mark.parametrize("change", ["fewer rows", "another order"])
def test_a_table_that_is_another_one_after_a_restart(change: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    loop = middle(table_settings(tmp_path), tmp_path / "loop")
    header, *rows = (tmp_path / "shop.csv").read_text().splitlines()
    rows = rows[:-10] if change == "fewer rows" else rows[::-1]
    (tmp_path / "shop.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(DataError, match=r"shop.csv: this is not the table that the run began with"):
        loop.kill("shop")
