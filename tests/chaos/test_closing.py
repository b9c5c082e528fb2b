"""A client that closes while nothing is heard of its store, and a renewal is under way: nothing of it stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deployments import SYSTEMS, Deployment

from leasehold import AsyncClient
from leasehold._runtimes.clock import boottime
from support.leaks import alive

ANSWERED = 0.5
"""Seconds that the clients wait for an answer."""

ENDED = 1.0
"""Seconds in which what a task had ends with it: some ask the event loop, or a thread, to do it."""


def renewals() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name() == "leasehold-renew"}


CASES = [
    *((name, 1) for name in SYSTEMS),  # it was asked on an open connection
    *((name, 2) for name in SYSTEMS if "session" not in name),  # it connects anew; with a session its lock has ended
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
            client._engine.watchdog.forget(hold._lease)  # as if it were lost: nobody leaves for it, which takes longer
            await client.close()
            assert not asyncio.all_tasks() - {asyncio.current_task()}
            until = boottime() + ENDED
            while left := alive() - before:  # the client is still there: what it had is not ended by its end
                assert boottime() < until, left
                await asyncio.sleep(0.01)
        finally:
            deployment.resume()

    asyncio.run(main())
