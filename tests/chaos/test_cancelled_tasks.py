"""A program cancels all tasks but its own, as many do to shut down, and goes on under its lock: so does its client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from deployments import SYSTEMS, Deployment, systems

from leasehold import AsyncClient, LeaseLost
from leasehold._runtimes.clock import boottime
from leasehold.stores.memory import Memory

LONG = 60.0
"""A lease in seconds; a waiter without messages would learn of its grant at a third of it."""

SOON = LONG / 6


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


async def cancel_others(*, keep: asyncio.Task[Any] | None = None, wait: bool = True) -> None:
    """Do what programs do to shut down; without ``wait`` the tasks have not ended when this returns."""
    cancelled = others() - {keep}
    for task in cancelled:
        task.cancel()
    if wait:
        async with asyncio.timeout(SOON):
            await asyncio.gather(*cancelled, return_exceptions=True)


@pytest.fixture(autouse=True)
def nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if a task was pending when its loop was closed, or ended with an error that nobody retrieved."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.records]
    assert not [record.getMessage() for record in records if record.name == "asyncio"]


@systems
@pytest.mark.parametrize("wait", [True, False], ids=["and waits", "at once"])
def test_a_holder_goes_on(name: str, deployment: Deployment, namespace: str, wait: bool) -> None:
    lease = max(SYSTEMS[name].lease, 2.0)  # it is lost if the machine gives us no time for that long

    async def main() -> None:
        client = AsyncClient.from_url(deployment.url, namespace=namespace)
        other = AsyncClient.from_url(deployment.url, namespace=namespace)
        async with client.lock("a", lease=lease) as hold:
            for _ in range(4):  # also in the middle of a renewal, and again before all has recovered
                await cancel_others(wait=wait)
                await asyncio.sleep(lease * 0.35)
                hold.raise_if_lost()
            assert await other.lock("a", lease=lease).acquire(timeout=0) is None
        got = await other.lock("a", lease=lease).acquire(timeout=0)
        assert got is not None, "it was not released"
        await got.release()
        await client.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.parametrize("wait", [True, False], ids=["and waits", "at once"])
def test_a_holder_is_notified(wait: bool) -> None:
    lease, notified = 0.5, list[float]()

    async def work(client: AsyncClient) -> None:
        async with client.lock("a", lease=lease, renew=False) as hold:
            begun = boottime()
            hold.on_lost(lambda _: notified.append(boottime() - begun))
            for _ in range(3):
                await cancel_others(wait=wait)
            await asyncio.sleep(SOON)

    async def main() -> None:
        client = AsyncClient(Memory("notified"))
        with pytest.raises(LeaseLost):
            await work(client)
        assert len(notified) == 1
        assert notified[0] < SOON
        await client.close()

    asyncio.run(main())


@systems
@pytest.mark.parametrize("wait", [True, False], ids=["and waits", "at once"])
def test_locks_are_handed_over(name: str, deployment: Deployment, namespace: str, wait: bool) -> None:
    async def main() -> None:
        client = AsyncClient.from_url(deployment.url, namespace=namespace)
        other = AsyncClient.from_url(deployment.url, namespace=namespace)
        hold = await client.lock("a", lease=LONG).acquire()
        used = asyncio.ensure_future(other.lock("a", lease=LONG).acquire())  # so that everything runs
        await asyncio.sleep(0.5)
        for keeps in (False, True):
            if not keeps:
                await cancel_others(wait=wait)
                used = asyncio.ensure_future(other.lock("a", lease=LONG).acquire())
                await asyncio.sleep(0.5)
            else:  # only the waiter is spared; the jobs that it depends on are not
                await cancel_others(keep=used, wait=wait)
                await asyncio.sleep(0.5)
            assert hold is not None
            released = boottime()
            await hold.release()
            async with asyncio.timeout(SOON):
                hold = await used
            assert hold is not None
            assert boottime() - released < SOON
            client, other = other, client
            used = asyncio.ensure_future(other.lock("a", lease=LONG).acquire())
            await asyncio.sleep(0.5)
        used.cancel()
        await hold.release()
        await client.close()
        await other.close()

    asyncio.run(main())


@systems
def test_a_release_under_way_is_repeated(name: str, deployment: Deployment, namespace: str) -> None:
    """All is cancelled when the release, and then its repetition, wait for a server that does not answer."""

    async def main() -> None:
        client = AsyncClient.from_url(deployment.url, namespace=namespace, response_timeout=2.0)
        other = AsyncClient.from_url(deployment.url, namespace=namespace)
        hold = await client.lock("a", lease=LONG).acquire()
        assert hold is not None
        deployment.pause()
        try:
            task = asyncio.ensure_future(hold.release())
            for _ in range(5):
                await asyncio.sleep(0.05)
                await cancel_others(wait=False)
            await asyncio.sleep(0.2)
        finally:
            deployment.resume()
        await asyncio.wait((task,), timeout=SOON)
        got = await other.lock("a", lease=LONG).acquire(timeout=SOON)
        assert got is not None
        await got.release()
        await client.close()
        await other.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning")
@systems
def test_a_program_ends_though_a_lock_is_held_to_its_end(name: str, deployment: Deployment, namespace: str) -> None:
    """No task comes back when the program ends, though its client is open and its lock is held to the end."""
    ended: list[float] = []

    async def hold(client: AsyncClient) -> None:
        async with client.lock("a", lease=SYSTEMS[name].lease):
            try:
                await asyncio.sleep(LONG)
            finally:
                await asyncio.sleep(SYSTEMS[name].lease * 1.5)  # longer than the lease: it is renewed
                ended.append(boottime())
        if late := [each for each in others() if each.get_name() == "leasehold-node"]:
            await asyncio.wait(late)  # Redlock: a majority has answered, but not the last node

    async def main() -> AsyncClient:
        client = AsyncClient.from_url(deployment.url, namespace=namespace)
        task = asyncio.ensure_future(hold(client))
        await asyncio.sleep(1.0)
        assert not task.done()
        await cancel_others(keep=task, wait=False)
        return client

    client = asyncio.run(main())
    assert ended
    if name == "zookeeper":  # the threads of its driver would go on
        asyncio.run(client.close())
