"""Helpers of the tests with faults on PostgreSQL: who waits, and the sessions of our clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from leasehold_lab.servers import PostgresServer

NOISE = 1.0
"""Seconds that a busy machine may be late."""


def backends(server: PostgresServer) -> int:
    return server.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND pid <> pg_backend_pid()"
    )[0][0]


def terminate(server: PostgresServer) -> int:
    """End all our backends, as an operator does; return how many there were."""
    return len(
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'")
    )


class HangsUp:
    """A proxy that answers a request with an error which is not fatal, and ends both connections: poolers do."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._request, self._code = b"", ""
        self._links, self._threads = [self._listener], list[threading.Thread]()
        self.url = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/postgres"
        self._start(self._accept)

    def answer(self, request: bytes, code: str) -> None:
        """Answer the next request with these bytes by this SQLSTATE."""
        self._code, self._request = code, request

    def close(self) -> None:
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for link in self._links:
            link.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=work, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server.port))
                self._links += [client, server]
                self._start(self._relay, client, server, True)
                self._start(self._relay, server, client, False)

    def _relay(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and self._request and self._request in data:
                    self._request = b""
                    fields = b"SERROR\0VERROR\0C" + self._code.encode() + b"\0Mas told\0\0"
                    source.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)
                    break
                sink.sendall(data)
        for link in (sink, source):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def hangs_up(server: PostgresServer) -> Iterator[HangsUp]:
    proxy = HangsUp(server)
    try:
        yield proxy
    finally:
        proxy.close()
