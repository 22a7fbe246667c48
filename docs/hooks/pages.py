"""Pages of the site that are not files of docs/ as they are.

CONTRIBUTING.md, CHANGELOG.md, ...       pages of the site, with links that fit
examples/notebooks/NAME.ipynb            a page with its text, its code and what its cells show
links to files outside docs/             a page that shows the file
<!-- from README.md: HEADING -->         that section of the README
<!-- generated: NAME -->                 see reference.py
```hex FILE                              a block with FILE as its title
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
SHOWN = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "benchmarks/README.md": "benchmarks.md",
    "README.md": "index.md",
    **{
        path.relative_to(ROOT).as_posix(): f"notebooks/{path.stem}.md"
        for path in ROOT.glob("examples/notebooks/*.ipynb")
    },
}
"""Pages outside docs/, and where they are on the site; that of the README has been written for the site."""
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".md": "markdown"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and one for each file that any page links to."""
    sys.path.insert(0, str(Path(__file__).parent))
    import notebooks  # noqa: PLC0415  found beside this file

    for path, uri in SHOWN.items():
        if path.endswith(".ipynb"):
            text, figures = notebooks.page(ROOT / path)
            files.append(File.generated(config, uri, content=text))
            for name, figure in figures.items():
                files.append(File.generated(config, f"{dirname(uri)}/{name}", content=figure))
        elif files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for file in list(files.documentation_pages()):
        for target, _ in _LINK.findall(file.content_string):
            path = _in_repository(target, file.src_uri)
            if _is_source(path) and files.get_file_from_path(_source(path)) is None:
                files.append(File.generated(config, _source(path), content=_listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and let links lead to pages of the site."""
    import reference  # noqa: PLC0415  found beside this file

    uri = page.file.src_uri
    markdown = re.sub(
        r"^<!-- from README\.md: (.+) -->$",
        lambda found: _moved(section(found[1]), "README.md", uri),
        markdown,
        flags=re.M,
    )
    markdown = re.sub(r"^<!-- generated: (\w+) -->$", lambda found: reference.PAGES[found[1]](), markdown, flags=re.M)
    markdown = re.sub(r"^```hex (\S+)$", r'``` { .text title="\1" }', markdown, flags=re.M)
    return _moved(markdown, _real(uri), uri)


def section(heading: str) -> str:
    """What the README has below a heading."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n+(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    if found is None:
        raise PluginError(f"README.md has no section {heading!r}; docs/index.md shows it")
    return found[1].rstrip()


def _real(uri: str) -> str:
    """Where a page of the site is in the repository."""
    outside = {at: path for path, at in SHOWN.items() if not (ROOT / "docs" / at).exists()}
    return outside.get(uri, f"docs/{uri}")


def _in_repository(target: str, uri: str) -> str:
    return normpath(f"{dirname(_real(uri))}/{target}".lstrip("/"))


def _is_source(path: str) -> bool:
    return path not in SHOWN and not path.startswith(("docs/", "..")) and (ROOT / path).is_file()


def _source(path: str) -> str:
    return f"source/{path}.md"


def _listing(path: str) -> str:
    text, language = (ROOT / path).read_text(encoding="utf-8").rstrip(), _LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text}\n````\n"


def _moved(markdown: str, real: str, uri: str) -> str:
    """Text of a file in the repository, for a page of the site: links lead to the pages of what they name."""

    def lead(found: re.Match[str]) -> str:
        path, anchor = normpath(f"{dirname(real)}/{found[1]}".lstrip("/")), found[2] or ""
        if path in SHOWN:
            return relpath(SHOWN[path], dirname(uri) or ".") + anchor
        if _is_source(path):
            return relpath(_source(path), dirname(uri) or ".")
        if path.startswith("docs/"):
            return relpath(path.removeprefix("docs/"), dirname(uri) or ".") + anchor
        return found[0]

    return _LINK.sub(lead, markdown)
