"""FastAPI: a lock for each request, as a dependency.

Theory of operation
-------------------
1. ``Depends(lock("stock:{item_id}"))`` consists of two dependencies with ``yield``. The one with FastAPI's scope
   ``request`` acquires, and releases after the response was sent. The one with the scope ``function`` ends before the
   response is sent: it checks that the lock was not lost, so that no request is answered with 200 that lost it.
2. The lock is acquired in the event loop, also for a plain ``def`` endpoint. With a blocking client each request that
   waits would occupy a thread of the pool, until there is none left for the endpoint that holds the lock.
3. A lost lease cancels an ``async def`` endpoint, as the block of an ``async with`` does. A thread cannot be stopped: a
   plain ``def`` endpoint ends, and is then answered as one that lost its lock.
4. A request may be cancelled (by a middleware with a timeout, or a server that shuts down) while its thread works on.
   So the lock is kept until the thread has ended: the thread has a copy of the request's context, which refers to the
   hold. When nothing refers to it any more, the client releases it at the next renewal.

A name is made of what the *endpoint* gets, and not of what was sent. ``/stock/42`` and ``/stock/042`` are the same
stock for ``item_id: int``, and must be the same lock.

Example:
    ```python
    from typing import Annotated

    from fastapi import Depends, FastAPI

    from leasehold import AsyncHold
    from leasehold.integrations.fastapi import add_exception_handlers, leasehold_lifespan, lock

    app = FastAPI(lifespan=leasehold_lifespan("redis://localhost:6379"))
    add_exception_handlers(app)

    @app.post("/stock/{item_id}/sell")
    async def sell(item_id: int, hold: Annotated[AsyncHold, Depends(lock("stock:{item_id}", timeout=5))]) -> int:
        return hold.token
    ```
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args, get_origin

from fastapi import Depends, params
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from starlette.requests import HTTPConnection

from leasehold import AcquireTimeout, AsyncClient, AsyncHold, AsyncLock, LeaseLost, _validate
from leasehold._validate import Seconds
from leasehold.integrations._common.names import NameTemplate
from leasehold.integrations.starlette import add_exception_handlers, client_of, leasehold_lifespan, readiness
from leasehold.primitives.bases import function_name
from leasehold.primitives.locks.options import DEFAULT_LEASE

__all__ = ["add_exception_handlers", "client_of", "get_client", "leasehold_lifespan", "lock", "readiness"]

DEFAULT_TIMEOUT = 10.0
"""Seconds. A server does not end requests by itself, so a wait without end would collect them."""

PLAIN = (str, int, uuid.UUID, date, enum.Enum)
"""Types of arguments that a template may name: equal values have equal texts. (Not so a datetime with a time zone.)"""

ELSEWHERE = (params.Header, params.Cookie, params.Body, params.Depends)
"""Marks of arguments that are neither in the path nor in the query; a form is a body."""


async def get_client(connection: HTTPConnection) -> AsyncClient:
    """Return the app's client, as a dependency: ``Annotated[AsyncClient, Depends(get_client)]``."""
    return client_of(connection)


def lock(
    name: str | Callable[..., Any],
    *,
    timeout: Seconds | None = DEFAULT_TIMEOUT,
    lease: Seconds = DEFAULT_LEASE,
    fair: bool = False,
) -> Callable[..., Awaitable[AsyncHold]]:
    """Return a dependency: the request runs under the lock of this name until its response was sent.

    Its value is the `AsyncHold`.

    Args:
        name: a template over arguments of the endpoint that are in the path or the query, as ``stock:{item_id}``. Or a
            dependency that returns the name: a function whose own arguments may be all that FastAPI knows, as the body.
        timeout: seconds to wait at most; then `AcquireTimeout` is raised. None waits without end.
        lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
        fair: serve waiters in order of arrival, even after a lease expired.

    Raises:
        ValueError, TypeError: an option is out of its bounds, or the template is malformed.
    """
    _validate.timeout(timeout)
    _validate.lease(lease)
    the_name = Depends(name if callable(name) else _rendered(name))

    async def held(connection: HTTPConnection, name: str = the_name) -> AsyncIterator[AsyncHold]:
        client = client_of(connection)
        with _invalid_name(connection):
            mutex = client.lock(name, timeout=timeout, lease=lease, fair=fair, nested="raise")
        async with mutex if _awaits(connection.scope["endpoint"]) else _for_a_thread(mutex) as hold:
            yield hold

    until_sent = Depends(held, scope="request")

    async def checked(hold: AsyncHold = until_sent) -> AsyncIterator[AsyncHold]:
        yield hold
        hold.raise_if_lost()

    until_made = Depends(checked, scope="function")

    async def locked(hold: AsyncHold = until_made) -> AsyncHold:
        return hold

    return locked


# --- endpoints in threads ---------------------------------------------------------------------------------------------

_kept: ContextVar[tuple[AsyncHold, ...]] = ContextVar("leasehold_kept", default=())


