"""The door: an HTTP API that speaks the Open Inference Protocol and a plain form of its own.

POST /predict                     {"ids": [...]} -> {"run": ..., "scores": [...]}
POST /v2/models/NAME/infer        the same as tensors
GET  /v2                          name and version of what answers
GET  /v2/health/live, /ready      whether it runs; whether requests are answered, and who is away if not
GET  /v2/models/NAME[/ready]      what the model takes and gives
GET  /metrics                     figures for Prometheus
GET  /docs, /openapi.json         a page that describes all this, without a file from elsewhere
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from cvfl.runs.directory import versions
from cvfl.serving.online import described
from cvfl.serving.online.answers import (
    Meaning,
    inference_answer,
    metadata,
    plain_answer,
    read_inference,
    server_metadata,
)
from cvfl.serving.online.batching import DoorError, Reply
from cvfl.serving.online.desk import Desk, closing
from cvfl.serving.online.door import Id, Keys, Limits, Rate, read_ids
from cvfl.serving.online.metrics import FORM, Metrics

_JSON = "application/json"
_PREDICT = "/predict"
_WONDER = 0.8
"""The share of its time after which a request without an answer makes the door ask who is slow."""
Answered = Callable[[list[Id], Reply], dict[str, Any]]


class Door:
    """Answers requests with what the desk says."""

    def __init__(self, desk: Desk, name: str, keys: Keys, limits: Limits) -> None:
        self.desk, self.name, self.keys, self.limits = desk, name, keys, limits
        self.metrics, self._rate = Metrics(desk), Rate(limits.rate)
        self.stopping = False

    @property
    def trouble(self) -> DoorError | None:
        """Why requests are not answered now."""
        return closing() if self.stopping else self.desk.trouble

    async def predict(self, request: Request) -> Response:
        """The plain form."""

        def ids_of(body: Any) -> tuple[list[Id], Answered]:
            if not isinstance(body, dict) or body.keys() != {"ids"}:
                raise DoorError(422, "bad_request", 'the request must be {"ids": [...]}')
            return self._ids(body["ids"]), lambda ids, reply: plain_answer(ids, reply, *self._means(reply))

        return await self._answer(request, ids_of)

    async def infer(self, request: Request, name: str) -> Response:
        """The Open Inference Protocol."""

        def ids_of(body: Any) -> tuple[list[Id], Answered]:
            self.check_model(name)
            data, asked = read_inference(body)
            return self._ids(data), lambda ids, reply: inference_answer(name, ids, reply, *self._means(reply), asked)

        return await self._answer(request, ids_of)

    def check_model(self, name: str) -> None:
        """Refuse a model that is not served here."""
        if name != self.name:
            raise DoorError(404, "unknown_model", f"the model that is served here is {self.name}")

    def let_in(self, request: Request) -> str:
        """Who asks; refused without a key, where one is needed."""
        return self.keys.who(request.headers)

    def _ids(self, values: Any) -> list[Id]:
        table = self.desk.stock.bundle.table
        return read_ids(values, self.limits, len(table.id) if table else 1)

    def _means(self, reply: Reply) -> tuple[Meaning, tuple[str, ...]]:
        scoring = self.desk.stock.scoring
        found = scoring.get(reply.run) if scoring else None
        return Meaning(self.desk.bundle_of(reply.run), found.bundle if found else None), self.desk.names

    async def _answer(self, request: Request, ids_of: Callable[[Any], tuple[list[Id], Answered]]) -> Response:
        began, count = time.perf_counter(), 0
        try:
            self._rate.take(self.let_in(request))
            ids, answered = ids_of(await self._body(request))
            count = len(ids)
            reply = await self._reply(ids)
            status, code, content = 200, "ok", answered(ids, reply)
        except DoorError as trouble:
            status, code, content = trouble.status, trouble.code, problem(trouble)
        self.metrics.answered(status, code, time.perf_counter() - began, count)
        return written(content, status)

    async def _body(self, request: Request) -> Any:
        """The JSON of a request; one that is too long is not read to its end."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self.limits.bytes:
                raise DoorError(413, "too_large", f"a request of more than {self.limits.bytes:,} bytes")
            parts.append(part)
        try:
            return json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise DoorError(400, "bad_json", "the request is not JSON") from None

    async def _reply(self, ids: list[Id]) -> Reply:
        if self.stopping and (trouble := self.trouble) is not None:
            raise trouble
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Reply | DoorError] = loop.create_future()

        def settle(reply: Reply | DoorError) -> None:
            if not waiting.done():
                waiting.set_result(reply)

        def told(reply: Reply | DoorError) -> None:
            with suppress(RuntimeError):  # the door has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, reply)

        def expire() -> None:
            late = DoorError(504, "timeout", f"no answer within {seconds:g} s from {self.desk.late}")
            settle(self.desk.trouble or late)

        seconds = self.limits.timeout
        self.desk.submit(ids, seconds, told)
        # In a thread: the party may be at work, and requests go on meanwhile.
        wonders = loop.call_later(_WONDER * seconds, lambda: loop.run_in_executor(None, self.desk.wonder))
        expires = loop.call_later(seconds, expire)
        try:
            reply = await waiting
        finally:
            wonders.cancel()
            expires.cancel()
        if isinstance(reply, DoorError):
            raise reply
        return reply


