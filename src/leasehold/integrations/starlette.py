"""Starlette, and what FastAPI shares with it: the client of an app, answers for errors, and a readiness check.

Example:
    ```python
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from leasehold.integrations.starlette import add_exception_handlers, client_of, leasehold_lifespan, readiness

    async def sell(request: Request) -> PlainTextResponse:
        async with client_of(request).lock(f"stock:{request.path_params['item_id']}", timeout=5):
            return PlainTextResponse("sold")

    app = Starlette(
        routes=[Route("/stock/{item_id:int}", sell, methods=["POST"]), Route("/ready", readiness())],
        lifespan=leasehold_lifespan("redis://localhost:6379"),
    )
    add_exception_handlers(app)
    ```
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from leasehold import AcquireTimeout, AsyncClient, LeaseLost, StoreUnavailable, Unsupported, _validate
from leasehold._runtimes.log import log
from leasehold._validate import Seconds
from leasehold.stores import registry

__all__ = ["add_exception_handlers", "client_of", "leasehold_lifespan", "readiness"]


TRY_AGAIN_LATER = 1013
"""The code with which a WebSocket is closed, from IANA's registry of them."""

App = TypeVar("App", bound=Starlette)
Lifespan = Callable[[App], AbstractAsyncContextManager[Any]]


def leasehold_lifespan(
    store: str | Callable[[], AsyncClient] | None = None, *, lifespan: Lifespan[App] | None = None
) -> Lifespan[App]:
    """Return a lifespan that opens a client when the app starts, and closes it after the last request.

    Args:
        store: a URL, as for `AsyncClient.from_url`; None takes ``LEASEHOLD_URL``. Or a function that makes the client,
            for options of its own.
        lifespan: the app's own. It runs inside: the client is there before it starts, and until it has ended.

    Raises:
        ValueError, TypeError, MissingDriver: the URL is malformed, or its driver is missing.
    """
    make = _maker(store)
    del store  # a URL may have a password, and a traceback's reader may show local variables

    @asynccontextmanager
    async def run(app: App) -> AsyncGenerator[Any, None]:
        client = make()
        if not isinstance(client, AsyncClient):
            raise TypeError(
                f"leasehold_lifespan needs an AsyncClient, not a {type(client).__name__}; it serves plain functions, "
                "too: while they wait for a lock, no thread waits"
            )
        async with client:
            app.state.leasehold = client
            if lifespan is None:
                yield
            else:
                async with lifespan(app) as state:
                    yield state

    return run


def _maker(store: str | Callable[[], AsyncClient] | None) -> Callable[[], AsyncClient]:
    if callable(store):
        return store
    hidden = registry.hide(store)
    del store
    registry.opener(hidden)  # a malformed URL is reported here, and not when the server starts
    return partial(AsyncClient.from_url, cast("str", hidden))


def client_of(connection: HTTPConnection) -> AsyncClient:
    """Return the client of the app that serves this request or WebSocket.

    Raises:
        RuntimeError: the app has none; the message says what to do.
    """
    client = getattr(connection.app.state, "leasehold", None)
    if not isinstance(client, AsyncClient):
        raise RuntimeError(
            "this app has no client of leasehold: make the app with lifespan=leasehold_lifespan(url), and run it with "
            "its lifespan (for a mounted app, set child.state.leasehold = app.state.leasehold in that lifespan)"
        )
    return client


def add_exception_handlers(app: Starlette, *, busy_status: int = 423, retry_after: int = 1) -> None:
    """Answer requests that end by an error of a lock: busy, unavailable or lost. A WebSocket is closed with 1013.

    The answers name no lock, holder or server; the log has the reason.

    ==================  ==========================  ===============
    error               status                      ``Retry-After``
    ==================  ==========================  ===============
    `AcquireTimeout`    ``busy_status``             yes
    `StoreUnavailable`  503                         yes
    `LeaseLost`         409                         no
    ==================  ==========================  ===============

    Args:
        app: a Starlette or FastAPI app.
        busy_status: 423 (Locked) or 409 (Conflict), of a request whose lock is held by another.
        retry_after: seconds after which a client may try again.

    Raises:
        ValueError: a value is out of its bounds.
    """
    if busy_status not in (423, 409):
        raise ValueError(f"busy_status must be 423 (Locked) or 409 (Conflict), not {busy_status!r}")
    if isinstance(retry_after, bool) or not isinstance(retry_after, int) or retry_after < 0:
        raise ValueError(f"retry_after must be whole seconds, 0 or more, not {retry_after!r}")
    again = {"Retry-After": str(retry_after)}
    busy = "another request holds the lock; try again"
    lost = "the lock was lost during the request; its work may be incomplete"
    app.add_exception_handler(AcquireTimeout, _answer(busy_status, busy, again))
    app.add_exception_handler(StoreUnavailable, _answer(503, "locks are unavailable at the moment; try again", again))
    app.add_exception_handler(LeaseLost, _answer(409, lost))


def _answer(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Callable[[Any, Exception], Any]:
    async def answer(connection: Request | WebSocket, error: Exception) -> Response | None:
        log.log(logging.WARNING if status == 503 else logging.INFO, "answered %d: %s", status, error)
        if not isinstance(connection, WebSocket):
            return JSONResponse({"detail": detail}, status, headers)
        await connection.close(TRY_AGAIN_LATER, detail)
        return None

    return answer


def readiness(within: Seconds = 1.0) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers 200 if the store takes requests for locks (see `AsyncClient.ping`), else 503.

    For readiness only, not for liveness: a restart of the app mends no store.

    Args:
        within: seconds after which a store that has not answered is not ready; less than the probe's own timeout.

    Raises:
        ValueError, TypeError: ``within`` is not above zero.
    """
    limit = _validate.above_zero(within, "within")

    async def ready(request: Request) -> Response:
        """Say whether locks can be acquired now."""
        try:
            async with asyncio.timeout(limit):
                await client_of(request).ping()
        except (StoreUnavailable, Unsupported, TimeoutError) as error:
            log.warning("not ready: %s", str(error) or f"the store did not answer within {limit:g} s")
            return JSONResponse({"ready": False}, 503)
        return JSONResponse({"ready": True})

    return ready
