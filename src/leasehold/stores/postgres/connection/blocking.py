"""The blocking transport: driving an exchange blocks until the socket is ready."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

from leasehold.stores._sql.transport import addresses_in
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.exchange import SocketWait


class BlockingTransport(PostgresTransport):
    """See `leasehold.stores._sql.transport.SQLTransport`."""

    async def _ready(self, need: SocketWait, timeout: float | None) -> bool:
        poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        poll.register(need.fd, need.events)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    async def _addresses(self, host: str, within: float) -> Sequence[str]:
        return addresses_in(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
