"""One asyncio connection: all that touches asyncmy.

A connection whose reply was not read to its end is closed, whatever the reason. The driver does so for some
cancellations only, and would take the unread rest for the answer to the next request.
"""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.stores.mysql.connection.base import Greeting, Refusal, Rows
from leasehold.stores.mysql.connection.handshake import failure, opened
from leasehold.stores.mysql.connection.settings import Settings

asyncmy: Any = import_module("asyncmy")
errors: Any = import_module("asyncmy.errors")

CANCEL_AGAIN = 0.05
"""Seconds after which the driver is cancelled again: it may have lost the first cancellation."""

GOODBYE_WITHIN = 0.5
"""Seconds that closing a session politely may take."""


class AioConnection:
    """See `leasehold.stores.mysql.connection.base.Connection`."""

    greeting: Greeting
    marker = ""

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()

    async def run(self, statements: bytes, until: float) -> list[Rows]:
        connection, answers = self._connection, list[Rows]()
        try:
            async with asyncio.timeout(max(until - self._runtime.now(), 0.0)):
                await connection.query(statements)
                while True:
                    result = connection._result
                    answers.append(result.rows or ())
                    if not result.has_next:
                        return answers
                    await connection.next_result()
        except BaseException as error:
            found = failure(error, errors.MySQLError, answers, connected=connection.connected)
            if not isinstance(found, Refusal):
                self.abort()
            if found is error:
                raise
            raise found from error

    def number(self) -> int:
        result = self._connection._result
        return int(result.affected_rows and (result.insert_id or result.affected_rows))

    def usable(self) -> bool:
        connection, proto = self._connection, self._connection._proto
        if self._loop is not asyncio._get_running_loop():  # a client may be used in one loop after the other
            return False
        if not connection.connected or connection._stream_broken or proto is None:
            return False
        return bool(proto.length == proto.pos)

    def abort(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._abort()
        else:
            try:
                self._loop.call_soon_threadsafe(self._abort)
            except RuntimeError:  # the loop is closed, and its transports with it
                pass

    def _abort(self) -> None:
        transport = self._connection._transport
        if transport is not None:
            transport.abort()
        self._connection.close()

    async def close(self) -> None:
        if asyncio.get_running_loop() is not self._loop:  # that one is closed
            self.abort()
            return
        try:
            async with asyncio.timeout(GOODBYE_WITHIN):
                await self._connection.ensure_closed()
        except (errors.MySQLError, OSError):
            pass
        finally:
            self._abort()

    def disown(self) -> None:
        transport = self._connection._transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None:
            sock._sock.close()  # closes this process's copy of the descriptor; event loop and session go on


async def connect(settings: Settings, runtime: Runtime, within: float) -> AioConnection:
    """Open a connection; see `opened`."""
    return await opened(
        settings, runtime, within, resolve=_resolve, dial=_open, wrap=AioConnection, driver_error=errors.MySQLError
    )


async def _resolve(settings: Settings, within: float) -> list[Any]:
    if "ssl" in settings.options:  # the driver begins TLS too early on a socket that it is given
        return []
    async with asyncio.timeout(within):
        return await asyncio.get_running_loop().getaddrinfo(settings.name, settings.port, type=socket.SOCK_STREAM)


async def _open(settings: Settings, address: str, within: float) -> Any:
    """Let the driver connect in a task of its own, which is cancelled until it ends.

    The driver uses `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes with the result. Then
    it would wait for the greeting of a silent server without a limit.
    """
    task = asyncio.ensure_future(_connect_by_driver(settings, address, within))
    try:
        await asyncio.wait((task,), timeout=within)
        if not task.done():
            raise TimeoutError
        return task.result()
    except BaseException:
        await _cancel(task)
        raise


async def _connect_by_driver(settings: Settings, address: str, within: float) -> Any:
    if settings.connect is not None:
        return await settings.connect()
    sock = await _socket_to(address, settings.port) if address else None
    try:
        return await asyncmy.connect(
            charset="utf8mb4", autocommit=True, program_name="leasehold", connect_timeout=within, sock=sock,
            **settings.options,
        )  # fmt: skip
    except BaseException:
        if sock is not None:
            sock.close()
        raise


async def _socket_to(address: str, port: int) -> socket.socket:
    """Connect as the driver does."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        found.setblocking(False)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(found, (address, port))
    except BaseException:
        found.close()
        raise
    return found


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel the task until it ends; close a connection that it opened nevertheless."""
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=CANCEL_AGAIN)
        except asyncio.CancelledError:  # the first cancellation is raised soon
            continue
    if not task.cancelled() and task.exception() is None:
        task.result().close()
