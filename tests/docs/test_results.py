"""The tables of docs/results are those that the runs recorded there give: `make results` makes them again."""

from pathlib import Path

import pytest

from cvfl.studies.origin import Origin
from cvfl.studies.results import read_results
from cvfl.studies.study import load

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STUDIES = sorted(path.parent.name for path in RESULTS.glob("*/study.toml"))


def origin(folder: Path) -> Origin:
    found = Origin.read(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_the_tables_are_those_of_the_recorded_runs(name: str) -> None:
    folder = RESULTS / name
    runs = sorted(path.parent for path in folder.rglob("summary.json"))
    results = read_results(load(str(folder / "study.toml")), runs, folder, origin)
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert results.tables
    assert all(table.markdown().rstrip() in text for table in results.tables)
