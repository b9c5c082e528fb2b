"""Helpers of the tests with faults on PostgreSQL: who waits, and the sessions of our clients."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from leasehold import StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer

NOISE = 1.0
"""Seconds that a busy machine may be late."""


async def unavailable(work: Coroutine[Any, Any, object]) -> StoreUnavailable:
    try:
        result = await work
    except StoreUnavailable as error:
        return error
    raise AssertionError(f"StoreUnavailable expected, but it returned {result!r}")


async def queued(harness: Harness, client: Any, name: str, count: int) -> None:
    until = harness.now() + 5
    while (info := await client.inspect(name)) is None or len(info.waiters) != count:
        assert harness.now() < until, info
        await harness.sleep(0.01)


def backends(server: PostgresServer) -> int:
    return server.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND pid <> pg_backend_pid()"
    )[0][0]


def terminate(server: PostgresServer) -> int:
    """End all our backends, as an operator does; return how many there were."""
    return len(
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'")
    )
