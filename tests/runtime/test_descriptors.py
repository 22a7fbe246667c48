"""No file descriptor is free: a role's own files have a reserve, and what cannot be opened is tried again."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from cvfl import descriptors
from cvfl.cli.errors import one_line
from cvfl.errors import ExhaustedError, OutputError, writing
from cvfl.runs.journal import Journal
from cvfl.runtime.checkpoint import Checkpoints

resource = pytest.importorskip("resource")
STATE = {"x": torch.arange(5)}


class Hoard:
    """Takes every descriptor that the soft limit leaves."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take_all(self) -> None:
        """None is left."""
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(os.open(os.devnull, os.O_RDONLY))

    def give_back(self) -> None:
        """All are free again."""
        while self.taken:
            os.close(self.taken.pop())


@pytest.fixture
def hoard() -> Iterator[Hoard]:
    """A low limit; whatever the test does, it ends."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, limits[1]))
    held = Hoard()
    yield held
    held.give_back()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "RESERVE", 0)
    monkeypatch.setattr(descriptors, "PATIENCE", 0.2)


def test_own_files_have_a_reserve(hoard: Hoard, tmp_path: Path) -> None:
    kept, journal = Checkpoints(tmp_path), Journal(tmp_path / "metrics.jsonl")
    kept.save(1, STATE)
    hoard.take_all()
    kept.save(2, STATE)
    journal.append({"round": 0})
    journal.back(0)
    assert kept.rounds() == [1, 2]
    assert kept.load(2)["x"].equal(STATE["x"])
    with pytest.raises(OSError, match="Too many open files"):
        os.open(os.devnull, os.O_RDONLY)


@pytest.mark.usefixtures("no_reserve")
def test_a_checkpoint_that_cannot_be_opened_is_not_absent(hoard: Hoard, tmp_path: Path) -> None:
    """What counts as absent is forgotten, and the run would go back."""
    kept = Checkpoints(tmp_path)
    kept.save(1, STATE)
    hoard.take_all()
    with pytest.raises(ExhaustedError, match=r"round-00000001.safetensors: cannot be read: Too many open files"):
        kept.load(1)
    with pytest.raises(ExhaustedError, match=r"checkpoint of round 2 cannot be written .Too many open files.; older"):
        kept.save(2, STATE)
    hoard.give_back()
    assert kept.rounds() == [1]


def test_it_is_tried_again(hoard: Hoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "RESERVE", 0)
    kept = Checkpoints(tmp_path)
    hoard.take_all()
    threading.Timer(0.5, hoard.give_back).start()
    began = time.monotonic()
    kept.save(1, STATE)
    assert time.monotonic() - began > 0.4
    assert kept.rounds() == [1]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EMFILE, ExhaustedError), (errno.ENFILE, ExhaustedError), (errno.ENOSPC, OutputError)]
)
def test_only_what_passes_has_the_exit_code_that_asks_for_a_restart(number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, writing(Path("state")):
        raise OSError(number, os.strerror(number))
    with pytest.raises(typer.Exit) as left, one_line():
        raise caught.value
    assert left.value.exit_code == (75 if kind is ExhaustedError else 2)


def test_a_bare_error_for_lack_of_descriptors_passes_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, one_line():
        raise OSError(errno.EMFILE, "Too many open files")
    assert left.value.exit_code == 75
    assert "error: [Errno 24] Too many open files" in capsys.readouterr().err
    with pytest.raises(OSError, match="no such"), one_line():
        raise OSError(errno.ENOENT, "no such file")


@pytest.mark.parametrize(("hard", "soft"), [(1024, 992), (256, 224), (40, 20), (1 << 20, 16352), (-1, 16352)])
def test_a_role_claims_what_the_system_gives(hard: int, soft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": (64, hard)}
    system = SimpleNamespace(
        RLIMIT_NOFILE="soft", RLIM_INFINITY=-1, getrlimit=limits.__getitem__, setrlimit=limits.__setitem__
    )
    monkeypatch.setattr(descriptors, "resource", system)
    descriptors.claim_descriptors()
    assert limits["soft"] == (soft, hard)
