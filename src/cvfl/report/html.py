"""A page: what is on it as plain values. The template makes HTML of them and escapes all text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from cvfl.errors import writing
from cvfl.report.svg import Drawn
from cvfl.report.table import Table, Value


@dataclass(frozen=True)
class Card:
    """A figure to see first: what it is, its value, and a line of context."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Details:
    """A table that only some readers want: closed until asked for, unless it is to be `shown`."""

    table: Table
    shown: bool = False


@dataclass(frozen=True)
class Figures:
    """Figures in as many columns as fit, at most two or, if they are narrow, three; with the legend that they share."""

    drawn: Sequence[Drawn]
    narrow: bool = False
    legend: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what belongs to it; text is a note."""

    title: str
    parts: Sequence[str | Heading | Table | Details | Figures]


@dataclass(frozen=True)
class Page:
    """The whole document: it needs no network, no script and no font of its own."""

    title: str
    lede: str
    sections: Sequence[Section]
    cards: Sequence[Card] = ()


_templates = Environment(
    loader=PackageLoader("cvfl.report", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
for _kind in (Heading, Table, Details, Figures, Value):
    _templates.tests[_kind.__name__.lower()] = lambda part, kind=_kind: isinstance(part, kind)


def fragment(parts: Sequence[str | Heading | Table | Details | Figures], cards: Sequence[Card] = ()) -> str:
    """Parts of a page as HTML, for a page that is there already."""
    return _templates.get_template("fragment.html.j2").render(parts=parts, cards_shown=cards)


def write_page(page: Page, out: Path) -> None:
    """Write the page to a file."""
    text = _templates.get_template("report.html.j2").render(page=page)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate can come out of a JSON escape, but not go into a file.
        out.write_bytes(text.encode("utf-8", "xmlcharrefreplace"))
