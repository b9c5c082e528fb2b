"""Who may see the console, and what keeps other sites out.

- A token, if the app has one: as ``Authorization: Bearer``, or by the login form, which sets a cookie. The cookie does
  not contain the token: it has an end, and a signature of it by the token, so every worker process accepts it.
- A request that changes something by cookie must prove that a page of ours made it: a random value, which the page
  reads from a cookie and sends as a header (double submit), and the browser's own word on the origin.
- A list of host names, if the app has one: a page of another site, whose name an attacker points at this machine (DNS
  rebinding), is refused.
- Headers on every answer: no scripts but our own files, no frames, no referrer to other sites.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHORTEST_TOKEN = 16  # characters
SESSION = 12 * 3600  # seconds after which one logs in again

CSRF_COOKIE = "leasehold_csrf"
CSRF_HEADER = "x-csrf-token"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

OPEN = ("/login", "/static/")
"""Paths that need no token."""


class Login:
    """The token of the app, and the sessions that it signs."""

    def __init__(self, token: str) -> None:
        token = token.strip()  # of a file or a secret, which often end with a newline
        if len(token) < SHORTEST_TOKEN:
            raise ValueError(
                f"the token of the console must have {SHORTEST_TOKEN} characters at least; make one with: "
                'python -c "import secrets; print(secrets.token_urlsafe(24))"'
            )
        self._token = token.encode()
        self.cookie = f"leasehold_ui_{self._sign('name')[:8]}"  # cookies of other ports of this host do not collide

    def accepts(self, token: str) -> bool:
        """Compare a token in constant time; space around it does not count."""
        return hmac.compare_digest(self._token, token.strip().encode())

    def session(self) -> str:
        """Return the cookie of a new session."""
        end = str(int(time.time()) + SESSION)
        return f"{end}.{self._sign(end)}"

    def knows(self, connection: HTTPConnection) -> bool:
        """Return whether a request has the token, or the cookie of a session."""
        return self.bears(connection) or self._has_session(connection.cookies.get(self.cookie, ""))

    def bears(self, connection: HTTPConnection) -> bool:
        """Return whether a request has the token itself."""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.accepts(token)

    def _has_session(self, cookie: str) -> bool:
        end, _, signature = cookie.partition(".")
        known = hmac.compare_digest(self._sign(end).encode(), signature.encode())
        return known and end.isascii() and end.isdigit() and int(end) > time.time()

    def _sign(self, text: str) -> str:
        return hmac.new(self._token, b"leasehold ui: " + text.encode(), hashlib.sha256).hexdigest()


class Access:
    """ASGI middleware: refuses what may not come in, and adds the headers to what goes out."""

    def __init__(self, app: ASGIApp, *, login: Login | None, hosts: Collection[str] | None) -> None:
        self._app = app
        self._login = login
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, send_safely)

    def _refusal(self, request: Request) -> Response | None:
        if self._hosts is not None and host_of(request.headers) not in self._hosts:
            return JSONResponse({"error": "this console does not answer to that host name; see --host"}, 421)
        path = path_of(request.scope)
        if self._login is None or path.startswith(OPEN) or self._login.knows(request):
            return None
        if path.startswith("/api/") or request.method != "GET":
            return JSONResponse({"error": "log in, or send the token"}, 401, {"www-authenticate": "Bearer"})
        return RedirectResponse("login", 303)


def path_of(scope: Scope) -> str:
    """Return the path below the place where the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def host_of(headers: Headers) -> str:
    """Return the host name of a request, without the port."""
    return (urlsplit(f"//{headers.get('host', '')}").hostname or "").lower()


def csrf_cookie(request: Request, response: Response) -> None:
    """Give a browser the value that it sends back with each change; without a path, so that any proxy's prefix fits."""
    if len(request.cookies.get(CSRF_COOKIE, "")) < SHORTEST_TOKEN:
        response.set_cookie(
            CSRF_COOKIE, secrets.token_urlsafe(24), path=None, samesite="strict", secure=request.url.scheme == "https"
        )


def forged(request: Request) -> str:
    """Return why a request may come from another site; empty if it comes from a page of ours."""
    if why := foreign(request):
        return why
    cookie, header = request.cookies.get(CSRF_COOKIE, ""), request.headers.get(CSRF_HEADER, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), header.encode()):
        return "the page is too old, or cookies are off; load it again"
    return ""


def foreign(request: Request) -> str:
    """Return why the browser calls a request one of another site; empty if it does not."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return "" if site in ("same-origin", "none") else "the request comes from another site"
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        return "the request comes from another origin; a reverse proxy in between must pass on the header Host"
    return ""
