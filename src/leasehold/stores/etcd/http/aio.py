"""HTTP/1.1 on asyncio streams: a bounded pool of connections."""

from __future__ import annotations

import asyncio

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Unsent
from leasehold.stores.etcd.http.pool import CHUNK, Connection, Pool

CONNECTIONS = 16
"""Requests under way at the same time; more of them wait, except the urgent ones."""


class AioHttp(Pool):
    """See `leasehold.stores.etcd.http.base.Http`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._inherited: list[object] = []

    def _forget(self) -> None:
        super()._forget()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(CONNECTIONS)

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.is_closed():  # connections of a closed loop cannot be used
            self._loop, self._room = loop, asyncio.Semaphore(CONNECTIONS)
            self._drop_idle()
        if urgent:
            return await super().ask(endpoint, request, until)
        room = self._room
        try:
            async with asyncio.timeout(until - self.runtime.now()):
                await room.acquire()
        except TimeoutError:
            raise Unsent("too many requests of this client are under way") from None
        try:
            return await super().ask(endpoint, request, until)
        finally:
            room.release()

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(0)  # the transports close their sockets in the next iteration of the loop

    def after_fork(self) -> None:
        # The parent's connections stay referenced: a finalizer would close and remove them from the parent's epoll.
        self._inherited.append(self._open)
        super().after_fork()

    async def _open_connection(self, endpoint: Endpoint, within: float) -> StreamConnection:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_connection(
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
                server_hostname=endpoint.host if endpoint.tls else None,
            )
        connection = StreamConnection(self.runtime, endpoint, reader, writer)
        self._open.add(connection)
        return connection


class StreamConnection(Connection):
    """One connection. It belongs to the event loop that opened it."""

    def __init__(
        self, runtime: Runtime, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(endpoint)
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer

    def send(self, request: Request, until: float) -> None:
        self._writer.write(self.http.ask(self.endpoint, request))

    async def receive(self, until: float) -> bytes:
        async with asyncio.timeout(until - self._runtime.now()):
            return await self._reader.read(CHUNK)

    def serves(self, endpoint: Endpoint) -> bool:
        return self.endpoint is endpoint and self._loop is asyncio.get_running_loop()

    def usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing() and self._reader.exception() is None

    def close(self) -> None:
        if not self._loop.is_closed():
            self._writer.transport.abort()
