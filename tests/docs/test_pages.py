"""How pages are written: lines of prose as long as those of code, a true architecture, a site with all pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/reference/*.md")),
    *sorted(ROOT.glob("docs/results/**/README.md")),
]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def prose(text: str) -> Iterator[str]:
    """The lines that are neither code nor in a table."""
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.lstrip().startswith(("|", "```")) and not line.startswith("    "):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_prose_are_as_long_as_those_of_code(page: Path) -> None:
    assert [line for line in prose(page.read_text(encoding="utf-8")) if len(line) > 120] == []


def test_the_architecture_names_files_that_exist_and_each_once() -> None:
    named = re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)
    assert len(named) > 40
    assert [path for path in named if not (ROOT / "src" / "cvfl" / path).is_file()] == []
    assert sorted(named) == sorted(set(named))


def test_the_architecture_has_every_room() -> None:
    tree = ARCHITECTURE.partition("## Rooms")[2]
    rooms = set(re.findall(r"^(\w+)/ ", tree, flags=re.M))
    assert [room for room in rooms if not (ROOT / "src" / "cvfl" / room).is_dir()] == []


def test_the_walk_is_numbered_in_its_order() -> None:
    steps = [int(number) for number in re.findall(r"^(\d+)\. `", ARCHITECTURE, flags=re.M)]
    assert steps == list(range(1, len(steps) + 1))


def test_the_site_has_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r": (\S+\.md)$", navigation, flags=re.M))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert written <= listed
    notebooks = {f"notebooks/{path.stem}.md" for path in ROOT.glob("examples/notebooks/*.ipynb")}
    others = {f"{name}.md" for name in ("contributing", "changelog", "reporting", "benchmarks")}
    assert listed - written == others | notebooks


def test_the_front_page_shows_sections_that_the_readme_has() -> None:
    shown = re.findall(r"^<!-- from README\.md: (.+) -->$", (ROOT / "docs" / "index.md").read_text(), flags=re.M)
    assert shown
    assert set(shown) <= set(re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.M))
