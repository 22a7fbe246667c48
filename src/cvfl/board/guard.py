"""Who may look: the right name in the Host header, the token where one is needed; and headers that hold a page down."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cvfl.errors import ConfigError
from cvfl.runtime.address import HERE, host_and_port, is_loopback

SHORTEST = 16
"""Characters of a token."""
ENTER = "/enter"
_LONGEST_FORM = 4096
_COOKIE = "cvfl-board"
HEADERS = {
    # Scripts and style sheets are files of the board; tables name the colour of a run in an attribute.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr "
    "'unsafe-inline'; connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gate:
    """What a request must have: a name of this machine and, beyond loopback, the token."""

    def __init__(self, address: str, token: str | None = None) -> None:
        host, _ = host_and_port(address, "--host and --port", HERE)
        self._loopback = is_loopback(host)
        if not self._loopback and token is None:
            raise ConfigError(f"{host}: a board that others can reach needs a token; give --token FILE")
        self._names = {"localhost"} if self._loopback else {host.lower(), "localhost", *_own_names()}
        self._token = None if token is None else _digest(token)

    def knows(self, host: str) -> bool:
        """Whether the Host header names this machine, and not a name that somebody else has had point here."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        try:
            return ipaddress.ip_address(name).is_loopback or not self._loopback
        except ValueError:
            return name in self._names

    def admits(self, headers: Headers) -> bool:
        """Whether the token came along, as `Authorization: Bearer TOKEN` or in the cookie of the page."""
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.opens(given.strip()):
            return True
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return kept is not None and hmac.compare_digest(kept.value.encode(), self._ticket.encode())

    def opens(self, token: str) -> bool:
        """Whether it is the token."""
        return self._token is not None and hmac.compare_digest(self._token, _digest(token))

    @property
    def _ticket(self) -> str:
        """What the cookie holds: it follows from the token, which does not follow from it."""
        return hmac.new(self._token or b"", b"cvfl board", hashlib.sha256).hexdigest()

    def enter(self, token: str) -> Response:
        """The answer to the form: on to the page, with the cookie; or back to the form."""
        if not self.opens(token):
            return RedirectResponse("/?wrong=1", 303)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(_COOKIE, self._ticket, httponly=True, samesite="strict", path="/")
        return answer


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, gate: Gate, form: str) -> None:
        self._app, self._gate, self._form = app, gate, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the application, if whoever asks may."""
        if scope["type"] != "http":
            return
        await (await self._chosen(Request(scope, receive)))(scope, receive, _held_down(send))

    async def _chosen(self, request: Request) -> ASGIApp:
        if not self._gate.knows(request.headers.get("host", "")):
            return PlainTextResponse("this board is not reached by that name", 421)
        if request.method == "POST" and request.url.path == ENTER:
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > _LONGEST_FORM:
                    return PlainTextResponse("too long", 413)
            return self._gate.enter(_field(body, "token"))
        if request.url.path.startswith("/assets/") or self._gate.admits(request.headers):
            return self._app
        if request.url.path == "/":
            return Response(self._form, 401, media_type="text/html")
        return PlainTextResponse("a token is needed", 401, {"WWW-Authenticate": "Bearer"})


def _held_down(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sent


def _field(body: bytes, name: str) -> str:
    return parse_qs(body.decode("utf-8", "replace")).get(name, [""])[0]


def _own_names() -> set[str]:
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def read_token(path: Path | None) -> str | None:
    """The token in a file, if one is named."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the token cannot be read ({type(error).__name__})") from None
    if len(token) < SHORTEST:
        raise ConfigError(f"{path}: a token has {SHORTEST} characters or more; openssl rand -hex 16 makes one")
    return token
