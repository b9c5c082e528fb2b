"""A claim overtaken by its own release, on another connection, has no effect when it arrives."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.stores.redis import keys
from leasehold_lab.proxy.proxy import FaultProxy
from support.patience import until

CLAIM = b"EVALSHA"
PRIMITIVES = {
    "lock": lambda client, **options: client.lock("x", lease=20.0, **options),
    "fair": lambda client, **options: client.lock("x", lease=20.0, fair=True, **options),
    "writer": lambda client, **options: client.rw_lock("x", lease=20.0, **options).writer(),
    "permit": lambda client, **options: client.semaphore("x", 1, lease=20.0, **options),
}
primitives = pytest.mark.parametrize("primitive", PRIMITIVES)


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


def _nobody_is_there(server, namespace):
    lock, queue, _, _, holders, _ = keys.shared_keys(namespace, "x")
    holds = server.command("HGET", lock, "t"), server.command("ZCARD", holders), server.command("ZCARD", queue)
    return holds in ((None, 0, 0), (b"", 0, 0), ("", 0, 0))


def _warm(client, primitive):
    PRIMITIVES[primitive](client).acquire().release()


@primitives
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_after_a_give_up(redis_server, proxy, namespace, primitive, taken):
    with (
        Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.5) as locks,
        Client.from_url(redis_server.url, namespace=namespace) as others,
    ):
        _warm(locks, primitive)
        theirs = PRIMITIVES[primitive](others).acquire() if taken else None
        late = proxy.hold(where=CLAIM, nth=1)
        with pytest.raises(StoreUnavailable):
            PRIMITIVES[primitive](locks).acquire(timeout=0.2)
        assert late.hits == 1
        late.remove()  # it is carried out now, for no client
        time.sleep(0.3)
        if theirs is not None:
            theirs.release()
        assert _nobody_is_there(redis_server, namespace)
        with PRIMITIVES[primitive](others, timeout=1.0):
            pass


class Interrupt(Exception):
    pass


def _interrupt(*_):
    raise Interrupt


@primitives
def test_after_an_interrupt(redis_server, proxy, namespace, primitive):
    """A signal handler's exception ends the wait for the reply: the release uses another connection."""
    before = signal.signal(signal.SIGUSR2, _interrupt)
    try:
        with Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=5.0) as locks:
            _warm(locks, primitive)
            late = proxy.hold(where=CLAIM, nth=1)

            def interrupt_when_held():
                until(lambda: late.hits)
                os.kill(os.getpid(), signal.SIGUSR2)

            with ThreadPoolExecutor(1) as pool:
                pool.submit(interrupt_when_held)
                with pytest.raises(Interrupt):
                    PRIMITIVES[primitive](locks).acquire()
            late.remove()
            time.sleep(0.3)
            assert _nobody_is_there(redis_server, namespace)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_after_a_cancellation(redis_server, proxy, namespace):
    async def body():
        async with AsyncClient.from_url(
            f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.5
        ) as locks:
            await (await locks.lock("x").acquire()).release()
            late = proxy.hold(where=CLAIM, nth=1)
            task = asyncio.create_task(locks.lock("x", lease=20.0).acquire())
            while not late.hits:  # noqa: ASYNC110 - it is the proxy that says so
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(2.5)  # its leave was sent on the same connection, and then again on another
            late.remove()
            await asyncio.sleep(0.3)

    asyncio.run(body())
    assert _nobody_is_there(redis_server, namespace)


def test_several_names_at_once(redis_server, proxy, namespace):
    with Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.5) as locks:
        locks.multi_lock(["x", "y"]).acquire().release()
        late = proxy.hold(where=CLAIM, nth=1)
        with pytest.raises(StoreUnavailable):
            locks.multi_lock([locks.lock("x", lease=20.0), locks.lock("y", lease=20.0)]).acquire(timeout=0.2)
        late.remove()
        time.sleep(0.3)
        assert locks.lock("x").acquire(timeout=1.0)
        assert locks.lock("y").acquire(timeout=1.0)


@primitives
def test_after_a_hold_granted_to_a_repeated_claim(redis_server, proxy, namespace, primitive):
    """A waiter's second claim is delayed, the third is answered; the second arrives after the release."""
    with (
        Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=0.3) as locks,
        Client.from_url(redis_server.url, namespace=namespace) as others,
        ThreadPoolExecutor(1) as pool,
    ):
        _warm(locks, primitive)
        theirs = PRIMITIVES[primitive](others).acquire()
        late = proxy.hold(where=CLAIM, nth=2)
        waiting = pool.submit(PRIMITIVES[primitive](locks).acquire, timeout=10)
        until(lambda: late.hits)
        time.sleep(0.6)  # it is asked again
        theirs.release()
        waiting.result().release()
        late.remove()
        time.sleep(0.3)
        assert _nobody_is_there(redis_server, namespace)


def test_after_a_close(redis_server, proxy, namespace):
    """A client is closed while its claim is under way: it releases before the claim arrives, once only."""
    with ThreadPoolExecutor(1) as pool:
        locks = Client.from_url(f"redis://127.0.0.1:{proxy.port}", namespace=namespace, response_timeout=5.0)
        _warm(locks, "lock")
        late = proxy.hold(where=CLAIM, nth=1)
        trying = pool.submit(locks.lock("x", lease=20.0).acquire, timeout=10)
        until(lambda: late.hits)
        locks.close()
        late.remove()
        assert trying.exception() is not None
        time.sleep(0.3)
        assert _nobody_is_there(redis_server, namespace)
