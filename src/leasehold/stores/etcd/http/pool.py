"""The HTTP connections of one client, in both flavors: one for each request under way, kept for the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod

import h11

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.http.base import Endpoint, HttpExchange, Reply, Request, Stream, Unanswered, Unsent

CHUNK = 65_536
"""Bytes read at once."""

IDLE_CONNECTIONS = 16
"""Connections kept open for later requests; of more, the one that is idle for longest is closed."""


class Connection(ABC):
    """One connection, used by one thread or task at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.http = HttpExchange()

    @abstractmethod
    def send(self, request: Request, until: float) -> None:
        """Send a request."""

    @abstractmethod
    async def receive(self, until: float) -> bytes:
        """Return the bytes that come next; none at the end of the connection.

        Raises:
            TimeoutError: nothing came.
        """

    @abstractmethod
    def serves(self, endpoint: Endpoint) -> bool:
        """Return whether the calling thread or task may use it for a request to ``endpoint``."""

    @abstractmethod
    def usable(self) -> bool:
        """Return whether the server has not closed it since the last response."""

    @abstractmethod
    def close(self) -> None:
        """Close it, from any thread or task; a read under way ends."""


class Pool(ABC):
    """Implements `leasehold.stores.etcd.http.base.Http`; a subclass for each flavor opens the connections."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()  # also those in use: closing the client closes them
        self._closed = False

    @abstractmethod
    async def _open_connection(self, endpoint: Endpoint, within: float) -> Connection: ...

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        connection = self._take_idle(endpoint) or await self._connect(endpoint, until)
        try:
            connection.send(request, until)
            while (reply := connection.http.answer()) is None:
                connection.http.feed(await connection.receive(until))
        except BaseException as error:
            # A response may still be on its way: it must never be read as the response to another request.
            self.discard(connection)
            if isinstance(error, CONNECTION_ENDED):
                self._drop_idle(endpoint)  # they go to the same server: each would cost another attempt
            raise_unanswered(error)
            raise
        if not self._closed and connection.http.next():
            self._idle.append(connection)
            for oldest in self._idle[:-IDLE_CONNECTIONS]:  # perhaps to a member that the client has left
                if self._take(oldest):
                    self.discard(oldest)
        else:
            self.discard(connection)
        if self._closed:
            self._drop_idle()  # another thread may have closed the client just before this connection was put back
        return reply

    async def stream(self, endpoint: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
        connection = await self._connect(endpoint, until)
        self._open.add(connection)
        try:
            connection.send(request, until)
            while not connection.http.status:
                connection.http.feed(await connection.receive(until))
        except BaseException as error:
            self.discard(connection)
            raise_unanswered(error)
            raise
        return connection.http.status, ResponseStream(self, connection)

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        for connection in list(self._open):
            self.discard(connection)

    def after_fork(self) -> None:
        self._forget()

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()

    async def _connect(self, endpoint: Endpoint, until: float) -> Connection:
        left = until - self.runtime.now()
        if self._closed:
            raise Unsent("the client is closed")
        if left <= 0:
            raise Unsent("no time was left to connect")
        try:
            connection = await self._open_connection(endpoint, left)
        except (OSError, ValueError) as error:
            raise Unsent(reason(error)) from None
        if self._closed:  # another thread closed the client meanwhile
            self.discard(connection)
            raise Unsent("the client is closed")
        return connection

    def _take_idle(self, endpoint: Endpoint) -> Connection | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        for connection in reversed(self._idle.copy()):
            if connection.serves(endpoint) and self._take(connection):
                if connection.usable():
                    return connection
                self.discard(connection)
        return None

    def _drop_idle(self, endpoint: Endpoint | None = None) -> None:
        """Close the idle connections, or those to one server."""
        for connection in self._idle.copy():
            if (endpoint is None or connection.endpoint is endpoint) and self._take(connection):
                self.discard(connection)

    def _take(self, connection: Connection) -> bool:
        """Take a connection out of the idle ones; return False if another thread has taken it."""
        try:
            self._idle.remove(connection)
        except ValueError:
            return False
        return True


class ResponseStream:
    """See `leasehold.stores.etcd.http.base.Stream`."""

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool = pool
        self._connection = connection

    async def read(self, timeout: float) -> bytes:
        http, until = self._connection.http, self._pool.runtime.now() + timeout
        try:
            while not (data := http.piece()):
                http.feed(await self._connection.receive(until))
        except TimeoutError:
            return b""
        except BaseException as error:
            self.close()
            raise_unanswered(error)
            raise
        return data

    def close(self) -> None:
        self._pool.discard(self._connection)


CONNECTION_ENDED = (OSError, EOFError, h11.RemoteProtocolError)
"""The errors after which a connection brings no more responses; timeouts are `OSError`."""


def raise_unanswered(error: BaseException) -> None:
    """Raise `Unanswered` if an error ended the connection."""
    if isinstance(error, CONNECTION_ENDED):
        raise Unanswered(reason(error)) from None


def reason(error: BaseException) -> str:
    """Describe the error that ended an exchange."""
    if isinstance(error, TimeoutError):
        return "it answered too slowly"
    return str(error) or type(error).__name__
