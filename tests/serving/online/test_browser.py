"""The page of the API in a real browser that has no network: it shows every call, and nothing is logged."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from serving.online.doors import Serving, trained

CHROMIUM = shutil.which("chromium")
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --virtual-time-budget=3000
"""
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"),
    pytest.mark.usefixtures("no_pages"),
]


def test_the_page_needs_no_network(tmp_path):
    with Serving(tmp_path, trained(tmp_path)) as serving:
        flags = [*FLAGS.split(), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        flags += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'page.png'}", "--dump-dom"]
        address = f"http://127.0.0.1:{serving.port}/docs"
        done = subprocess.run([CHROMIUM, *flags, address], capture_output=True, text=True, timeout=60, check=False)
    text = re.sub(r"<[^>]+>", "", done.stdout)
    for call in ("/predict", "/v2/models/{name}/infer", "/v2/health/ready", "/metrics", "Try it", "unknown at shop"):
        assert call in text
    assert "CONSOLE" not in done.stderr, done.stderr
