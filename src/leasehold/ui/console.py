"""The routes of the console, and `app`, which makes it.

All addresses in pages are relative. So the app works at any mount point and behind any prefix of a reverse proxy,
without being told.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from leasehold import AsyncClient, Client
from leasehold._validate import Seconds
from leasehold.cli.output import printable, without_secrets
from leasehold.ui.breaking import Breaker, Malformed, Unrecorded, body_of
from leasehold.ui.listing import Query, listed, totals
from leasehold.ui.security import SESSION, Access, Login, csrf_cookie, foreign, forged
from leasehold.ui.shown import details, error_text, finding_of, free, interval_of, value_of
from leasehold.ui.source import Source, source_of
from leasehold.ui.streams import Payload, Streams, status_of, substance_of
from leasehold.ui.watch import Snapshot, Watch

STATIC = Path(__file__).parent / "static"

EVERY = 0.5
"""Seconds between two looks at the store while a page is open."""

LEAST_EVERY = 0.1

FINDINGS_FOR = 10.0
"""Seconds for which doctor's findings are kept: all pages share them."""

VALUE_FOR = 1.0
"""Seconds for which the value of a leader is kept."""

STATUS = {"broken": 200, "gone": 409, "failed": 503, "unknown": 503}
"""Result of a break to the status of the answer."""


