"""The error that a client gets when a server refuses it, and a server that refuses clients."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import StoreUnavailable, Unsupported
from leasehold.errors import LeaseholdError
from leasehold_lab.conformance.case_context import internal_classes
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port


def refusal(harness: Harness, where: Any, within: float = 2.0, **options: Any) -> LeaseholdError:
    """Return the error of an acquire, raised within so many seconds."""

    async def body(harness: Harness) -> LeaseholdError:
        async with harness.client(where, response_timeout=1.0, **options) as locks:
            started = harness.now()
            with pytest.raises((StoreUnavailable, Unsupported)) as caught:
                await locks.lock("x").acquire(timeout=within + 3)
            assert harness.now() - started < within
            assert internal_classes(caught.value) == []
            return caught.value

    return harness.run(body)


def cluster_node() -> RedisServer:
    """Make a node of a cluster that has no slots: it refuses all keys."""
    return RedisServer(config={"cluster-enabled": "yes", "cluster-port": str(free_port())})
