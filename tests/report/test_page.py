"""The template: every text of a page is escaped, whatever it says and wherever it stands; only figures are markup."""

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from cvfl.report.format import digits
from cvfl.report.html import Card, Details, Figures, Heading, Page, Section, write_page
from cvfl.report.series import Spread
from cvfl.report.svg import Drawn
from cvfl.report.table import Table, Text, Value

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}{% raw %}&amp;\ud800"
SVG = '<svg class="figure"><text>drawn</text></svg>'


class Elements(HTMLParser):
    """The names of all elements and attributes, and all text."""

    def __init__(self):
        super().__init__()
        self.names, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.names |= {tag, *(name for name, _ in attrs)}
        self.text += "".join(f"[{value}]" for name, value in attrs if name in ("aria-label", "style"))

    def handle_data(self, data):
        self.text += data


def written(tmp_path, *parts, title="T", lede="L", cards=()):
    write_page(Page(title, lede, [Section("S", parts)], cards), tmp_path / "sub" / "page.html")
    return (tmp_path / "sub" / "page.html").read_text(encoding="utf-8")


def table(**changes):
    values = {"title": "t", "head": ("a", "b"), "rows": [("r", "1")]}
    return Table(**values | changes)


@pytest.mark.parametrize(
    ("page", "times"),
    [
        ({"title": HOSTILE}, 2),
        ({"lede": HOSTILE}, 1),
        ({"cards": [Card(HOSTILE, HOSTILE, HOSTILE)]}, 3),
        ([HOSTILE], 1),
        ([Heading(HOSTILE)], 1),
        ([Figures([Drawn(HOSTILE, SVG, HOSTILE)], legend=SVG)], 2),
        ([table(title=HOSTILE)], 1),
        ([table(head=(HOSTILE, HOSTILE))], 2),
        ([table(note=HOSTILE)], 1),
        ([table(rows=[(HOSTILE, HOSTILE)])], 2),
        ([table(rows=[(Text(HOSTILE, colour=HOSTILE, about=HOSTILE), "1")])], 3),
        ([table(rows=[("r", Text(HOSTILE, bold=True, about=HOSTILE, warning=HOSTILE))])], 3),
        ([table(rows=[("r", Value(Spread(1.0, 0.1), lambda value: HOSTILE, best=True, unit=HOSTILE))])], 3),
        ([table(rows=(), groups=[(HOSTILE, [("r", "1")]), (Text(HOSTILE, colour="red"), [(HOSTILE, "1")])])], 3),
        ([Details(table(title=HOSTILE))], 2),
    ],
)
def test_all_text_is_escaped(tmp_path, page, times):
    text = written(tmp_path, **page) if isinstance(page, dict) else written(tmp_path, *page)
    assert "<script" not in text
    assert "<img" not in text
    elements = Elements()
    elements.feed(text)
    assert not {"script", "img", "onerror", "src"} & elements.names
    assert elements.text.count(HOSTILE.replace("\ud800", "\ufffd")) == text.count("{{ 7 * 7 }}") == times
    assert "49" not in re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)


def test_parts_of_a_page(tmp_path):
    rows = [("r", Value(Spread(1.25, 0.5), digits(1), best=True)), ("s", Text("x", warning="careful"))]
    text = written(
        tmp_path,
        "A note.",
        table(rows=rows, note="N"),
        Details(table(texts=True), shown=True),
        Figures([Drawn("f", SVG)], narrow=True, legend=SVG),
    )
    assert text.startswith("<!DOCTYPE html>\n")
    assert '<p class="note">A note.</p>' in text
    assert '<tr><th scope="row">r</th><td><strong>1.2</strong> ± 0.5</td></tr>' in text
    assert '<td>x <span class="badge">careful</span></td>' in text
    assert '</table></div><p class="note">N</p>' in text
    assert "<details open><summary>t</summary>" in text
    assert '<table class="texts">' in text
    assert f'<div class="key">{SVG}</div>\n<div class="grid narrow">' in text
    assert f"<figure><figcaption>f</figcaption>{SVG}</figure>" in text
    assert '<dl class="cards">' not in text


def test_the_style_sheet_is_shipped_and_read_as_it_is(tmp_path):
    style = files("cvfl.report").joinpath("report.css").read_text(encoding="utf-8")
    assert not re.search(r"\{[{%#]", style)  # the template takes it in, and would read these
    assert style in written(tmp_path)
