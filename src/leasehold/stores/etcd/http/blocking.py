"""HTTP/1.1 on blocking sockets: a connection for each request under way, kept for the next one."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from contextlib import contextmanager

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

IDLE_CONNECTIONS = 16
"""Connections kept open for later requests; more than these are closed after use."""


class BlockingHttp:
    """See `leasehold.stores.etcd.http.base.Http`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Connection] = []
        self._streams: set[Connection] = set()
        self._closed = False

    async def ask(self, endpoint: Endpoint, request: Request, *, within: float, urgent: bool = False) -> Reply:
        until = self._runtime.now() + within
        connection = self._take_idle(endpoint) or self._connect(endpoint, until)
        try:
            reply = connection.exchange(request, until)
        except BaseException as error:
            # A response may still be on its way: it must never be read as the response to another request.
            connection.close()
            if isinstance(error, CONNECTION_ENDED):
                self._drop_idle(endpoint)  # they go to the same server: each would cost another attempt
                raise Unanswered(reason(error)) from None
            raise
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed and connection.http.next():
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._drop_idle()  # it may have been closed just before this connection was put back
        return reply

    async def stream(self, endpoint: Endpoint, request: Request, *, within: float) -> tuple[int, Stream]:
        until = self._runtime.now() + within
        connection = self._connect(endpoint, until)
        self._streams.add(connection)
        try:
            status = connection.begin(request, until)
        except BaseException as error:
            self._discard(connection)
            if isinstance(error, CONNECTION_ENDED):
                raise Unanswered(reason(error)) from None
            raise
        return status, ResponseStream(self, connection)

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        for connection in list(self._streams):
            connection.shut_down()

    def after_fork(self) -> None:
        self._forget()  # dropped, not shut down: the parent still uses the sockets

    def discard(self, connection: Connection) -> None:
        """Close a stream's connection."""
        self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        self._streams.discard(connection)
        connection.close()

    def _connect(self, endpoint: Endpoint, until: float) -> Connection:
        left = until - self._runtime.now()
        if self._closed:
            raise Unsent("the client is closed")
        if left <= 0:
            raise Unsent("no time was left to connect")
        try:
            plain = socket.create_connection((endpoint.host, endpoint.port), timeout=left)
        except OSError as error:
            raise Unsent(reason(error)) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock = plain if endpoint.tls is None else endpoint.tls.wrap_socket(plain, server_hostname=endpoint.host)
        except BaseException as error:
            plain.close()
            if isinstance(error, OSError | ValueError):
                raise Unsent(reason(error)) from None
            raise
        return Connection(self._runtime, endpoint, sock)

    def _take_idle(self, endpoint: Endpoint) -> Connection | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        while True:
            connection = next((idle for idle in reversed(self._idle) if idle.endpoint is endpoint), None)
            if connection is None:
                return None
            try:
                self._idle.remove(connection)
            except ValueError:  # another thread has taken it
                continue
            if connection.is_unused():
                return connection
            connection.close()

    def _drop_idle(self, endpoint: Endpoint | None = None) -> None:
        for connection in list(self._idle):
            if endpoint is None or connection.endpoint is endpoint:
                try:
                    self._idle.remove(connection)
                except ValueError:  # another thread has it, and closes it
                    continue
                connection.close()


class Connection:
    """One connection, used by one thread; any thread may close it.

    While another thread waits on it, it is only shut down, and that thread closes it. The number of a closed descriptor
    may be reused at once, for another file.
    """

    def __init__(self, runtime: Runtime, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self.http = HttpExchange()
        self._runtime = runtime
        self._socket = sock
        self._kept = b""
        self._mutex = runtime.mutex()
        self._in_use = self._closed = False

    def exchange(self, request: Request, until: float) -> Reply:
        """Send a request, and read the response before ``until``."""
        self._send(request, until)
        while (reply := self.http.answer()) is None:
            self._read(until)
        return reply

    def begin(self, request: Request, until: float) -> int:
        """Send a request, and read the status of a stream."""
        self._send(request, until)
        while True:
            status, data, _ = self.http.piece()
            if status:
                self._kept = data
                return status
            self._read(until)

    def piece(self, timeout: float) -> bytes:
        """Return the next piece of a stream; no bytes after ``timeout`` seconds."""
        kept, self._kept = self._kept, b""
        until = self._runtime.now() + timeout
        while not kept:
            try:
                self._read(until)
            except TimeoutError:
                return b""
            _, kept, over = self.http.piece()
            if over and not kept:
                raise EOFError("it ended the stream")
        return kept

    def is_unused(self) -> bool:
        """Return whether nothing was received since the last response: bytes or an end of file make it useless."""
        poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def shut_down(self) -> None:
        """Shut it down, which ends a read of another thread."""
        with self._mutex:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection; a read under way ends."""
        with self._mutex:
            self._closed = True
            if self._in_use:
                self._shut_down()
            else:
                self._socket.close()

    @contextmanager
    def _waiting(self) -> Generator[None]:
        """Keep the descriptor open for as long as this thread waits on it."""
        with self._mutex:
            if self._closed:
                raise EOFError("the connection is closed")
            self._in_use = True
        try:
            yield
        finally:
            with self._mutex:
                self._in_use = False
                if self._closed:
                    self._socket.close()

    def _send(self, request: Request, until: float) -> None:
        data = self.http.ask(self.endpoint, request)
        with self._waiting():
            self._socket.settimeout(max(until - self._runtime.now(), 0.001))
            self._socket.sendall(data)

    def _read(self, until: float) -> None:
        left = until - self._runtime.now()
        if left <= 0:
            raise TimeoutError("it answered too slowly")
        with self._waiting():
            self._socket.settimeout(left)
            data = self._socket.recv(CHUNK)
        self.http.feed(data)


class ResponseStream:
    """See `leasehold.stores.etcd.http.base.Stream`."""

    def __init__(self, http: BlockingHttp, connection: Connection) -> None:
        self._http = http
        self._connection = connection

    async def read(self, timeout: float) -> bytes:
        try:
            return self._connection.piece(timeout)
        except BaseException as error:
            self._http.discard(self._connection)
            if isinstance(error, CONNECTION_ENDED):
                raise Unanswered(reason(error)) from None
            raise

    def close(self) -> None:
        self._http.discard(self._connection)
