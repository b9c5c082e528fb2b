"""A server with odd settings for each file with faults, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mysql_faults import ODD, make_tables

from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import MariaDBServer
from support.stores.plain_case import by_steps, way

__all__ = ["by_steps", "way"]  # pytest finds the fixtures here


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    """A server for this file, to be left as it was found."""
    with MariaDBServer(config=ODD) as running:
        make_tables(running)
        yield running


@pytest.fixture
def proxy(server: MariaDBServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as between:
        yield between
