"""What is remembered of rows: the same in memory and on disk, after going back, with torn and with damaged files."""

from __future__ import annotations

import gc
import math
import os
import resource
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cvfl import memory
from cvfl.errors import OutputError
from cvfl.memory import PIECES, InMemory, Log, Memory, OnDisk, Values, is_whole


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def order(total: int, n: int, seed: int) -> Tensor:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:n]


def same(one: Tensor, other: Tensor) -> bool:
    """To the bit, NaN included."""
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def epochs(values: Values, count: int, first: int = 0, batch: int = 7) -> None:
    """Put every row once an epoch, in batches, in a new order each time, as training does."""
    total = values.shape[0]
    for epoch in range(first, first + count):
        for at, rows in enumerate(torch.split(order(total, total, epoch), batch)):
            values.put(rows, numbers(len(rows), *values.shape[1:], seed=epoch * total + at))


STEPS = st.lists(st.tuples(st.sampled_from(["put", "get", "all", "put all", "back"]), st.integers(0, 99)))


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([(1, 1), (5, 3), (40, 2), (23, 2, 3), (9, 0), (0, 4)]), st.sampled_from([0.0, math.nan]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_and_disk_are_alike(
    dtype: torch.dtype, steps: list[tuple[str, int]], shape: tuple[int, ...], fill: float
) -> None:
    """Whatever is put and asked for in whatever order, also after going back to any state before."""
    with TemporaryDirectory() as folder:
        limited, total = Memory(0, Path(folder)), shape[0]
        disk: Values = OnDisk(Path(folder), shape, dtype, fill)
        plain = torch.full(shape, fill, dtype=dtype)
        states = [(disk.state(), plain.clone())]
        for at, (step, n) in enumerate(steps):
            rows = order(total, n % (total + 1), n)
            match step:
                case "put":
                    values = numbers(len(rows), *shape[1:], seed=at, dtype=dtype)
                    disk.put(rows, values)
                    plain[rows] = values
                case "put all":
                    plain = numbers(*shape, seed=at, dtype=dtype)
                    disk.put(None, plain)
                case "get":
                    asked = rows.repeat(2)  # also more than once, and many at a time
                    assert same(disk.get(asked), plain[asked])
                case "all":
                    assert same(disk.get(), plain)
                    states.append((disk.state(), plain.clone()))
                case "back":
                    state, plain = states[n % len(states)][0], states[n % len(states)][1].clone()
                    disk = limited.restored(state, fill)
        assert same(disk.get(), plain)


def test_the_place_follows_todays_limit(tmp_path: Path) -> None:
    values = numbers(20, 4)
    disk, held = Memory(319, tmp_path).restored(values), Memory(320, tmp_path).restored(values)
    assert (type(disk), type(held)) == (OnDisk, InMemory)
    for limit, kind in ((0, OnDisk), (math.inf, InMemory)):
        for state in (disk.state(), held.state()):
            again = Memory(limit, tmp_path).restored(state)
            assert type(again) is kind
            assert same(again.get(), values)
    held.put(torch.tensor([3]), torch.zeros(1, 4))
    assert values[3].all(), "a state is not changed by who goes on from it"


def test_the_limit_is_for_all_values_together_and_room_comes_back(tmp_path: Path) -> None:
    limited = Memory(800, tmp_path)
    kinds = [limited.values((10, 10), torch.float32), limited.values((10, 10), torch.float32)]
    kinds.append(limited.values((1, 1), torch.float32))
    assert [type(one) for one in kinds] == [InMemory, InMemory, OnDisk]
    del kinds[0]
    gc.collect()
    assert isinstance(limited.values((10, 10), torch.float32), InMemory)


def test_without_a_folder_there_is_a_temporary_one() -> None:
    limited = Memory(0)
    values = limited.values((30, 2), torch.float32)
    values.put(None, numbers(30, 2))
    folder = limited.folder
    assert len(list(folder.glob("*.rows"))) == PIECES
    del values, limited
    gc.collect()
    assert not folder.exists()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    OnDisk(tmp_path / "new", (3, 2), torch.float32).put(None, numbers(3, 2))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o600}


def test_a_file_by_hand(tmp_path: Path) -> None:
    """A record is the row, 8 bytes, and its values; the index takes 4 bytes a row."""
    values = OnDisk(tmp_path, (16, 2), torch.float32)
    values.put(torch.tensor([5, 1]), torch.tensor([[1.0, -2.0], [0.5, 0.0]]))
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().hex() == "05000000000000000000803f000000c0" + "01000000000000000000003f00000000"
    log = values.state()
    assert (log.shape, log.dtype, [piece.length for piece in log.pieces]) == ((16, 2), "float32", [32])
    assert values._place.nbytes == 4 * 16


def test_there_are_never_more_than_two_epochs_on_disk(tmp_path: Path) -> None:
    """Nothing is copied for it: a piece is removed when its last row was put again."""
    values = OnDisk(tmp_path, (160, 2), torch.float32)
    for epoch in range(6):
        epochs(values, 1, epoch)
        assert len(list(tmp_path.iterdir())) <= 2 * PIECES + 1
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * 160 * 16


