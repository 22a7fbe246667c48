"""The notebooks run from top to bottom, show what is recorded in them, and become pages of the site."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import nbformat
import notebooks
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
ALL = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
KINDS = ("image/png", "text/html", "text/plain")
TOOL = runpy.run_path(str(FOLDER / "execute.py"))


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def shown(notebook: Any) -> list[list[tuple[str, str]]]:
    """For every cell of code what kinds of things it shows, and text without its figures, which differ by machine."""
    return [[_one(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _one(output: Any) -> tuple[str, str]:
    data = output.get("data", {"text/plain": output.get("text", "")})
    kind = next(kind for kind in KINDS if kind in data)
    return kind, "" if kind == "image/png" else re.sub(r"[0-9a-f]{16}|[\s\d.,]+|e[-+]?\d+", " ", data[kind])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_runs_and_shows_what_is_recorded(name: str) -> None:
    assert shown(TOOL["executed"](FOLDER / f"{name}.ipynb")) == shown(read(name))


@pytest.mark.parametrize("name", ALL)
def test_what_is_recorded_is_whole_small_and_of_no_machine(name: str) -> None:
    notebook, text = read(name), (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    nbformat.validate(notebook)
    assert len(text.encode()) < TOOL["LARGEST"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    assert not [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    without_figures = re.sub(r'"image/png": ".*?"', "", text)
    assert not re.search(r"/(?:home|root|tmp|work|Users|usr|opt)/|\d\d:\d\d:\d\d", without_figures)


def test_own_tables_take_ten_cells() -> None:
    assert sum(cell.cell_type == "code" for cell in read("own-tables").cells) == 10


def test_the_kernel_is_this_python(tmp_path: Path) -> None:
    path = tmp_path / "which.ipynb"
    cell = nbformat.v4.new_code_cell("import sys\nsys.executable", id="which")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    (output,) = TOOL["executed"](path).cells[0].outputs
    assert output.data["text/plain"] == repr(sys.executable)


@pytest.mark.parametrize("name", ALL)
def test_a_page_has_all_of_it(name: str) -> None:
    text, figures = notebooks.page(FOLDER / f"{name}.ipynb")
    cells = read(name).cells
    assert text.startswith("# ")
    assert all(cell.source.rstrip() in text for cell in cells)
    assert sorted(figures) == sorted(re.findall(r"!\[.*?\]\((.*?)\)", text))
    assert all(figure.startswith(b"\x89PNG") for figure in figures.values())
    assert "<style" not in text
    assert len(figures) == json.dumps(cells).count('"image/png"')
