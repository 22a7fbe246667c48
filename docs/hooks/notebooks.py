"""Notebooks as pages of the site: text as it is, code and what it printed in blocks, tables and figures below.

A notebook is JSON, so nothing is needed to read it. Figures become files beside the page.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

_STYLE = re.compile(r"<style.*?</style>\s*", flags=re.S)
_FRAME = re.compile(r' (?:border="1"|class="dataframe"|style="text-align: right;")')


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook with its outputs, and its figures by file name."""
    parts, figures = list[str](), dict[str, bytes]()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = _text(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _block("python", source))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(figures) + 1}.png"
                figures[name] = b64decode(_text(data["image/png"]))
                parts.append(f"![what the cell above draws]({name})")
            else:
                parts.append(_shown(output, data))
    return "\n\n".join(parts) + "\n", figures


def _shown(output: Any, data: Any) -> str:
    """What a cell printed, or the value that it ended with."""
    if "text/html" in data:
        # An indented or empty line would end the HTML in Markdown.
        lines = (line.strip() for line in _FRAME.sub("", _STYLE.sub("", _text(data["text/html"]))).splitlines())
        return f'<div class="output">{"".join(lines)}</div>'
    return _block('{ .text .output title="" }', _text(output.get("text") or data["text/plain"]))


def _block(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _text(lines: str | list[str]) -> str:
    """Text of a notebook, which may be kept as a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)
