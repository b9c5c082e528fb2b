"""What the tests of ZooKeeper share: clients on a proxy, sessions that a server ends, and listings of nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from leasehold import AsyncClient
from leasehold.stores.zookeeper.store import ZooKeeperStore
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness
from leasehold_lab.servers import ZooKeeperServer

HARNESSES = {"blocking": BlockingHarness, "asyncio": AsyncioHarness}

SOON = 5.0
"""Seconds within which an event must happen that depends on no timer."""


def in_both(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a body of a harness and fixtures in the harness of the parameter ``flavor``."""

    def run(flavor: str, *args: Any) -> None:
        HARNESSES[flavor]().run(lambda harness: body(harness, *args))

    return run


def transport(client: AsyncClient) -> Any:
    """Return the store's connection."""
    return cast("ZooKeeperStore", client.store)._transport


def driver(client: AsyncClient) -> Any:
    """Return kazoo's client."""
    return transport(client)._kazoo


def expire(server: ZooKeeperServer, client: AsyncClient) -> None:
    """Let the server end the client's session, as when it expires."""
    server.end_session(driver(client).client_id)


def create_in_session(server: ZooKeeperServer, session: Any, path: str) -> str:
    """Create an ephemeral node in another session, disconnect without ending it, and return the node's path."""
    client = KazooClient(server.address, client_id=session)
    client.start()
    made: str = client.create(path, b"", ephemeral=True, sequence=True)
    client._stopped.set()
    client._connection._socket.shutdown(2)
    client._safe_close()
    client.close()
    return made


def children(server: ZooKeeperServer, path: str) -> list[str]:
    """Return the names of a node's children; none if there is no node."""
    with server.connect() as client:
        try:
            return sorted(client.get_children(path))
        except NoNodeError:
            return []
