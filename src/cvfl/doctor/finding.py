"""What was looked at, how it is, and what to do if it is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from cvfl.errors import CvflError, plain


class Health(StrEnum):
    """Fine; worth a look, but no run fails by it; or wrong, so that a run would fail."""

    FINE = "fine"
    LOOK = "look"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    what: str
    health: Health
    found: str
    remedy: str = ""


def fine(what: str, found: str) -> Finding:
    """All is well."""
    return Finding(what, Health.FINE, found)


def look(what: str, found: str, remedy: str) -> Finding:
    """A run would go, but not as well as it could, or not for long."""
    return Finding(what, Health.LOOK, found, remedy)


def wrong(what: str, found: str, remedy: str) -> Finding:
    """A run would fail."""
    return Finding(what, Health.WRONG, found, remedy)


@contextmanager
def caught(what: str, findings: list[Finding]) -> Iterator[None]:
    """Take an error for a finding; what to do is behind its last semicolon, as errors are written."""
    try:
        yield
    except CvflError as error:
        found, _, remedy = str(error).rpartition("; ")
        findings.append(wrong(what, plain(found or remedy), plain(remedy if found else "mend that, and ask again")))


def size(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