@asynccontextmanager
async def _for_a_thread(mutex: AsyncLock) -> AsyncGenerator[AsyncHold, None]:
    """Hold a lock around a plain function, which runs in a thread: see 3 and 4 above."""
    hold = await mutex.acquire()
    if hold is None:
        raise AcquireTimeout(f"could not acquire {mutex.name!r} in time", name=mutex.name)
    outer = _kept.get()
    try:
        _kept.set((*outer, hold))  # the thread gets a copy
        yield hold
    except asyncio.CancelledError:
        raise  # without a release: the thread may still be at work
    except BaseException:
        with suppress(LeaseLost):  # what the endpoint raised has priority
            await hold.release()
        raise
    else:
        await hold.release()
    finally:
        _kept.set(outer)


def _awaits(endpoint: Any) -> bool:
    """Return whether FastAPI awaits the endpoint; in doubt it is treated as one that runs in a thread."""
    return inspect.iscoroutinefunction(endpoint) or inspect.isasyncgenfunction(endpoint)


# --- names ------------------------------------------------------------------------------------------------------------


def _rendered(text: str) -> Callable[..., Awaitable[str]]:
    """Return the dependency that makes a name of a template."""
    template = NameTemplate(text)
    for path in template._paths:
        if path not in template.fields:
            raise ValueError(
                f"the name {text!r} has the field {path!r}, which is a part of something; pass a function that takes "
                f"it as an argument and returns the name"
            )
    known: dict[Any, list[_Argument]] = {}  # by endpoint: one lock may serve several

    async def rendered(connection: HTTPConnection) -> str:
        endpoint = connection.scope["endpoint"]
        if endpoint not in known:
            known[endpoint] = [_Argument(endpoint, field, text) for field in template.fields]
        values = {each.field: each.read(connection) for each in known[endpoint]}
        with _invalid_name(connection):
            return template.render(values)

    return rendered


class _Argument:
    """An argument of an endpoint that is part of a name, read as FastAPI reads it for the endpoint itself."""

    def __init__(self, endpoint: Any, field: str, text: str) -> None:
        parameter = inspect.signature(endpoint).parameters.get(field)
        if parameter is None:
            raise _unfit(endpoint, field, text, "has no such argument")
        kind, default = _annotation(endpoint, parameter), parameter.default
        plain, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        if any(isinstance(mark, ELSEWHERE) for mark in (default, *marks)):
            raise _unfit(endpoint, field, text, "takes it neither from the path nor from the query")
        if not _is_plain(plain):
            why = f"takes it as {plain!r}, and not as a str, int, UUID, date, Enum or Literal"
            raise _unfit(endpoint, field, text, why)
        if default is parameter.empty:
            self._info = FieldInfo.from_annotation(kind)
        else:
            self._info = FieldInfo.from_annotated_attribute(kind, default)
        self.field = field
        self._alias = str(self._info.validation_alias or self._info.alias or field)
        constrained: Any = Annotated[plain, "with its constraints", *self._info.metadata]
        self._adapter: TypeAdapter[object] = TypeAdapter(constrained)

    def read(self, connection: HTTPConnection) -> object:
        """Return the value that the endpoint gets.

        Raises:
            RequestValidationError: there is none, or it is not valid: FastAPI answers 422.
        """
        alias = self._alias
        place, sent = "path", connection.path_params.get(alias)
        if sent is None:
            place, sent = "query", connection.query_params.get(alias)
        if sent is None and not self._info.is_required():
            return self._info.get_default(call_default_factory=True)
        if sent is None:
            raise _invalid(connection, {"type": "missing", "msg": "Field required", "input": None}, place, alias)
        try:
            return self._adapter.validate_python(sent)
        except ValidationError as error:
            raise _invalid(connection, dict(error.errors(include_url=False)[0]), place, alias) from None


def _unfit(endpoint: Any, field: str, text: str, why: str) -> RuntimeError:
    return RuntimeError(
        f"the lock {text!r} needs {field!r}, but {function_name(endpoint)} {why}; pass a function that takes it as an "
        "argument and returns the name"
    )


def _annotation(endpoint: Any, parameter: inspect.Parameter) -> Any:
    """Return the annotation of one argument; it is text in a module with postponed evaluation."""
    given = parameter.annotation
    if given is parameter.empty:
        return str  # FastAPI passes what was sent
    return eval(given, getattr(inspect.unwrap(endpoint), "__globals__", {})) if isinstance(given, str) else given


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return True
    return isinstance(kind, type) and issubclass(kind, PLAIN) and not issubclass(kind, datetime)


@contextmanager
def _invalid_name(connection: HTTPConnection) -> Generator[None, None, None]:
    """Answer 422 for a value that makes no name, as an empty or a very long one: it comes from outside."""
    try:
        yield
    except ValueError as error:
        raise _invalid(connection, {"type": "value_error", "msg": str(error), "input": None}, "lock", "name") from None


def _invalid(connection: HTTPConnection, error: dict[str, Any], place: str, alias: str) -> Exception:
    kind = WebSocketRequestValidationError if connection.scope["type"] == "websocket" else RequestValidationError
    return kind([{**error, "loc": (place, alias)}])
