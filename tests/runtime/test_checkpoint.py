"""A role's state on disk: what goes in comes out, and damage of any kind is noticed."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from cvfl.errors import OutputError
from cvfl.memory import PIECES, Log, Memory, Piece
from cvfl.runtime.checkpoint import KEEP, CheckpointError, Checkpoints

STATE: dict[str, Any] = {
    "t0": 7,
    "loss": 0.1 + 0.2,
    "nothing": None,
    "yes": True,
    "nested": {1: (2, [3.5, "text"]), "bytes": b"\0\xffcvfl", 2: ()},
    "weights": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "half": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(0, dtype=torch.float64),
    "flat": torch.empty(3, 0),
    "no bytes": b"",
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def kept(folder: Path, *rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for t0 in rounds:
        checkpoints.save(t0, STATE | {"t0": t0})
    return checkpoints


def path(folder: Path, t0: int) -> Path:
    return folder / f"round-{t0:08d}.safetensors"


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    kept(tmp_path, 7)
    assert equal(Checkpoints(tmp_path).load(7), STATE)


def test_tensors_that_share_memory_or_are_views(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"all": base, "column": base[:, 1], "turned": base.T, "same": base}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state)
    assert equal(checkpoints.load(1), {key: value.clone() for key, value in state.items()})


def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    Checkpoints(tmp_path).save(1, {"optimizer": optimizer.state_dict(), "model": OrderedDict(weight=weight)})
    found = Checkpoints(tmp_path).load(1)
    assert equal(found["optimizer"], optimizer.state_dict())
    assert torch.equal(found["model"]["weight"], weight.detach())


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_any_state_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("state"))
    try:
        checkpoints.save(0, {"value": value})
    except UnicodeEncodeError:
        pytest.fail("a text that JSON can hold")
    assert equal(checkpoints.load(0), {"value": value})


def test_what_cannot_be_kept_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a state holds set"):
        Checkpoints(tmp_path).save(0, {"value": {1, 2}})
    assert Checkpoints(tmp_path).rounds() == []


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = kept(tmp_path, 10, 20, 30, 40, 50)
    assert checkpoints.rounds() == [30, 40, 50]
    assert len(list(tmp_path.iterdir())) == KEEP


def test_a_future_that_is_given_up(tmp_path: Path) -> None:
    checkpoints = kept(tmp_path, 1, 2, 3)
    checkpoints.drop_after(1)
    assert checkpoints.rounds() == [1]
    checkpoints.drop_after(-1)
    assert checkpoints.rounds() == []


def test_going_back_does_not_cost_what_is_older(tmp_path: Path) -> None:
    """A round that is saved again after a restart pushes nothing out but what is older than the newest few."""
    checkpoints = kept(tmp_path, 1, 2, 3, 2)
    assert checkpoints.rounds() == [1, 2, 3]


@pytest.mark.parametrize("damaged", ["", ".again"])
@pytest.mark.parametrize("content", [None, b"", b"torn"])
def test_what_is_kept_twice_survives_damage_to_either_file(damaged: str, content: bytes | None, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"n": 7}, twice=True)
    file = tmp_path / f"round-00000007{damaged}.safetensors"
    file.unlink() if content is None else file.write_bytes(content)
    assert checkpoints.rounds() == [7]
    assert checkpoints.load(7) == {"n": 7}
    checkpoints.save(8, {"n": 8}, twice=True)
    checkpoints.drop_after(6)
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    checkpoints = kept(tmp_path, 1, 2)
    whole = path(tmp_path, 2).read_bytes()
    for size in range(0, len(whole), 37):
        path(tmp_path, 2).write_bytes(whole[:size])
        assert checkpoints.rounds() == [1]
    with pytest.raises(CheckpointError, match="there is no whole checkpoint of round 2"):
        checkpoints.load(2)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """Or changes nothing of the state: padding of the header."""
    checkpoints = kept(tmp_path, 1)
    whole = path(tmp_path, 1).read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path(tmp_path, 1).write_bytes(damaged)
        assert checkpoints.rounds() == [] or equal(checkpoints.load(1), STATE | {"t0": 1})


FILES: dict[str, bytes] = {
    "empty": b"",
    "text": b"garbage",
    "a huge header": b"\xff" * 1000,
    "no header": b"\0" * 8,
    "no state": save({}),
    "no checksum": save({"0": torch.ones(2)}, {"state": "{}"}),
    "a wrong checksum": save({}, {"state": "not JSON", "sha256": "0"}),
}


@pytest.mark.parametrize("content", FILES)
def test_other_files_count_as_absent(content: str, tmp_path: Path) -> None:
    checkpoints = kept(tmp_path, 1)
    path(tmp_path, 2).write_bytes(FILES[content])
    assert checkpoints.rounds() == [1]


def test_strange_names_are_left_alone(tmp_path: Path) -> None:
    names = ["round-00000009.partial", "round-9.safetensors", "notes.txt", "round-00000003.safetensors.bak"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "round-00000004.safetensors").mkdir()
    checkpoints = kept(tmp_path, 1, 2)
    assert checkpoints.rounds() == [1, 2]
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_a_leftover_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "round-00000001.partial").write_bytes(b"half")
    assert equal(kept(tmp_path, 1).load(1)["t0"], 1)
    assert not (tmp_path / "round-00000001.partial").exists()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """The system refuses to make a file larger, as it does when the disk is full."""
    checkpoints = kept(tmp_path, 1)
    before = path(tmp_path, 1).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            checkpoints.save(2, STATE)
        with pytest.raises(CheckpointError):
            checkpoints.save(1, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == (
        f"{tmp_path}: the checkpoint of round 2 cannot be written ({os.strerror(errno.EFBIG)}); older ones stay"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["round-00000001.safetensors"]
    assert path(tmp_path, 1).read_bytes() == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_any_step_of_writing(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = kept(tmp_path, 1)
    place = os if call == "fsync" else Path

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(place, call, fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.save(2, STATE)
    monkeypatch.undo()
    assert checkpoints.rounds() == [1]
    assert not list(tmp_path.glob("*.partial"))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot be written: Not a directory"):
        Checkpoints(tmp_path / "file" / "state")


def rows_of(checkpoints: Checkpoints) -> set[str]:
    return {file.name for file in checkpoints.logs.iterdir()}


def test_what_is_known_on_disk_is_named_not_copied(tmp_path: Path) -> None:
    """A checkpoint needs the pieces as far as they were written, and no more bytes for them."""
    checkpoints = Checkpoints(tmp_path)
    known = Memory(0, checkpoints.logs).values((4000, 8), torch.float32)
    known.put(None, torch.ones(4000, 8))
    for t0 in (1, 2, 3):
        known.put(torch.arange(t0, 100), torch.full((100 - t0, 8), float(t0)))
        checkpoints.save(t0, {"deep": [{"known": known.state()}]})
        assert path(tmp_path, t0).stat().st_size < 4000
    for t0 in (3, 1, 2):
        state = Checkpoints(tmp_path).load(t0)["deep"][0]["known"]
        found = Memory(0, checkpoints.logs).restored(state).get()
        expected = torch.ones(4000, 8)
        for before in range(1, t0 + 1):
            expected[before:100] = before
        assert torch.equal(found, expected)


def test_pieces_that_no_checkpoint_needs_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    known = Memory(0, checkpoints.logs).values((80, 2), torch.float32)
    for t0 in range(12):
        known.put(None, torch.full((80, 2), float(t0)))
        checkpoints.save(t0, {"known": known.state()})
        needed = {piece.name for kept in checkpoints.rounds() for piece in checkpoints.load(kept)["known"].pieces}
        assert rows_of(checkpoints) == needed
    assert len(rows_of(checkpoints)) == KEEP * PIECES
    for t0 in checkpoints.rounds():
        assert set(Memory(0, checkpoints.logs).restored(checkpoints.load(t0)["known"]).get().unique().tolist()) == {t0}
    again = Checkpoints(tmp_path)  # a process that starts has to find out what is needed
    again.save(12, {})
    assert again.rounds() == [10, 11, 12]
    assert len(rows_of(again)) == 2 * PIECES
    again.drop_after(10)
    again.save(11, {})
    assert len(rows_of(again)) == PIECES


PIECE_DAMAGE = {
    "gone": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "one bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
}


@pytest.mark.parametrize("damage", PIECE_DAMAGE)
@pytest.mark.parametrize("again", [False, True])
def test_a_checkpoint_whose_pieces_are_damaged_counts_as_absent(damage: str, again: bool, tmp_path: Path) -> None:
    """In a new process, and in the one that has found it whole a moment ago; others are not touched by it."""
    checkpoints = Checkpoints(tmp_path)
    known = Memory(0, checkpoints.logs).values((80, 2), torch.float32)
    for t0 in (1, 2):
        known.put(torch.arange(t0), torch.full((t0, 2), float(t0)))
        checkpoints.save(t0, {"known": known.state()})
        known = Memory(0, checkpoints.logs).restored(known.state())  # which begins a piece of its own
    assert checkpoints.rounds() == [1, 2]
    first, second = (checkpoints.load(t0)["known"].pieces for t0 in (1, 2))
    (new,) = set(second) - set(first)
    time.sleep(0.02)  # a clock of files may tick slowly
    PIECE_DAMAGE[damage](checkpoints.logs / new.name)
    found = Checkpoints(tmp_path) if again else checkpoints
    assert found.rounds() == [1]
    with pytest.raises(CheckpointError, match="there is no whole checkpoint of round 2"):
        found.load(2)
    found.save(3, {})
    assert found.rounds() == [1, 3]


def test_pieces_are_on_the_disk_before_the_checkpoint_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, synced = Checkpoints(tmp_path), list[str]()
    known = Memory(0, checkpoints.logs).values((80, 2), torch.float32)
    original = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        original(handle)

    monkeypatch.setattr(os, "fsync", noted)
    for t0 in (1, 2):
        known.put(torch.arange(30), torch.ones(30, 2))
        checkpoints.save(t0, {"known": known.state()})
        names = [piece.name for piece in checkpoints.load(t0)["known"].pieces]
        assert {*synced[: synced.index("rows")]} <= {*names}
        assert names[-1] in synced[: synced.index("rows")]
        assert synced.index("rows") < synced.index(f"round-{t0:08d}.partial")
        synced.clear()
    checkpoints.save(3, {"known": known.state()})
    assert synced[0] == "round-00000003.partial"  # nothing is new


def test_a_piece_that_cannot_be_brought_to_the_disk_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = kept(tmp_path, 1)
    known = Memory(0, checkpoints.logs).values((80, 2), torch.float32)
    known.put(torch.arange(30), torch.ones(30, 2))

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=r"round 2 cannot be written \(Input/output error\); older ones stay"):
        checkpoints.save(2, {"known": known.state()})
    monkeypatch.undo()
    assert checkpoints.rounds() == [1]


def test_a_piece_of_another_name_is_none(tmp_path: Path) -> None:
    """A checkpoint reads nothing outside its folder."""
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / "secret").write_bytes(b"")
    empty = hashlib.sha256().hexdigest()
    checkpoints.logs.mkdir()
    checkpoints.save(1, {"known": Log((1, 1), "float32", (Piece("../secret", 0, empty),))})
    assert path(tmp_path, 1).exists()
    assert checkpoints.rounds() == []
