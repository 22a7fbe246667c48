"""The page and what it asks for: the list of runs, what it shows of chosen ones, and news of both.

GET /                                       the page
GET /api/runs                               the list
GET /api/view?run=A&run=B                   everything about these runs but their curves
GET /api/curves?run=A&axis=epoch&from=&to=  the curves of a run, decimated; of a part of the axis, if asked
GET /api/follow                             server-sent events: the list, then the rows of it that change
GET /assets/FILE                            style sheets and scripts

All of it is read; there is nothing to write, and nothing of rows, ids or labels.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from cvfl.board.catalogue import LOOK, Catalogue
from cvfl.board.curves import AXES, curves
from cvfl.board.guard import ENTER, Gate, Guard
from cvfl.board.known import Known
from cvfl.board.view import MOST, colours, view
from cvfl.report.colours import INK, PARTS
from cvfl.report.format import METRICS, PURPOSES

_ASSETS = {
    "report.css": ("cvfl.report", "text/css"),
    "board.css": ("cvfl.board", "text/css"),
    "board.js": ("cvfl.board", "text/javascript"),
    "dom.js": ("cvfl.board", "text/javascript"),
    "list.js": ("cvfl.board", "text/javascript"),
    "figures.js": ("cvfl.board", "text/javascript"),
    "plot.js": ("cvfl.board", "text/javascript"),
    "scale.js": ("cvfl.board", "text/javascript"),
}
_ALIVE = 15.0
"""Seconds after which a stream without news says that it is there."""
Result = TypeVar("Result")


class Board:
    """Answers requests about the runs of a catalogue, until it is `over`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue, self._lock = catalogue, threading.Lock()
        self.over = False

    async def _look(self, answer: Callable[[], Result]) -> Result:
        """An answer of what is there now, found in a thread, one after the other: files and streams go on meanwhile."""

        def found() -> Result:
            with self._lock:
                self.catalogue.refresh()
                return answer()

        return await asyncio.to_thread(found)

    def _state(self) -> dict[str, Any]:
        catalogue = self.catalogue
        return {"rows": [*catalogue.rows.values()], "more": catalogue.more, "folder": catalogue.root.name}

    def _known(self, request: Request) -> list[Known]:
        names = request.query_params.getlist("run")
        found = [known for name in names if (known := self.catalogue.known(name))]
        if not found or len(found) > MOST:
            raise HTTPException(404 if not found else 400, "no such run" if not found else f"at most {MOST} runs")
        return found

    async def runs(self, request: Request) -> Response:
        """The list."""
        return _json(await self._look(self._state))

    async def view(self, request: Request) -> Response:
        """Everything about runs but their curves."""
        return _json(await self._look(lambda: view(self._known(request))))

    async def curves(self, request: Request) -> Response:
        """The curves of a run."""
        axis = next((axis for axis in AXES if axis == request.query_params.get("axis")), AXES[0])
        span = (_number(request, "from", -math.inf), _number(request, "to", math.inf))
        return _json(await self._look(lambda: curves(self._known(request)[0].columns, axis, span)))

    async def follow(self, request: Request) -> Response:
        """News of the list."""
        return StreamingResponse(self._news(request), media_type="text/event-stream")

    async def _news(self, request: Request) -> AsyncIterator[bytes]:
        state = await self._look(self._state)
        told = {row["name"]: row for row in state["rows"]}
        yield _event("all", state)
        silent = 0.0
        while not self.over and not await request.is_disconnected():
            await asyncio.sleep(LOOK)
            rows = await self._look(lambda: self.catalogue.rows)
            changed = [row for name, row in rows.items() if told.get(name) != row]
            gone = [*(told.keys() - rows.keys())]
            silent += LOOK
            if changed or gone:
                told, silent = rows, 0.0
                yield _event("some", {"rows": changed, "gone": gone})
            elif silent >= _ALIVE:
                silent = 0.0
                yield b": still here\n\n"


def make_app(board: Board, gate: Gate) -> ASGIApp:
    """The application, for any server of ASGI."""
    templates = Environment(
        loader=PackageLoader("cvfl.board", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    about = {
        "colours": [one.replace(INK, "currentColor") for one in colours(9)],
        "parts": {part: [found.replace(INK, "currentColor"), alpha] for part, (found, alpha) in PARTS.items()},
        "purposes": {part: PURPOSES.get(part, part) for part in PARTS},
        "metrics": METRICS,
    }
    page = templates.get_template("board.html.j2").render(version=version("cvfl"), about=json.dumps(about))
    form = templates.get_template("enter.html.j2").render(enter=ENTER)

    async def shell(request: Request) -> Response:
        return HTMLResponse(page)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            raise HTTPException(404, "no such file")
        package, kind = _ASSETS[name]
        return Response(files(package).joinpath(name).read_bytes(), media_type=kind)

    routes = [
        Route("/", shell),
        Route("/assets/{name}", asset),
        Route("/api/runs", board.runs),
        Route("/api/view", board.view),
        Route("/api/curves", board.curves),
        Route("/api/follow", board.follow),
    ]
    return Guard(Starlette(routes=routes), gate, form)


def _number(request: Request, key: str, otherwise: float) -> float:
    try:
        found = float(request.query_params.get(key, "nan"))
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


def _text(content: Any) -> str:
    # A lone surrogate can come out of a JSON escape: as an escape it can also go back.
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _json(content: Any) -> Response:
    return Response(_text(content), media_type="application/json")


def _event(kind: str, content: Any) -> bytes:
    return f"event: {kind}\ndata: {_text(content)}\n\n".encode()
