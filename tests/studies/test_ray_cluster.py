"""A study on a real Ray cluster of this machine: the same bits, errors in one line, stopped and taken up again."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cvfl.studies.ray_cluster import packed, unpacked
from study_files import study_toml

# All of the cluster stays on loopback: this is Ray's switch for "one machine only", whatever its name says.
LOOPBACK = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def test_a_folder_travels_as_bytes(tmp_path):
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "a" / "inner" / "x").write_bytes(b"new")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "old").write_bytes(b"old")
    unpacked(packed(tmp_path / "a"), tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").rglob("*")] == ["inner", "x"]
    assert (tmp_path / "b" / "inner" / "x").read_bytes() == b"new"
    assert packed(tmp_path / "nothing") == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "cvfl.cli", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False, env=LOOPBACK)


def write_study(folder: Path, rounds: int) -> Path:
    path = folder / "wine.toml"
    path.write_text(study_toml(rounds=rounds, seeds=1))
    return path


def hashes(out: Path) -> dict[str, object]:
    found = sorted((out / "runs").rglob("summary.json"))
    return {str(path.relative_to(out)): json.loads(path.read_text())["parameters"] for path in found}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The head of a cluster on loopback, with two places, in a folder with a short name as its sockets need."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    options = f"--head --block --port={port} --node-ip-address=127.0.0.1 --include-dashboard=false --num-cpus=2"
    limits = f"--disable-usage-stats --object-store-memory=100000000 --temp-dir={folder}"
    start = [*ray, "start", *options.split(), *limits.split()]
    head = subprocess.Popen(start, stdout=subprocess.DEVNULL, env=LOOPBACK)
    deadline = time.monotonic() + 120
    ready = [*ray, "health-check", "--address", f"127.0.0.1:{port}"]
    while subprocess.run(ready, check=False, capture_output=True, env=LOOPBACK).returncode:
        assert head.poll() is None
        assert time.monotonic() < deadline
        time.sleep(1)
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_same_bits_as_this_machine(address, tmp_path):
    study = write_study(tmp_path, 12)
    there = run("reproduce", study, "--out", tmp_path / "there", "--ray", address)
    assert there.returncode == 0, there.stdout + there.stderr
    here = run("reproduce", study, "--out", tmp_path / "here")
    assert here.returncode == 0, here.stderr
    assert len(hashes(tmp_path / "here")) == 2
    assert hashes(tmp_path / "there") == hashes(tmp_path / "here")
    assert (tmp_path / "there" / "report.html").exists()
    assert len(json.loads((tmp_path / "there" / "study.json").read_text())["machines"]) == 1


@needs_ray
@pytest.mark.slow
def test_ctrl_c_leaves_what_is_needed_to_go_on(address, tmp_path):
    study, out = write_study(tmp_path, 1_500), tmp_path / "out"
    arguments = ("reproduce", study, "--out", out, "--ray", address)
    child = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=LOOPBACK
    )
    deadline = time.monotonic() + 120
    while not list((out / "runs").rglob("state")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert "stopped" in child.communicate(timeout=120)[1]
    assert child.returncode == 130
    assert not hashes(out)
    assert list((out / "runs").rglob("state"))
    again = run(*arguments, "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert run("reproduce", study, "--out", tmp_path / "here").returncode == 0
    assert hashes(out) == hashes(tmp_path / "here")
    assert not list((out / "runs").rglob("state"))


@needs_ray
@pytest.mark.slow
def test_an_error_in_a_run_is_one_line(address, tmp_path):
    study = write_study(tmp_path, 12)
    study.write_text(study.read_text().replace("batch_size = 32", "batch_size = 100000"))
    found = run("reproduce", study, "--out", tmp_path / "out", "--ray", address)
    assert found.returncode == 2
    assert found.stderr.startswith("error: batch_size: 100000 is more than")
    assert "Traceback" not in found.stderr


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_said(tmp_path):
    found = run("reproduce", write_study(tmp_path, 12), "--out", tmp_path / "out", "--ray", "127.0.0.1:9")
    assert found.returncode == 2
    assert "error: --ray 127.0.0.1:9: no cluster to be reached" in found.stderr
    assert not (tmp_path / "out").exists()
