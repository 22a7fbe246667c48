"""What can go wrong, and whose doing it is.

    CvflError                       every error that cvfl raises on purpose
     ├── ConfigError                the configuration: names the key
     ├── DataError                  the data: names the table, party or column
     ├── OutputError                a file or folder that cannot be written
     ├── ExhaustedError             the machine lacks something for now, such as file descriptors
     ├── CompressError              a tensor that a compressor refuses: names the party
     ├── DecodeError                bytes that are not a valid packet, frame or message
     └── ProtocolError              a message at the wrong time or of the wrong shape
          ├── LocalProtocolError    this role was driven wrongly
          └── RemoteProtocolError   the peer sent what the protocol does not allow

A user sees one line for any of them, and exit code 2; 75 for ExhaustedError, which a restart may mend. Anything else is
a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class CvflError(Exception):
    """Base of every error raised on purpose; its text is one line that names the guilty."""


class ConfigError(CvflError):
    """A configuration key is missing, unknown or out of range."""


class DataError(CvflError):
    """A table, a column or a label cannot be used as it is."""


class OutputError(CvflError):
    """A file or folder cannot be written: no right, no room, no disk."""


class ExhaustedError(CvflError):
    """The machine has no file descriptor left: it passes, and a role that is started again goes on."""


class CompressError(CvflError):
    """A tensor cannot be compressed: NaN, infinity, or a value outside the declared range."""


class DecodeError(CvflError):
    """Bytes are not a valid packet, frame or message."""


class ProtocolError(CvflError):
    """A message arrived that the state of the role does not allow."""


class LocalProtocolError(ProtocolError):
    """The caller drove this role wrongly."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a near miss, else the list of what is known."""
    options = sorted(known)
    near = difflib.get_close_matches(word, options, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(options)})"


def plain(text: str, most: int = 2000) -> str:
    """A peer's text as it may be shown: in one line, not too long, and without characters that steer a terminal."""
    shown = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def check_writable(folder: Path) -> None:
    """Refuse now what could not be written at the end: no right, no room."""
    new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".cvfl-probe"
        try:
            probe.write_bytes(bytes(1 << 16))
        finally:
            probe.unlink(missing_ok=True)
            if new:
                folder.rmdir()


@contextmanager
def writing(place: Path, done: str = "written") -> Iterator[None]:
    """Say in one line what cannot be written, or read."""
    try:
        yield
    except OSError as error:
        kind = ExhaustedError if exhausted(error) else OutputError
        raise kind(f"{place}: cannot be {done}: {error.strerror}") from None


def exhausted(error: OSError) -> bool:
    """Whether it is for lack of file descriptors, of this process or of the machine."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