def problem(trouble: DoorError) -> dict[str, Any]:
    """An error as it is sent."""
    return {"error": {"code": trouble.code, "message": trouble.message}}


def written(content: Any, status: int = 200) -> Response:
    """JSON with this status."""
    headers = (
        {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status in (429, 503) else None
    )
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(), status, headers, _JSON)


class _App(FastAPI):
    """The application; what is asked most goes straight to the door, past the layers that other requests go through."""

    door: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", _PREDICT):
            response = await self.door.predict(Request(scope, receive))
            return await response(scope, receive, send)
        return await super().__call__(scope, receive, send)


def make_app(door: Door) -> FastAPI:
    """The application, for any server of ASGI."""
    app = _App(title="cvfl", version=versions()["cvfl"], docs_url=None, redoc_url=None, description=described.TEXT)
    app.door = door

    @app.exception_handler(HTTPException)
    async def no_such_page(request: Request, error: HTTPException) -> Response:
        codes = {404: "not_found", 405: "wrong_method"}
        return written(
            problem(DoorError(error.status_code, codes.get(error.status_code, "error"), str(error.detail))),
            error.status_code,
        )

    def guarded(answer: Callable[[], Any]) -> Response:
        try:
            return written(answer())
        except DoorError as trouble:
            return written(problem(trouble), trouble.status)

    @app.post(_PREDICT, **described.PREDICT)
    async def predict(request: Request) -> Response:
        return await door.predict(request)

    @app.post("/v2/models/{name}/infer", **described.INFER)
    async def infer(name: str, request: Request) -> Response:
        return await door.infer(request, name)

    @app.get("/v2", **described.SERVER)
    async def server() -> Response:
        return written(server_metadata(app.version))

    @app.get("/v2/health/live", **described.LIVE)
    async def live() -> Response:
        return written({"live": True})

    @app.get("/v2/health/ready", **described.READY)
    async def ready() -> Response:
        return _ready(door)

    @app.get("/v2/models/{name}", **described.MODEL)
    async def model(name: str, request: Request) -> Response:
        def answer() -> dict[str, Any]:
            door.let_in(request)
            door.check_model(name)
            return metadata(name, door.desk.run, door.desk.stock.bundle)

        return guarded(answer)

    @app.get("/v2/models/{name}/ready", **described.READY_MODEL)
    async def model_ready(name: str) -> Response:
        return _ready(door) if name == door.name else guarded(lambda: door.check_model(name))

    @app.get("/metrics", **described.METRICS)
    async def metrics(request: Request) -> Response:
        try:
            door.let_in(request)
        except DoorError as trouble:
            return written(problem(trouble), trouble.status)
        return Response(door.metrics.text(), media_type=FORM)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(described.page(app.openapi()))

    return app


def _ready(door: Door) -> Response:
    trouble, here = door.trouble, door.desk.here
    content = {"ready": trouble is None, "run": door.desk.run, "roles": here}
    return written(content if trouble is None else content | problem(trouble), 200 if trouble is None else 503)
