"""One blocking connection: all that touches PyMySQL, which is untyped."""

from __future__ import annotations

import os
import select
import socket
from importlib import import_module
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold._url import Veiled
from leasehold.stores.mysql.connection.base import Greeting, NoAnswer, Refusal, Rows
from leasehold.stores.mysql.connection.handshake import failure, opened
from leasehold.stores.mysql.connection.settings import Settings

pymysql: Any = import_module("pymysql")
COM_SET_OPTION = 0x1B
MULTI_STATEMENTS_ON = b"\0\0"
MULTI_STATEMENTS = 1 << 16

LATER, LONGER = 1.05, 1.04
"""Factors on the remaining time of a request: the longest limit of one read or write of it, and a new limit."""

GOODBYE_WITHIN = 0.1
"""Seconds that closing a session politely may take."""


class BlockingConnection:
    """See `leasehold.stores.mysql.connection.base.Connection`."""

    greeting: Greeting
    marker = ""

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._running = False
        self._aborted = False
        self._inherited: Any = None  # the driver's buffer, in a forked child

    async def run(self, statements: bytes, until: float) -> list[Rows]:
        with self._mutex:
            if self._aborted:
                raise NoAnswer("it was closed")
            self._running = True
        connection, answers = self._connection, list[Rows]()
        try:
            self._limit(until)
            connection.query(statements)
            while True:
                result = connection._result
                answers.append(result.rows or ())
                if not result.has_next:
                    return answers
                self._limit(until)
                connection.next_result()
        except BaseException as error:
            found = failure(error, pymysql.MySQLError, answers, connected=connection.open)
            if not isinstance(found, Refusal):
                self.abort()
            if found is error:
                raise
            raise found from error
        finally:
            with self._mutex:
                self._running = False
                aborted = self._aborted
            if aborted:
                connection._force_close()

    def _limit(self, until: float) -> None:
        """Limit each write and read from now on to ``until``, or little later.

        The driver sets each new limit on the socket, and releases the GIL while it does. So the next requests keep a
        limit that is still good: it is a little longer than this one needs.
        """
        left = until - self._runtime.now()
        if left <= 0:
            raise TimeoutError("it answered too slowly")
        allowed = self._connection._read_timeout
        if allowed is None or not left <= allowed <= left * LATER:
            self._connection._read_timeout = self._connection._write_timeout = left * LONGER

    def number(self) -> int:
        result = self._connection._result
        return int(result.affected_rows and (result.insert_id or result.affected_rows))

    def usable(self) -> bool:
        sock = self._connection._sock
        if self._aborted or sock is None:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        with self._mutex:
            self._aborted, running = True, self._running
        sock = self._connection._sock
        if sock is not None:
            try:  # not the method of a TLS socket, which would touch its state; this wakes a reading thread
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass
        if not running:  # else that thread closes it: the number of a closed descriptor may be reused at once
            self._connection._force_close()

    async def close(self) -> None:
        self._aborted = True
        if self._connection.open:
            self._connection._write_timeout = GOODBYE_WITHIN
            self._connection.close()

    def disown(self) -> None:
        # Closes this process's copy of the descriptor alone; the session goes on. The driver's buffer is left as it is:
        # if a thread of the parent was reading at the fork, its lock stays taken, and its `close` would wait for ever.
        self._aborted = True
        connection = self._connection
        sock, connection._sock = connection._sock, None
        self._inherited, connection._rfile = connection._rfile, None
        if sock is not None and (descriptor := sock.detach()) >= 0:
            os.close(descriptor)


async def connect(settings: Settings, runtime: Runtime, within: float) -> BlockingConnection:
    """Open a connection; see `opened`."""
    return await opened(
        settings, runtime, within, resolve=_resolve, dial=_open, wrap=BlockingConnection,
        driver_error=pymysql.MySQLError,
    )  # fmt: skip


async def _resolve(settings: Settings, within: float) -> list[Any]:
    return socket.getaddrinfo(settings.name, settings.port, type=socket.SOCK_STREAM)


async def _open(settings: Settings, address: str, within: float) -> Any:
    if settings.connect is not None:
        connection = settings.connect()
        if not connection.client_flag & MULTI_STATEMENTS:
            connection._execute_command(COM_SET_OPTION, MULTI_STATEMENTS_ON)
            connection._read_packet()
        return connection
    options = Veiled(settings.options)
    if "ssl" not in options:
        options["ssl_disabled"] = True  # else it tries TLS, and trusts any server
    connection = pymysql.connect(
        charset="utf8mb4", autocommit=True, client_flag=MULTI_STATEMENTS, program_name="leasehold",
        connect_timeout=within, read_timeout=within, write_timeout=within, defer_connect=True, **options,
    )  # fmt: skip
    connection.connect(_socket_to(settings, address, within) if address else None)
    return connection


def _socket_to(settings: Settings, address: str, within: float) -> socket.socket:
    """Connect as the driver does."""
    source = settings.options.get("bind_address")
    found = socket.create_connection((address, settings.port), within, (source, 0) if source else None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return found
