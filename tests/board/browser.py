"""A real browser: Chromium, driven by chromedriver over the W3C's WebDriver protocol, which is JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from conformance.network import free_port

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDED = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser to drive (Debian: apt-get install chromium chromium-driver)"
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
KEYS = {"Home": "\ue011", "Left": "\ue012", "Right": "\ue014", "Escape": "\ue00c", "Tab": "\ue004", "Enter": "\ue007"}


class Browser:
    """One window."""

    def __init__(self, port: int, profile: Path) -> None:
        self._port = port
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": CHROMIUM}
        logging = {"browser": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logging}
        found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{answer['error']}: {answer['message']}")
        return answer

    def _do(self, path: str, body: Any = None) -> Any:
        return self._ask("POST", self._session + path, body if body is not None else {})

    def size(self, width: int, height: int) -> None:
        """Windows cannot be as narrow as a phone; what a page is told can."""
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tell("Emulation.setDeviceMetricsOverride", values)

    def scheme(self, name: str) -> None:
        """Light or dark."""
        self.tell("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def tell(self, command: str, values: dict[str, Any]) -> Any:
        """A command of the DevTools protocol."""
        return self._do("/goog/cdp/execute", {"cmd": command, "params": values})

    def open(self, url: str) -> None:
        """Load a page."""
        self._do("/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._do("/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """What a script returns, once it is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, (
                f"not within {seconds} s: {script}; {self.run('return document.body.innerText')}"
            )
            time.sleep(0.05)
        return found

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def drag(self, start: tuple[float, float], end: tuple[float, float], press: bool = True) -> None:
        """Move the pointer, with its button down or not."""
        move = lambda at: {"type": "pointerMove", "duration": 0, "x": int(at[0]), "y": int(at[1])}  # noqa: E731
        down, up = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")] if press else [None, None]
        actions = [move(start), down, move(end), up]
        self._do("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [a for a in actions if a]}]})

    def console(self) -> list[str]:
        """What was logged since it was last asked for."""
        return [entry["message"] for entry in self._do("/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """The window as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        """End it."""
        self._ask("DELETE", self._session)


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    assert DRIVER
    port = free_port()
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(port)
        browser = Browser(port, folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(10)


def _await(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/status")
            if json.loads(connection.getresponse().read())["value"]["ready"]:
                return
        except OSError:
            assert time.monotonic() < end, "chromedriver does not answer"
        finally:
            connection.close()
        time.sleep(0.05)
