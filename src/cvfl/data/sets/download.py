"""Bring one file from its publisher to its place, checked against its sum, and unpack archives safely.

    address --HTTP--> FILE.part --sum is right--> FILE

Where a person has to register, or there is no network, the error says which file to put where; a file put there by hand
is checked and used like a fetched one.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

from cvfl.data.sets import Progress
from cvfl.errors import DataError

_TIMEOUT = 30.0
_CHUNK = 1 << 18
_LIST = "sha256sums:"
MOST_TIMES, MOST_FILES, SMALL = 200, 1_000_000, 1 << 26
"""What an archive may unpack to: text packs well, but not that well; and what is small does no harm."""


@dataclass(frozen=True)
class Download:
    """A file at its publisher's.

    `checksum` is "sha256:..." or "md5:...", or "sha256sums:LIST" for the list of sums that lies beside the file, or ""
    where the publisher gives none: then the sha256 of what came is written to FILE.sha256, and a FILE.sha256 that is
    there already (say, from an earlier fetch elsewhere) is what the file must have. `login` is what a person must do
    before the file can be had; such a file is never fetched, only checked.
    """

    address: str
    file: str
    checksum: str
    login: str = ""


@dataclass(frozen=True)
class Fetched:
    """A file in its place, and the sum that it was found to have."""

    path: Path
    checksum: str


def fetch(download: Download, folder: Path, on_progress: Progress = lambda done, total: None) -> Fetched:
    """The file in this folder, fetched unless it is there with the right sum; an interrupted fetch is continued."""
    target = folder / download.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        expected = _expected(download, target)
        present = _present(download, target, expected)
        if present is None:
            present = _download(download, target, expected, on_progress)
        if not download.checksum:
            _beside(target).write_text(f"{present.checksum.partition(':')[2]}  {target.name}\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error}); choose another folder") from None
    return present


def _present(download: Download, target: Path, expected: str) -> Fetched | None:
    """The file if it is in its place already and as it should be."""
    if not target.is_file():
        if download.login:
            raise DataError(f"{target.name}: {download.login}, then {_by_hand(download, target)}")
        return None
    algorithm = _algorithm(expected)
    found = f"{algorithm}:{_digest(target, algorithm).hexdigest()}"
    if expected and found != expected:
        if download.login:
            raise _wrong(download, target, found, expected)
        return None
    return Fetched(target, found)


def _expected(download: Download, target: Path) -> str:
    """The sum that the file must have, as "ALGORITHM:HEX"; "" where nobody says."""
    if not download.checksum:
        beside = _beside(target)
        words = beside.read_text(encoding="utf-8", errors="replace").split() if beside.is_file() else []
        return f"sha256:{words[0]}" if words else ""
    if not download.checksum.startswith(_LIST):
        return download.checksum
    listed = target.with_name(download.checksum.removeprefix(_LIST))
    if not listed.is_file():
        if download.login:
            return ""  # a person can get the list, too, but has not
        sums = Download(urljoin(download.address, listed.name), listed.name, "")
        with _opened(sums, listed, 0) as answer:
            content = b"".join(_chunks(answer, sums, listed))
        listed.write_bytes(content)
    for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
        hexadecimal, _, name = line.partition(" ")
        if name.strip().removeprefix("*").removeprefix("./") == download.file:
            return f"sha256:{hexadecimal.lower()}"
    raise DataError(f"{listed}: it has no sum for {download.file}; remove it and fetch again")


def _download(download: Download, target: Path, expected: str, on_progress: Progress) -> Fetched:
    """Write FILE.part while summing it, and give it its name once it is complete and right."""
    part, algorithm = target.with_name(f"{target.name}.part"), _algorithm(expected)
    digest, done = hashlib.new(algorithm), 0
    if expected and part.is_file():  # without a sum nobody would notice that the rest is of another version
        digest, done = _digest(part, algorithm), part.stat().st_size
    if not done or f"{algorithm}:{digest.hexdigest()}" != expected:
        with _opened(download, target, done) as answer:
            if answer.status != 206:
                digest, done = hashlib.new(algorithm), 0
            length = int(answer.headers.get("Content-Length") or 0)
            total = done + length if length else 0
            with part.open("ab" if done else "wb") as file:
                for chunk in _chunks(answer, download, target):
                    file.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    on_progress(done, total)
        if done < total:
            reason = f"the connection was cut after {done:,} of {total:,} bytes"
            raise DataError(f"{target.name}: {reason}; fetch again, or {_by_hand(download, target)}")
    found = f"{algorithm}:{digest.hexdigest()}"
    if expected and found != expected:
        part.unlink()
        raise _wrong(download, target, found, expected)
    part.replace(target)
    return Fetched(target, found)


def _opened(download: Download, target: Path, start: int) -> HTTPResponse:
    """The publisher's answer, from byte `start` on if it can (status 206)."""
    headers = {"User-Agent": "cvfl", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        answer: HTTPResponse = urlopen(Request(download.address, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if start and error.code == 416:  # nothing lies behind what is here: it is not a part of this file
            return _opened(download, target, 0)
        raise _unreachable(download, target, f"HTTP {error.code} {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(download, target, error.reason if isinstance(error, URLError) else error) from None
    if answer.status == 206 and not str(answer.headers.get("Content-Range")).startswith(f"bytes {start}-"):
        answer.close()
        return _opened(download, target, 0)
    return answer


def _chunks(answer: HTTPResponse, download: Download, target: Path) -> Iterator[bytes]:
    """What comes over the network, piece by piece."""
    try:
        while chunk := answer.read(_CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise _unreachable(download, target, error) from None


def _by_hand(download: Download, target: Path) -> str:
    return f"download {download.address} by hand and put it at {target}"


def _unreachable(download: Download, target: Path, reason: object) -> DataError:
    return DataError(f"{target.name}: cannot be fetched ({reason}); {_by_hand(download, target)}")


def _wrong(download: Download, target: Path, found: str, expected: str) -> DataError:
    whose = "the publisher's" if download.checksum else f"that in {_beside(target).name}"
    return DataError(f"{target.name}: its sum is {found}, {whose} is {expected}; {_by_hand(download, target)}")


def _beside(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def _algorithm(expected: str) -> str:
    return expected.partition(":")[0] or "sha256"


def _digest(file: Path, algorithm: str) -> hashlib._Hash:
    with file.open("rb") as content:
        return hashlib.file_digest(content, algorithm)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz or .zip; nothing is written outside the folder, no link leads out of it, and nothing bursts."""
    try:
        room = _Room(archive)
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as content:
                for entry in content.infolist():
                    _check_entry(entry, archive, folder)
                    room.take(entry.file_size)
                content.extractall(folder)
        else:
            with tarfile.open(archive, "r:gz") as content:
                content.extractall(folder, filter=room.filter)
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: {error}; it is not the publisher's archive, do not use it") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}); remove it and fetch it again") from None


class _Room:
    """How much an archive may unpack to: some times its own size, in so many files."""

    def __init__(self, archive: Path) -> None:
        self._archive, self._files = archive, MOST_FILES
        self._bytes = max(MOST_TIMES * archive.stat().st_size, SMALL)

    def take(self, size: int) -> None:
        """Another file of this size is to be unpacked."""
        self._bytes, self._files = self._bytes - size, self._files - 1
        if self._bytes < 0 or self._files < 0:
            raise DataError(
                f"{self._archive}: unpacks to more than {MOST_TIMES} times its size or {MOST_FILES:,} files; "
                "it is not the publisher's archive, do not use it"
            )

    def filter(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        """As tarfile's own for data, and counted."""
        self.take(member.size)
        return tarfile.data_filter(member, path)


def _check_entry(entry: zipfile.ZipInfo, archive: Path, folder: Path) -> None:
    outside = not (folder / entry.filename).resolve().is_relative_to(folder.resolve())
    if outside or stat.S_ISLNK(entry.external_attr >> 16):
        what = "lies outside of the archive" if outside else "is a link"
        raise DataError(f"{archive}: {entry.filename!r} {what}; it is not the publisher's archive, do not use it")
