from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import cvfl

ROOT = Path(__file__).parents[2]


def test_the_quickstart_learns(capsys: pytest.CaptureFixture[str]) -> None:
    result = runpy.run_path(str(ROOT / "examples" / "quickstart.py"))["result"]
    assert result.summary["metrics"]["test"]["accuracy"] > 0.95
    assert "test accuracy 0.9" in capsys.readouterr().out


def test_the_readme_shows_the_quickstart() -> None:
    code = (ROOT / "examples" / "quickstart.py").read_text().split('"""\n\n', 1)[1]
    assert code in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.toml")), ids=lambda path: path.stem)
def test_the_example_configurations_are_valid(path: Path) -> None:
    config = cvfl.load_config(path)
    assert config.data.name or config.party


def test_everything_public_is_there() -> None:
    assert cvfl.__all__ == sorted(cvfl.__all__)
    assert all(hasattr(cvfl, name) for name in cvfl.__all__)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
