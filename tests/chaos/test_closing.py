"""A client is closed during a renewal, while its store does not answer: it leaves no task and no connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deployments import SYSTEMS, Deployment

from leasehold import AsyncClient
from leasehold._runtimes.clock import boottime
from support.plugins.leaks import alive

ANSWERED = 0.5
"""Seconds that the clients wait for a reply."""

ENDED = 1.0
"""Seconds within which the connections of a task are closed: the event loop or a thread does it later."""


def renewals() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name() == "leasehold-renew"}


CASES = [
    *((name, 1) for name in SYSTEMS),  # the first renewal uses the open connection
    *((name, 2) for name in SYSTEMS if "session" not in name),  # the second one connects; a session has ended by then
]


@pytest.mark.parametrize(("name", "nth"), CASES)
def test_a_renewal_under_way_leaves_no_task_and_no_connection(
    name: str, nth: int, deployment: Deployment, namespace: str
) -> None:
    async def main() -> None:
        before = alive()
        client = AsyncClient.from_url(deployment.url, namespace=namespace, response_timeout=ANSWERED)
        hold = await client.lock("x", lease=SYSTEMS[name].lease).acquire(timeout=10)
        assert hold is not None
        deployment.pause()
        try:
            seen = renewals()
            while len(seen) < nth or not renewals():
                assert not hold.lost
                await asyncio.sleep(0.01)
                seen |= renewals()
            client._engine.watchdog.forget(hold._lease)  # so that the close sends no release, which takes longer
            await client.close()
            assert not asyncio.all_tasks() - {asyncio.current_task()}
            until = boottime() + ENDED
            while left := alive() - before:  # the client object still exists, so its destructor closes nothing
                assert boottime() < until, left
                await asyncio.sleep(0.01)
        finally:
            deployment.resume()

    asyncio.run(main())
