"""HTTP/1.1 on asyncio streams: a bounded pool with one connection for each request under way."""

from __future__ import annotations

import asyncio
import ssl

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.http.base import (
    CHUNK,
    CONNECTION_ENDED,
    Endpoint,
    HttpExchange,
    Reply,
    Request,
    Stream,
    Unanswered,
    Unsent,
    reason,
)

CONNECTIONS = 16
"""Requests under way at the same time; more of them wait, except the urgent ones."""


class AioHttp:
    """See `leasehold.stores.etcd.http.base.Http`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._inherited: list[object] = []
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._room: asyncio.Semaphore | None = None
        self._closed = False

    async def ask(self, endpoint: Endpoint, request: Request, *, within: float, urgent: bool = False) -> Reply:
        if urgent:
            return await self._ask(endpoint, request, within)
        until = self._runtime.now() + within
        if self._room is None:
            self._room = asyncio.Semaphore(CONNECTIONS)
        room = self._room
        try:
            async with asyncio.timeout(within):
                await room.acquire()
        except TimeoutError:
            raise Unsent("too many requests of this client are under way") from None
        try:
            return await self._ask(endpoint, request, until - self._runtime.now())
        finally:
            room.release()

    async def _ask(self, endpoint: Endpoint, request: Request, within: float) -> Reply:
        until = self._runtime.now() + within
        connection = self._take_idle(endpoint) or await self._connect(endpoint, within)
        try:
            async with asyncio.timeout(until - self._runtime.now()):
                reply = await connection.exchange(request)
        except BaseException as error:
            # A response may still be on its way: it must never be read as the response to another request.
            self._discard(connection)
            if isinstance(error, CONNECTION_ENDED):
                self._drop_idle(endpoint)
                raise Unanswered(reason(error)) from None
            raise
        if not self._closed and len(self._idle) < CONNECTIONS and connection.http.next():
            self._idle.append(connection)
        else:
            self._discard(connection)
        return reply

    async def stream(self, endpoint: Endpoint, request: Request, *, within: float) -> tuple[int, Stream]:
        until = self._runtime.now() + within
        connection = await self._connect(endpoint, within)
        try:
            async with asyncio.timeout(until - self._runtime.now()):
                status = await connection.begin(request)
        except BaseException as error:
            self._discard(connection)
            if isinstance(error, CONNECTION_ENDED):
                raise Unanswered(reason(error)) from None
            raise
        return status, ResponseStream(self, connection)

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._open):
            self._discard(connection)
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next iteration of the loop

    def after_fork(self) -> None:
        self._inherited.append(
            self._open
        )  # kept: a finalizer that closes them would remove them from the parent's epoll
        self._forget()

    def discard(self, connection: Connection) -> None:
        """Close a stream's connection."""
        self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()

    async def _connect(self, endpoint: Endpoint, within: float) -> Connection:
        if self._closed:
            raise Unsent("the client is closed")
        try:
            async with asyncio.timeout(within):
                reader, writer = await asyncio.open_connection(
                    endpoint.host,
                    endpoint.port,
                    ssl=endpoint.tls,
                    server_hostname=endpoint.host if endpoint.tls else None,
                )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise Unsent(reason(error)) from None
        connection = Connection(endpoint, reader, writer)
        if self._closed:  # meanwhile
            connection.close()
            raise Unsent("the client is closed")
        self._open.add(connection)
        return connection

    def _take_idle(self, endpoint: Endpoint) -> Connection | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        loop = asyncio.get_running_loop()
        for connection in reversed(self._idle.copy()):
            if connection.endpoint is not endpoint or connection.loop is not loop:
                continue
            self._idle.remove(connection)
            if connection.usable():
                return connection
            self._discard(connection)
        return None

    def _drop_idle(self, endpoint: Endpoint) -> None:
        """Close the idle connections to the same server: each would cost another attempt."""
        for connection in self._idle.copy():
            if connection.endpoint is endpoint:
                self._idle.remove(connection)
                self._discard(connection)


class Connection:
    """One connection."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.loop = asyncio.get_running_loop()
        self.endpoint = endpoint
        self.http = HttpExchange()
        self._reader = reader
        self._writer = writer
        self._kept = b""

    async def exchange(self, request: Request) -> Reply:
        """Send a request and read the response."""
        self._writer.write(self.http.ask(self.endpoint, request))
        while (reply := self.http.answer()) is None:
            self.http.feed(await self._reader.read(CHUNK))
        return reply

    async def begin(self, request: Request) -> int:
        """Send a request, and read the status of a stream."""
        self._writer.write(self.http.ask(self.endpoint, request))
        while True:
            status, data, _ = self.http.piece()
            if status:
                self._kept = data
                return status
            self.http.feed(await self._reader.read(CHUNK))

    async def piece(self, timeout: float) -> bytes:
        """Return the next piece of a stream; no bytes after ``timeout`` seconds."""
        kept, self._kept = self._kept, b""
        while not kept:
            try:
                async with asyncio.timeout(timeout):
                    data = await self._reader.read(CHUNK)
            except TimeoutError:
                return b""
            self.http.feed(data)
            _, kept, over = self.http.piece()
            if over and not kept:
                raise EOFError("it ended the stream")
        return kept

    def usable(self) -> bool:
        """Return whether the server has not closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing() and self._reader.exception() is None

    def close(self) -> None:
        """Close the connection at once."""
        if not self.loop.is_closed():
            self._writer.transport.abort()


class ResponseStream:
    """See `leasehold.stores.etcd.http.base.Stream`."""

    def __init__(self, http: AioHttp, connection: Connection) -> None:
        self._http = http
        self._connection = connection

    async def read(self, timeout: float) -> bytes:
        try:
            return await self._connection.piece(timeout)
        except BaseException as error:
            self._http.discard(self._connection)
            if isinstance(error, CONNECTION_ENDED):
                raise Unanswered(reason(error)) from None
            raise

    def close(self) -> None:
        self._http.discard(self._connection)