def test_a_piece_that_a_state_needs_stays(tmp_path: Path) -> None:
    values = OnDisk(tmp_path, (160, 2), torch.float32)
    epochs(values, 1)
    state, then = values.state(), values.get()
    epochs(values, 3, 1)
    assert not same(values.get(), then)
    assert same(Memory(0, tmp_path).restored(state).get(), then)
    needed = {piece.name for piece in values.state().pieces}
    assert len(needed) <= 2 * PIECES + 1
    assert not needed & {piece.name for piece in state.pieces}


def test_who_goes_on_from_a_state_does_not_touch_its_files(tmp_path: Path) -> None:
    """So that going back to it once more is possible, whatever happens meanwhile."""
    values = OnDisk(tmp_path, (40, 3), torch.float32)
    epochs(values, 2)
    state, then = values.state(), values.get()
    before = {piece.name: (tmp_path / piece.name).read_bytes() for piece in state.pieces}
    epochs(Memory(0, tmp_path).restored(state), 3, 9)
    assert before == {piece.name: (tmp_path / piece.name).read_bytes() for piece in state.pieces}
    epochs(values, 1, 5)  # even the one that wrote it only appends
    for name, data in before.items():
        assert (tmp_path / name).read_bytes().startswith(data)
    assert same(Memory(0, tmp_path).restored(state).get(), then)


@pytest.mark.parametrize("tail", [b"\xff" * 5, b"\0" * 1000])
def test_a_torn_tail_does_not_count(tmp_path: Path, tail: bytes) -> None:
    values = OnDisk(tmp_path, (40, 3), torch.float32)
    values.put(order(40, 3, 0), numbers(3, 3))
    state, then = values.state(), values.get()
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(tail)
    assert is_whole(path, state.pieces[0])
    assert same(Memory(0, tmp_path).restored(state).get(), then)


def test_every_damage_is_noticed(tmp_path: Path) -> None:
    values = OnDisk(tmp_path, (40, 3), torch.float32)
    values.put(order(40, 5, 0), numbers(5, 3))
    (piece,) = (state := values.state()).pieces
    path = tmp_path / piece.name
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for data in damaged:
        path.write_bytes(data)
        assert not is_whole(path, piece)
        with pytest.raises(OutputError, match=r"is damaged|ends too early"):
            Memory(0, tmp_path).restored(state)
    path.unlink()
    for reads in (lambda: is_whole(path, piece), lambda: Memory(0, tmp_path).restored(state)):
        with pytest.raises(OutputError, match="cannot be read: No such file"):
            reads()


def test_a_file_that_is_cut_off_while_it_is_used_is_one_line(tmp_path: Path) -> None:
    values = OnDisk(tmp_path, (40, 3), torch.float32)
    values.put(torch.arange(5), numbers(5, 3))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(OutputError, match=r"\.rows: ends too early"):
        values.get(torch.arange(5))
    with pytest.raises(OutputError, match=r"\.rows: ends too early"):
        values.get()


def test_a_full_disk_is_one_line_and_what_was_known_stays(tmp_path: Path) -> None:
    values = OnDisk(tmp_path, (40, 3), torch.float32)
    values.put(torch.arange(3), numbers(3, 3))
    state, then = values.state(), values.get()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70, hard))
    try:
        with pytest.raises(OutputError, match="cannot be written: File too large"):
            values.put(torch.arange(2), numbers(2, 3, seed=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(values.get(), then)
    assert values.state() == state
    values.put(torch.arange(2), numbers(2, 3, seed=1))
    then = then.clone()
    then[:2] = numbers(2, 3, seed=1)
    assert same(values.get(), then)
    assert same(Memory(0, tmp_path).restored(values.state()).get(), then)


def test_a_file_that_cannot_be_made_is_part_of_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    values = OnDisk(tmp_path / "file", (40, 3), torch.float32)
    with pytest.raises(OutputError, match=r"cannot be written: (File exists|Not a directory)"):
        values.put(torch.arange(3), numbers(3, 3))
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_made", lambda path, flags: os.open(tmp_path / "none" / "there", flags))
        with pytest.raises(OutputError, match="cannot be written: No such file"):
            values.put(torch.arange(3), numbers(3, 3))
    assert values.state().pieces == ()
    values.put(torch.arange(3), numbers(3, 3))
    assert same(Memory(0, tmp_path / "file").restored(values.state()).get(), values.get())


def test_many_restarts_leave_many_pieces_and_the_index_grows_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins a piece: places that no longer fit into 4 bytes get 8."""
    values: Values = OnDisk(tmp_path, (40, 3), torch.float32)
    plain = torch.zeros(40, 3)
    monkeypatch.setattr(np, "iinfo", lambda dtype: type("Small", (), {"max": 60}))
    for at in range(20):
        rows, new = order(40, 3, at), numbers(3, 3, seed=at)
        values.put(rows, new)
        plain[rows] = new
        values = Memory(0, tmp_path).restored(values.state())
        assert same(values.get(), plain)
    assert isinstance(values, OnDisk)
    assert isinstance(values.state(), Log)
    assert values._place.dtype == np.int64
    assert len(values.state().pieces) > 12
