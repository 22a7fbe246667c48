"""Downloads from a real server on this machine: whole, cut, continued, wrong, missing, and archives that mean harm."""

from __future__ import annotations

import hashlib
import io
import re
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from cvfl.data.sets import download as transport
from cvfl.data.sets import fetch as registry
from cvfl.data.sets.download import Download, fetch, unpack
from cvfl.data.sets.fetch import DATASETS, Dataset, fetch_dataset
from cvfl.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 4000
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Publisher(ThreadingHTTPServer):
    """Serves `files` by path; what comes before the name says how: /plain knows no ranges, /cut stops half way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {"data.bin": CONTENT}
        self.asked: list[tuple[str, str | None]] = []
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        how, _, name = self.path.strip("/").rpartition("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if how == "silent":
            self.server.released.wait(10)
            return
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and how != "plain" else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        begin = 0 if how == "confused" else start
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if start:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[begin : len(content) // 2 if how == "cut" else None])

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Publisher() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def at(publisher: Publisher, path: str = "data.bin", checksum: str = SHA256, login: str = "") -> Download:
    return Download(f"{publisher.address}/{path}", path.rpartition("/")[2], checksum, login)


@pytest.mark.parametrize("checksum", [SHA256, MD5])
def test_a_file_is_fetched_once_and_its_progress_is_told(publisher: Publisher, tmp_path: Path, checksum: str) -> None:
    told: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "folder"
    path = fetch(at(publisher, checksum=checksum), folder, lambda done, total: told.append((done, total))).path
    assert path == folder / "data.bin"
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert [file.name for file in folder.iterdir()] == ["data.bin"]
    fetch(at(publisher, checksum=checksum), folder)
    assert len(publisher.asked) == 1


def test_a_file_that_is_there_but_wrong_is_fetched_again(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"an old version")
    assert fetch(at(publisher), tmp_path).path.read_bytes() == CONTENT


def test_a_wrong_sum_is_named_beside_the_right_one_and_nothing_is_kept(publisher: Publisher, tmp_path: Path) -> None:
    wrong = f"sha256:{'0' * 64}"
    with pytest.raises(DataError) as refusal:
        fetch(at(publisher, checksum=wrong), tmp_path)
    assert SHA256 in str(refusal.value)
    assert wrong in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("path", "reason"), [("absent.bin", "HTTP 404"), ("silent/data.bin", "timed out")])
def test_what_cannot_be_had_is_to_be_put_in_place_by_hand(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.setattr(transport, "_TIMEOUT", 0.2)
    download = at(publisher, path)
    with pytest.raises(DataError) as refusal:
        fetch(download, tmp_path)
    text = str(refusal.value)
    assert reason in text
    assert f"download {download.address} by hand and put it at {tmp_path / download.file}" in text
    assert "\n" not in text


def test_no_network_says_what_to_do_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/data.bin"
        with pytest.raises(DataError, match=f"refused.*download {address} by hand"):
            fetch(Download(address, "data.bin", SHA256), tmp_path)
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch(Download("no address at all", "data.bin", SHA256), tmp_path)


def test_a_cut_fetch_is_continued_where_it_stopped(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cut after 512,000 of 1,024,000 bytes"):
        fetch(at(publisher, "cut/data.bin"), tmp_path)
    assert (tmp_path / "data.bin.part").stat().st_size == len(CONTENT) // 2
    assert not (tmp_path / "data.bin").exists()
    told: list[tuple[int, int]] = []
    assert fetch(at(publisher), tmp_path, lambda *step: told.append(step)).path.read_bytes() == CONTENT
    assert publisher.asked[-1] == ("/data.bin", "bytes=512000-")
    assert told[0][0] > 512_000
    assert told[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("how", ["plain", "confused"])
def test_a_server_without_ranges_sends_it_all_again(publisher: Publisher, tmp_path: Path, how: str) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(at(publisher, f"{how}/data.bin"), tmp_path).path.read_bytes() == CONTENT
    assert publisher.asked[0][1] == "bytes=1000-"


@pytest.mark.parametrize("part", [CONTENT + b"more", b"", b"x" * 1000])
def test_a_part_of_something_else_does_no_lasting_harm(publisher: Publisher, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "data.bin.part").write_bytes(part)
    if part.startswith(b"x"):  # continued, and found wrong at the end
        with pytest.raises(DataError, match="its sum is"):
            fetch(at(publisher), tmp_path)
    assert fetch(at(publisher), tmp_path).path.read_bytes() == CONTENT
    assert not (tmp_path / "data.bin.part").exists()


def test_a_complete_part_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(Download("http://127.0.0.1:9/data.bin", "data.bin", SHA256), tmp_path).path.read_bytes() == CONTENT


def test_where_the_publisher_gives_no_sum_it_is_written_down(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    fetch(at(publisher, checksum=""), tmp_path)
    assert publisher.asked == [("/data.bin", None)]  # a part that nobody can check is not continued
    assert (tmp_path / "data.bin.sha256").read_text() == f"{SHA256.removeprefix('sha256:')}  data.bin\n"
    fetch(at(publisher, checksum=""), tmp_path)
    assert len(publisher.asked) == 1


def test_a_written_sum_is_what_a_later_fetch_must_have(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data.bin.sha256").write_text(f"{'0' * 64}  data.bin\n")
    with pytest.raises(DataError, match=rf"its sum is {SHA256}, that in data.bin.sha256 is sha256:0{{64}}"):
        fetch(at(publisher, checksum=""), tmp_path)
    (tmp_path / "data.bin.sha256").write_text("")  # says nothing
    assert fetch(at(publisher, checksum=""), tmp_path).path.read_bytes() == CONTENT


def test_sums_are_read_from_the_publishers_own_list(publisher: Publisher, tmp_path: Path) -> None:
    digest = SHA256.removeprefix("sha256:")
    publisher.files["SHA256SUMS.txt"] = f"{'1' * 64} other.bin\n{digest} ./data.bin\n".encode()
    download = at(publisher, "set/data.bin", "sha256sums:SHA256SUMS.txt")
    assert fetch(download, tmp_path).path.read_bytes() == CONTENT
    assert [path for path, _ in publisher.asked] == ["/set/SHA256SUMS.txt", "/set/data.bin"]
    fetch(download, tmp_path)
    assert len(publisher.asked) == 2  # the list is kept beside the file
    with pytest.raises(DataError, match=r"SHA256SUMS.txt: it has no sum for third.bin"):
        fetch(at(publisher, "set/third.bin", "sha256sums:SHA256SUMS.txt"), tmp_path)
    with pytest.raises(DataError, match=r"set/GONE.txt by hand"):
        fetch(at(publisher, "set/third.bin", "sha256sums:GONE.txt"), tmp_path)


def test_a_file_behind_a_login_is_never_asked_for_only_checked(publisher: Publisher, tmp_path: Path) -> None:
    download = at(publisher, login="first sign the agreement")
    with pytest.raises(DataError, match=f"first sign the agreement, then download {download.address} by hand"):
        fetch(download, tmp_path)
    (tmp_path / "data.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match=rf"its sum is sha256:\w+, the publisher's is {SHA256}"):
        fetch(download, tmp_path)
    (tmp_path / "data.bin").write_bytes(CONTENT)
    assert fetch(download, tmp_path).path == tmp_path / "data.bin"
    listed = at(publisher, checksum="sha256sums:SHA256SUMS.txt", login="first sign the agreement")
    assert fetch(listed, tmp_path).path == tmp_path / "data.bin"  # without the list there is nothing to compare with
    (tmp_path / "SHA256SUMS.txt").write_text(f"{'0' * 64} data.bin\n")
    with pytest.raises(DataError, match="its sum is"):
        fetch(listed, tmp_path)
    assert not publisher.asked


def test_a_folder_that_cannot_be_is_one_line(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot be written .*; choose another folder"):
        fetch(at(publisher), tmp_path / "file")


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def zipped(path: Path, members: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return path


def test_archives_are_unpacked_with_their_folders(tmp_path: Path) -> None:
    unpack(tar(tmp_path / "a.tar.gz", [(tarfile.TarInfo("set-a/1.txt"), b"one")]), tmp_path / "out")
    unpack(zipped(tmp_path / "b.zip", {"adult.data": b"two", "deep/er.txt": b"three"}), tmp_path / "out")
    found = {str(file.relative_to(tmp_path / "out")): file.read_bytes() for file in (tmp_path / "out").rglob("*.*")}
    assert found == {"set-a/1.txt": b"one", "adult.data": b"two", "deep/er.txt": b"three"}


def test_archives_that_reach_outside_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner" / "out"
    bad = [
        tar(tmp_path / "up.tar.gz", [(tarfile.TarInfo("../escaped.txt"), b"x")]),
        tar(tmp_path / "link.tar.gz", [(link("way", "../.."), b""), (tarfile.TarInfo("way/escaped.txt"), b"x")]),
        tar(tmp_path / "absolute.tar.gz", [(link("way", "/etc"), b"")]),
        zipped(tmp_path / "up.zip", {"../escaped.txt": b"x"}),
        zipped(tmp_path / "absolute.zip", {str(tmp_path / "escaped.txt"): b"x"}),
        zipped(tmp_path / "link.zip", {"way": b"/etc"}, stat.S_IFLNK | 0o777),
    ]
    for archive in bad:
        with pytest.raises(DataError, match=rf"{archive.name}: .*do not use it"):
            unpack(archive, folder)
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_archives_that_burst_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge, name = bytes((1 << 26) + 1), "zeros"
    for bomb in (tar(tmp_path / "a.tar.gz", [(tarfile.TarInfo(name), huge)]), zipped(tmp_path / "b.zip", {name: huge})):
        with pytest.raises(DataError, match=rf"{bomb.name}: unpacks to more than 200 times its size"):
            unpack(bomb, tmp_path / "out")
        assert not (tmp_path / "out" / name).exists()
    monkeypatch.setattr("cvfl.data.sets.download.MOST_FILES", 2)
    many = zipped(tmp_path / "c.zip", {f"{n}": b"x" for n in range(3)})
    with pytest.raises(DataError, match=r"c.zip: unpacks to more .* or 2 files"):
        unpack(many, tmp_path / "out")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_broken_archive_is_one_line(tmp_path: Path, name: str) -> None:
    whole = tmp_path / name
    if name.endswith("zip"):
        zipped(whole, {"data": CONTENT})
    else:
        tar(whole, [(tarfile.TarInfo("data"), CONTENT)])
    for content in (b"", b"not an archive", whole.read_bytes()[:-40]):
        whole.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}: cannot be unpacked .*; remove it and fetch it again$"):
            unpack(whole, tmp_path / "out")


def test_a_data_set_is_fetched_checked_and_unpacked(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zipped(tmp_path / "small.zip", {"adult.data": b"39, State-gov\n"}).read_bytes()
    publisher.files["small.zip"] = archive
    digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    small = Dataset("", "", (at(publisher, "small.zip", digest), at(publisher, "gone.txt", "")), "adult.data")
    monkeypatch.setattr(registry, "DATASETS", MappingProxyType({"small": small}))
    with pytest.raises(DataError, match=r"gone.txt: cannot be fetched .*; the loader reads adult.data"):
        fetch_dataset("small", tmp_path)
    publisher.files["gone.txt"] = b"found"
    files = fetch_dataset("small", tmp_path)
    assert (tmp_path / "small" / "adult.data").read_bytes() == b"39, State-gov\n"
    assert [(file.path.name, file.checksum) for file in files] == [
        ("small.zip", digest),
        ("gone.txt", f"sha256:{hashlib.sha256(b'found').hexdigest()}"),
    ]


def test_the_known_data_sets_have_terms_and_well_formed_sums() -> None:
    names = "cifar10 physionet2012 mimic3 modelnet10 imagenet100 credit_default adult mfeat"
    assert list(DATASETS) == names.split()
    sums = {"": 2, "md5:[0-9a-f]{32}": 3, "sha256:[0-9a-f]{64}": 6, "sha256sums:SHA256SUMS.txt": 10}
    downloads = [download for dataset in DATASETS.values() for download in dataset.downloads]
    for pattern, count in sums.items():
        assert sum(re.fullmatch(pattern, download.checksum) is not None for download in downloads) == count
    assert len(downloads) == sum(sums.values())
    assert all(dataset.title and dataset.terms and dataset.layout for dataset in DATASETS.values())
    assert all(download.address.endswith("/" + download.file) for download in downloads)
    # Over plain HTTP only where the publisher has nothing else.
    assert [d.file for d in downloads if not d.address.startswith("https://")] == ["shaded_images.tar.gz"]


@pytest.mark.parametrize(
    ("name", "first"), [("mimic3", "credentialed account"), ("imagenet100", "account at image-net")]
)
def test_data_behind_a_login_say_what_a_person_must_do(tmp_path: Path, name: str, first: str) -> None:
    with pytest.raises(DataError, match=f"first .*{first}.* by hand and put it at .*{name}.*; the loader reads"):
        fetch_dataset(name, tmp_path)


def test_an_unknown_data_set_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        fetch_dataset("cifar", tmp_path)
