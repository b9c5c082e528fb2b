"""Lost requests and replies at every chunk of a whole run, cancellations at every step, and forks, on Spring's rows."""

from __future__ import annotations

import asyncio
import os
import threading
from urllib.parse import urlsplit

import pytest
from sql_peers import sql_server

from leasehold import AsyncClient, Client
from leasehold.layouts.sql.spring import key_of
from support.chunk_faults import FAULTS, sweep
from support.flavors import both
from support.steps import TO_THE_END, after_steps

__all__ = ["sql_server"]

STEPS = 60
"""More steps of the loop than an acquire, a wait and a release take."""

FIRST = "at 127.0.0.1"
"""What the error says of a server that could not be reached, so that nothing was done: it names the server."""


def assert_clean(database, namespace):
    """Check that no row is left."""
    assert database.query("SELECT CLIENT_ID FROM INT_LOCK WHERE LOCK_KEY = %s", key_of(f"{namespace}:x")) == []


@both
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.timeout(240)
def test_a_fault_at_every_chunk(sql_server, namespace, harness, name):
    def url_of(proxied):
        return sql_server.url("spring", urlsplit(proxied).port, margin="0.1")

    def clean(space):
        assert_clean(sql_server, space)

    chunks = range(1, 33)
    sweep(sql_server, namespace, harness, name, chunks, assert_clean=clean, url_of=url_of, first=FIRST)


async def keep(lock):
    """Acquire; a cancelled acquire leaves no hold."""
    return await lock.acquire()


@pytest.mark.parametrize("waits", ["free", "waiting", "released"])
@pytest.mark.timeout(240)
def test_cancel_at_each_step(sql_server, namespace, waits):
    url = sql_server.url("spring")

    async def body():
        async with (
            AsyncClient.from_url(url, namespace=namespace) as locks,
            AsyncClient.from_url(url, namespace=namespace) as others,
        ):
            outcomes = set()
            for k in (*range(STEPS), TO_THE_END):
                hold = None if waits == "free" else await others.lock("x").acquire()
                task = asyncio.ensure_future(keep(locks.lock("x")))
                releasing = None
                if waits == "released":
                    await asyncio.sleep(0.03)
                    releasing = asyncio.ensure_future(hold.release())
                elif hold is not None and k is TO_THE_END:
                    releasing = asyncio.ensure_future(hold.release())
                await after_steps(k, task)
                if releasing is not None:
                    await releasing
                elif hold is not None:
                    await hold.release()
                if not task.cancelled():
                    await task.result().release()
                outcomes.add(task.cancelled())
                again = await others.lock("x").acquire(timeout=2)
                assert again is not None, "the cancelled acquire has left a row"
                await again.release()
            assert outcomes == {True, False}

    asyncio.run(body())
    assert_clean(sql_server, namespace)


def test_a_child_waits_and_acquires(sql_server, namespace):
    with Client.from_url(sql_server.url("spring"), namespace=namespace) as locks:
        waited = list[float]()
        hold = locks.lock("x").acquire()
        waiter = threading.Thread(target=lambda: waited.append(locks.lock("x").acquire(timeout=20).release()))
        waiter.start()
        child = os.fork()
        if child == 0:
            try:
                locks.lock("x").acquire(timeout=20).release()
                os._exit(0)
            finally:
                os._exit(1)
        hold.release()
        waiter.join(20)
        assert waited == [True]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_clean(sql_server, namespace)
