"""HTTP/1.1 on blocking sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.http.base import Endpoint, Request
from leasehold.stores.etcd.http.pool import CHUNK, Connection, Pool


class BlockingHttp(Pool):
    """See `leasehold.stores.etcd.http.base.Http`."""

    async def _open_connection(self, endpoint: Endpoint, within: float) -> SocketConnection:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout=within)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if endpoint.tls is not None:
                sock = endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host)
        except BaseException:
            sock.close()
            raise
        return SocketConnection(self.runtime, endpoint, sock)


class SocketConnection(Connection):
    """One connection, used by one thread; any thread may close it.

    While another thread waits on the socket, `close` only shuts it down, and that thread closes it. The number of a
    closed descriptor may be reused at once, for another file.
    """

    def __init__(self, runtime: Runtime, endpoint: Endpoint, sock: socket.socket) -> None:
        super().__init__(endpoint)
        self._runtime = runtime
        self._socket = sock
        self._mutex = runtime.mutex()
        self._in_use = self._closed = False

    def send(self, request: Request, until: float) -> None:
        data = self.http.ask(self.endpoint, request)
        with self._waiting():
            self._socket.settimeout(max(until - self._runtime.now(), 0.001))
            self._socket.sendall(data)

    async def receive(self, until: float) -> bytes:
        left = until - self._runtime.now()
        if left <= 0:
            raise TimeoutError
        with self._waiting():
            self._socket.settimeout(left)
            return self._socket.recv(CHUNK)

    def serves(self, endpoint: Endpoint) -> bool:
        return self.endpoint is endpoint

    def usable(self) -> bool:
        poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)  # bytes or an end of file make it useless

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._in_use:
                with suppress(OSError):  # it has ended already
                    self._socket.shutdown(socket.SHUT_RDWR)
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
