"""A proxy before the server, and a harness of each flavor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import ZooKeeperServer
from support.programs.zookeeper_client import HARNESSES


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer) -> Iterator[FaultProxy]:
    with FaultProxy(zookeeper_server.port) as proxy:
        yield proxy


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest) -> Harness:
    made: Harness = HARNESSES[request.param]()
    return made