def app(
    client: AsyncClient | Client,
    *,
    allow_break: bool = False,
    token: str | None = None,
    user: Callable[[Request], str] | None = None,
    every: Seconds = EVERY,
    record: bool = False,
    hosts: Collection[str] | None = None,
    ending: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Make the console of one client, to be served or mounted.

    Without a ``token`` the console asks for no login: mount it behind the login of your application. The
    client stays yours to close. While no page is open, nothing is sent to the store.

    Args:
        client: an `AsyncClient` of the event loop that serves the app; or a `Client`, which is asked in threads.
        allow_break: pages can break locks. False is read-only: the app has no route that changes anything.
        token: asked for by a login form, or as ``Authorization: Bearer``; at least 16 characters.
        user: returns the name of a request's user, for the audit log; by default that of Starlette's authentication.
        every: seconds between two looks at the store while a page is open; all pages share a look.
        record: go on looking while no page is open, more slowly, so that the time line has no gap.
        hosts: names under which the app may be called; None for any.
        ending: returns whether the server is shutting down: open pages are let go then.

    Returns:
        An ASGI application, of Starlette.

    Raises:
        ValueError, TypeError: a value is out of its bounds.
    """
    pause = every.total_seconds() if isinstance(every, timedelta) else float(every)
    if not pause >= LEAST_EVERY:
        raise ValueError(f"every must be {LEAST_EVERY} s at least, not {every!r}")
    source = source_of(client)
    watch = Watch(source, every=pause, record=record)
    login = None if token is None else Login(token)
    breaker = Breaker(source, user or known_user) if allow_break else None
    console = Console(source, watch, login, breaker, ending)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:  # only where the app is served by itself
        if record:
            watch.start()
        yield
        await watch.stop()

    access = Middleware(Access, login=login, hosts=hosts)
    return Starlette(routes=console.routes(), middleware=[access], lifespan=lifespan)


def known_user(request: Request) -> str:
    """Return the name of the user that Starlette's authentication found in the host application."""
    user = request.scope.get("user")
    name = getattr(user, "display_name", "") or getattr(user, "username", "")
    return str(name) or "unknown"


class Console:
    """The pages and what they ask for."""

    def __init__(
        self, source: Source, watch: Watch, login: Login | None, breaker: Breaker | None, ending: Callable[[], bool]
    ) -> None:
        self._source, self._watch, self._login, self._breaker = source, watch, login, breaker
        self._streams = Streams(watch, ending)
        self._findings: tuple[float, list[dict[str, Any]]] | None = None
        self._values: dict[tuple[str, str], tuple[float, Any]] = {}

    def routes(self) -> list[Any]:
        """Return the routes; those that change something exist only where this is allowed."""
        found: list[Any] = [
            Route("/", self._page("list", "Locks")),
            Route("/lock", self._page("lock", "Lock")),
            Route("/doctor", self._page("doctor", "Doctor")),
            Route("/api/locks", self._locks),
            Route("/api/lock", self._lock),
            Route("/api/doctor", self._doctor),
            Route("/static/{name}", static),
        ]
        if self._breaker is not None:
            found.append(Route("/api/break", self._break, methods=["POST"]))
        if self._login is not None:
            found.append(Route("/login", self._log_in, methods=["GET", "POST"]))
            found.append(Route("/logout", self._log_out, methods=["POST"]))
        return found

    # --- pages -----------------------------------------------------------------------------------------------------

    def _page(self, name: str, title: str) -> Callable[[Request], Any]:
        at = {f"at_{each}": "page" if each == name else "false" for each in ("list", "doctor")}

        async def page(request: Request) -> Response:
            html = text_of("page.html").replace("{{main}}", text_of(f"{name}.html"))
            response = HTMLResponse(self._filled(html, page=name, title=title, **at))
            csrf_cookie(request, response)
            return response

        return page

    def _login_page(self, message: str) -> str:
        return self._filled(text_of("login.html"), message=message)

    def _filled(self, html: str, **extra: str) -> str:
        store, namespace = self._source.place
        facts = {
            "store": printable(without_secrets(store)),
            "namespace": printable(namespace),
            "breaks": "yes" if self._breaker is not None else "no",
            "mode": "Breaking allowed" if self._breaker is not None else "Read-only",
            "login": "yes" if self._login is not None else "no",
            **extra,
        }
        return filled(html, facts)

    async def _log_in(self, request: Request) -> Response:
        assert self._login is not None
        if request.method == "GET":
            return HTMLResponse(self._login_page(""))
        if foreign(request):
            return HTMLResponse(self._login_page("Log in from this page."), 403)
        try:
            given = parse_qs((await body_of(request)).decode("utf-8", "replace")).get("token", [""])[0]
        except Malformed:
            given = ""
        if not self._login.accepts(given):
            return HTMLResponse(self._login_page("That is not the token."), 403)
        response = RedirectResponse("./", 303)
        secure = request.url.scheme == "https"
        session = self._login.session()
        response.set_cookie(
            self._login.cookie, session, SESSION, path=None, secure=secure, httponly=True, samesite="strict"
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        assert self._login is not None
        if foreign(request):
            return JSONResponse({"error": "log out from this page"}, 403)
        response = RedirectResponse("login", 303)
        response.set_cookie(self._login.cookie, "", 0, path=None, httponly=True, samesite="strict")
        return response

    # --- what pages ask for ----------------------------------------------------------------------------------------

    async def _locks(self, request: Request) -> Response:
        query = Query.of(request.query_params)

        async def payload(snapshot: Snapshot) -> Payload:
            record = {
                "status": status_of(snapshot, self._watch.every),
                "totals": totals(snapshot.rows),
                **listed(snapshot.rows, query),
            }
            return record, substance_of(record)

        return self._streams.response(payload)

    async def _lock(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        known: object = None

        async def payload(snapshot: Snapshot) -> Payload:
            nonlocal known
            record = await self._shown(name, snapshot)
            substance = substance_of(record)
            history = self._watch.history
            past = history.intervals(name), history.gaps()
            if past != known:
                known = past
                record["history"] = {"intervals": [interval_of(one) for one in past[0]], "gaps": past[1]}
            return record, (substance, past)

        return self._streams.response(payload)

    async def _shown(self, name: str, snapshot: Snapshot) -> dict[str, Any]:
        row = snapshot.rows.get(name)
        lock = free(name) if row is None else details(row)
        if lock["kind"] == "election" and lock["entries"] and not snapshot.error:
            leader = lock["entries"][0]
            leader["meta"] = await self._value(name, leader)
        breaks = [] if self._breaker is None else self._breaker.of(name)
        return {"status": status_of(snapshot, self._watch.every), "lock": lock, "breaks": breaks}

    async def _value(self, name: str, leader: dict[str, Any]) -> Any:
        """Return the value that a leader proclaimed last; the one with which it campaigned if that is not known."""
        key, now = (name, leader["token"]), time.monotonic()
        if key not in self._values or now - self._values[key][0] > VALUE_FOR:
            try:
                leads, value = await self._source.leader_value(name.partition("/")[2], int(leader["token"]))
            except Exception:  # the next look says that the store does not answer
                return leader["meta"]
            self._values = {other: kept for other, kept in self._values.items() if now - kept[0] < VALUE_FOR}
            self._values[key] = now, value_of(value) if leads and value is not None else leader["meta"]
        return self._values[key][1]

    async def _doctor(self, request: Request) -> Response:
        now = time.monotonic()
        if self._findings is None or now - self._findings[0] > FINDINGS_FOR:
            try:
                found = sorted(await self._source.findings(), key=lambda finding: -finding.severity)
            except Exception as error:
                return JSONResponse({"error": error_text(error), "findings": []}, 503)
            self._findings = now, [finding_of(finding) for finding in found]
        return JSONResponse({"error": "", "findings": self._findings[1]})

    async def _break(self, request: Request) -> Response:
        assert self._breaker is not None
        bears = self._login is not None and self._login.bears(request)
        if not bears and (why := forged(request)):
            return JSONResponse({"error": why}, 403)
        try:
            done = await self._breaker.carry_out(request)
        except Unrecorded:
            return JSONResponse({"error": "nothing was broken: the audit log cannot be written"}, 500)
        except ValueError as error:  # also of the client, of a name that is out of its bounds
            return JSONResponse({"error": str(error)}, 400)
        self._watch.soon()
        return JSONResponse({"result": done.result, "error": done.error}, STATUS[done.result])


FILES = StaticFiles(directory=STATIC)


async def static(request: Request) -> Response:
    """Return a script, a style or a picture of the pages."""
    name: str = request.path_params["name"]
    if name.endswith(".html"):
        return Response("not found", 404)
    response = await FILES.get_response(name, request.scope)
    response.headers["cache-control"] = "no-cache"  # asked for again each time, and answered with 304
    return response


def text_of(name: str) -> str:
    """Return the text of a file of the pages."""
    return (STATIC / name).read_text(encoding="utf-8")


def filled(page: str, facts: dict[str, str]) -> str:
    """Return a page with ``{{name}}`` replaced by facts, as text."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: escape(facts[found[1]], quote=True), page)
