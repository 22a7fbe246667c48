"""What can go wrong, and whose doing it is.

    CvflError                       every error that cvfl raises on purpose
     ├── ConfigError                the configuration: names the key
     ├── DataError                  the data: names the table, party or column
     ├── OutputError                a file or folder that cannot be written
     ├── CompressError              a tensor that a compressor refuses: names the party
     ├── DecodeError                bytes that are not a valid packet, frame or message
     └── ProtocolError              a message at the wrong time or of the wrong shape
          ├── LocalProtocolError    this role was driven wrongly
          └── RemoteProtocolError   the peer sent what the protocol does not allow

A user sees one line and exit code 2 for any of them; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
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


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Say in one line what cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{place}: cannot be written: {error.strerror}") from None
