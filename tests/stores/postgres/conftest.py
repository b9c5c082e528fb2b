"""Servers for tests with faults: one to break, and a proxy in front of the one that all share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.stores.postgres.statements import script
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import PostgresServer
from support.stores.plain_case import by_steps, way

__all__ = ["by_steps", "way"]  # pytest finds the fixtures here


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test's own, to break."""
    with PostgresServer() as server:
        server.execute(script())
        yield server


@pytest.fixture
def proxied(postgres_server: PostgresServer) -> Iterator[tuple[FaultProxy, str]]:
    with FaultProxy(postgres_server.port) as proxy:
        yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
