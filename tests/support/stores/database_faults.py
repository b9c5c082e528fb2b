"""What tests with faults on any database server expect of a client."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from leasehold import StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness


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
