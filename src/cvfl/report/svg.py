"""A drawn figure as SVG text: an element that stands beside others in one page, or a file of its own.

In a page ink is `currentColor` and text takes the page's font, so a figure follows the page into dark mode. Ids are
prefixed, so that many figures share one page; the same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from cvfl.report.colours import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True)
class Drawn:
    """A figure with its title and a line about it, as an element of a page; `name` is that of its file, if any."""

    title: str
    svg: str
    about: str = ""
    name: str = ""


def inline(figure: Figure, ident: str, title: str) -> str:
    """The figure as an <svg> element that can stand beside others in one page."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The browser draws the text with its own fonts; what this one lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"id": ident, "class": "figure", "viewBox": box, "role": "img", "aria-label": title})
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    root.remove(root[0])  # a style sheet for all elements, which would leak into the page
    for element in root.iter():
        _adapt(element, ident)
    return _text(root)


def standalone(svg: str) -> str:
    """The same figure as a file of its own: dark ink on white, so that it can be read wherever it is shown."""
    root = ElementTree.fromstring(svg.replace("var(--sans, sans-serif)", "sans-serif"))
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.update({"width": f"{width}pt", "height": f"{height}pt"})
    root.set("style", f"{root.attrib['style']}; color: #1a1e23")
    root.insert(0, ElementTree.Element(f"{{{SVG}}}rect", {"width": "100%", "height": "100%", "fill": "#fff"}))
    return _text(root) + "\n"


def _text(root: ElementTree.Element) -> str:
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, ident: str) -> None:
    if element.get("id") not in (None, ident):
        element.set("id", f"{ident}-{element.get('id')}")
    if reference := element.attrib.pop(_HREF, None):
        element.set("href", f"#{ident}-{reference.removeprefix('#')}")
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for key in ("clip-path", "style", "fill"):
        if key in element.attrib:
            value = element.attrib[key].replace("url(#", f"url(#{ident}-").replace(INK, "currentColor")
            element.set(key, re.sub(r"font-family: [^;]*", "font-family: var(--sans, sans-serif)", value))
    for key in ("d", "x", "y"):
        if key in element.attrib:  # hundredths of a point are enough, and halve the size
            rounded = re.sub(r"(\.\d\d)\d+", r"\1", element.attrib[key])
            element.set(key, " ".join(rounded.split()))
