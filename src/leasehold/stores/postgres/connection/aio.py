"""The asyncio transport: driving an exchange suspends until the event loop reports that the socket is ready.

A transaction runs in a task of its own. When its caller is cancelled, it runs to its end, mostly within milliseconds. A
silent server gets `_sql.transport.GRACE`, then the connection is closed. So the cancellation is raised soon. The
release that the caller sends next cannot overtake the transaction: either its commit was sent, and the server keeps the
name locked until it is done, or it never will be sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from leasehold.stores._sql.transport import addresses_in
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.exchange import READ, WRITE, SocketWait


class AioTransport(PostgresTransport):
    """See `leasehold.stores._sql.transport.SQLTransport`."""

    async def _ready(self, need: SocketWait, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()

        def tell(is_ready: bool) -> None:
            if not ready.done():
                ready.set_result(is_ready)

        if need.events & READ:
            loop.add_reader(need.fd, tell, True)
        if need.events & WRITE:
            loop.add_writer(need.fd, tell, True)
        timer = None if timeout is None else loop.call_later(timeout, tell, False)
        try:
            return await ready
        finally:
            if timer is not None:
                timer.cancel()
            if need.events & READ:
                loop.remove_reader(need.fd)
            if need.events & WRITE:
                loop.remove_writer(need.fd)

    async def _addresses(self, host: str, within: float) -> Sequence[str]:
        async with asyncio.timeout(within):
            return addresses_in(await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM))
