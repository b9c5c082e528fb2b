"""What both drivers share: how a connection is opened and set up, and what an error of a driver means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.mysql.connection.base import Connection, NoAnswer, Refusal, Rows, is_connection_error, no_answer
from leasehold.stores.mysql.connection.settings import (
    DRIVERS_ERRORS,
    Settings,
    cannot_connect,
    code_of,
    connect_error,
    greeting,
    opening,
)

L = TypeVar("L", bound=Connection)


async def opened(
    settings: Settings,
    runtime: Runtime,
    within: float,
    *,
    dial: Callable[[Settings, float], Awaitable[Any]],
    wrap: Callable[[Any, Runtime], L],
    driver_error: type[Exception],
) -> L:
    """Open a connection, set up its session and check which server answers.

    ``dial`` makes a connection of the driver, within so many seconds. ``wrap`` adapts it.

    Raises:
        StoreUnavailable: no server answers, or none that can be used.

    """
    failed: StoreUnavailable | None = None
    raw: Any = None
    until = runtime.now() + within
    try:
        raw = await dial(settings, max(within, 0.001))
    except (driver_error, *DRIVERS_ERRORS) as error:
        failed = connect_error(error, settings.where)
    if failed is not None:
        raise failed  # raised out here it has no context: local variables in the driver's frames show the password
    connection = wrap(raw, runtime)
    try:
        connection.greeting = greeting(await connection.run(opening(), until), settings.where)
    except BaseException as error:
        connection.abort()
        if isinstance(error, NoAnswer):
            raise no_answer(settings.where, error, unknown=False) from error
        if isinstance(error, Refusal):
            raise cannot_connect(error.code, str(error), settings.where) from error
        raise
    return connection


def failure(
    error: BaseException, driver_error: type[Exception], answers: Sequence[Rows], *, connected: bool
) -> BaseException:
    """Return what to raise for an error during a request; only after a `Refusal` the connection can still be used."""
    if isinstance(error, driver_error):
        code, text = code_of(error)
        return NoAnswer(text) if is_connection_error(code) or not connected else Refusal(code, text, answers)
    if isinstance(error, OSError | EOFError):
        return NoAnswer(
            str(error) or ("it answered too slowly" if isinstance(error, TimeoutError) else type(error).__name__)
        )
    return error
