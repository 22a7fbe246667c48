"""The report in a real browser: nothing logged, every figure visible, no sideways scrolling on a phone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from cvfl.report.report import StudyPart, write_report
from cvfl.report.svg import standalone
from cvfl.runs.read import read_run
from cvfl.studies.figures import study_figures
from cvfl.studies.study import Preset, Study
from cvfl.studies.tables import study_tables

CHROMIUM = shutil.which("chromium")
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --virtual-time-budget=2000
"""
# The report runs no script, so a page around it measures it, with all details open. A frame can also be
# as narrow as a phone, which a window cannot.
PROBE = """<!DOCTYPE html><title></title>
<iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  for (const part of page.querySelectorAll("details")) part.open = true;
  const boxes = name => [...page.querySelectorAll(name)].map(element => element.getBoundingClientRect());
  document.title = JSON.stringify({{
    figures: boxes("svg").map(box => [box.left, box.right, box.height]),
    text: Math.min(...boxes("svg text").map(box => Math.max(box.width, box.height))),
    inside: boxes("svg text").every(box => box.left >= 0 && box.right <= root.clientWidth),
    scroll: root.scrollWidth,
    width: root.clientWidth,
    boxed: [...page.querySelectorAll("table")].every(table => table.closest(".scroll")),
  }});
}};
</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")


def make_run(path, name, compressor, scale):
    parties, lines = ("hospital", "bank", "insurer", "registry"), []
    for t in range(6):
        error = {"measured": scale, "expected": 1.1 * scale, "bound": 3.0 * scale}
        sent = {m: {"up": scale * 10 * (t + 1), "down": scale * 40 * (t + 1), "evaluation": 900} for m in parties}
        total = {part: sum(found[part] for found in sent.values()) for part in ("up", "down", "evaluation")}
        line = {"round": t, "epoch": t + 1, "loss": 1 / (t + 1), "bytes": total, "by_party": sent}
        score = {"accuracy": 0.9 - 0.5 / (t + 1), "loss": 1 / (t + 1)}
        lines.append(
            line | {"train": score, "test": score, "compression_error": dict.fromkeys(("server", *parties), error)}
        )
    summary = {
        "name": name,
        "seed": 1,
        "rounds": 6,
        "completed": True,
        "metric": "accuracy",
        "seconds": 1.5,
        "metrics": {"train": score, "test": score},
        "bytes": total | {"total": sum(total.values()), "by_party": sent},
        "formula_bytes": scale * 1000,
        "compression_error": error,
        "parameters": dict.fromkeys(("server", *parties), "0123456789abcdef" * 4),
        "config": {"seed": 1, "compressor": compressor, "step_size": {"eta": 0.1}},
        "versions": {"cvfl": "0.1.0"},
    }
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(path / "a", "none", "identity", 64),
        make_run(path / "b", "lattice b=2", "lattice:bits=2", 4),
        make_run(path / "c", "AVeryLongNameWithoutAnyPlaceToBreakTheLineThatGoesOnAndOnAndOn", "scalar:bits=2", 5),
    ]
    write_report(runs, path / "report.html")
    return path / "report.html"


@pytest.fixture(scope="module")
def study_part(page):
    """What a study adds: its tables, and a figure with the target."""
    runs = [read_run(path) for path in sorted(page.parent.iterdir()) if path.is_dir()]
    cells = [{"name": run.name} for run in runs]
    study = Study(title="Three", paper="none", metric="accuracy", run={}, preset={"cpu": {"target": 0.7}}, cell=cells)
    preset = Preset(target=0.7)
    return StudyPart("accuracy", study_tables(study, preset, runs), study_figures(study, preset, runs))


@pytest.fixture(scope="module")
def study_page(page, study_part):
    runs = sorted(path for path in page.parent.iterdir() if path.is_dir())
    write_report(runs, page.parent / "study.html", "Three", study_part)
    return page.parent / "study.html"


def browse(page, profile):
    """Load a page; the DOM after loading, and what reached the console."""
    command = [CHROMIUM, *FLAGS.split(), "--dump-dom", f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_console_stays_empty(page, tmp_path):
    dom, console = browse(page, tmp_path / "profile")
    assert "<h1>3 runs compared</h1>" in dom
    assert console == []


def test_the_policy_stops_a_script_and_the_console_tells(page, tmp_path):
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", "<script>document.title = 'ran'</script></body>"))
    dom, console = browse(copy, tmp_path / "profile")
    assert "<title>3 runs compared</title>" in dom
    assert any("Content Security Policy" in line for line in console)


def test_a_study_shows_its_table_and_its_target(study_page, tmp_path):
    dom, console = browse(study_page, tmp_path / "profile")
    assert console == []
    assert "<h2>To the target</h2>" in dom
    assert "MB to accuracy 0.7" in dom
    assert re.search(r"<td><strong>\d[\d.]*</strong></td>", dom)
    assert dom.count(">target 0.7<") == 2  # by epoch and by megabytes
    assert dom.count("Test accuracy by epoch") == 1


def test_a_figure_as_a_file_is_drawn(study_part, tmp_path):
    for one in study_part.drawn:
        path = tmp_path / f"{one.name}.svg"
        path.write_text(standalone(one.svg))
        probe = tmp_path / "probe.html"
        report = "document.title = this.naturalWidth + ' ' + this.naturalHeight"
        probe.write_text(f'<title></title><img src="{path.name}" onload="{report}">')
        dom, console = browse(probe, tmp_path / one.name)
        width, height = map(int, re.search(r"<title>(\d+) (\d+)</title>", dom).groups())
        assert console == []
        assert width >= 400
        assert height >= 300


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", ["page", "study_page"])
def test_figures_are_visible_and_nothing_overflows(kind, tmp_path, width, request):
    page, probe = request.getfixturevalue(kind), tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=escape(page.read_text())))
    dom, console = browse(probe, tmp_path / "profile")
    found = json.loads(unescape(re.search(r"<title>(.+?)</title>", dom)[1]))
    assert console == []
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["boxed"]
    assert found["inside"]
    assert len(found["figures"]) == 4 + 3 + 5 + 1  # learning, bytes of each run, an error of each role, its legend
    for left, right, height in found["figures"]:
        assert 0 <= left < right <= width
        assert right - left >= 250
        assert height >= 20
    assert found["text"] >= 6  # pixels, of the shortest label in any figure
