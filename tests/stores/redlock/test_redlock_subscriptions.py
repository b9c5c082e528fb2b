"""Subscriptions of Redlock that are dead, though the client sees no end."""

from __future__ import annotations

from redlock_proxies import proxies

from leasehold.stores.redis.connection.channel import ANSWER_AFTER
from leasehold_lab.runtimes.harnesses import BlockingHarness
from support.patience import until_in


def test_subscriptions_that_are_dead_at_the_nodes_alone_are_replaced(nodes, namespace):
    """A blocking waiter notices them in time for its lease, also if the listeners wait for one with a longer lease."""
    lease = 2.4

    async def body(harness):
        with proxies(nodes, 5) as (fault_proxies, url):
            async with (
                harness.client(nodes.url, namespace=namespace) as others,
                harness.client(url, namespace=namespace) as locks,
            ):
                held = await others.lock("long", lease=60).acquire(timeout=5)
                hold = await others.lock("x", lease=60).acquire(timeout=5)
                long = harness.spawn(lambda: locks.lock("long", lease=60).acquire(timeout=20))
                await until_in(harness, lambda: all(proxy.count(b"SUBSCRIBE") for proxy in fault_proxies))
                await harness.sleep(0.2)
                assert all(proxy.sever(b"SUBSCRIBE") for proxy in fault_proxies)
                before = [proxy.count(b"SUBSCRIBE") for proxy in fault_proxies]
                waiter = harness.spawn(lambda: locks.lock("x", lease=lease).acquire(timeout=20))
                await harness.sleep(lease / 6 + ANSWER_AFTER + 0.6)
                assert all(
                    proxy.count(b"SUBSCRIBE") > count for proxy, count in zip(fault_proxies, before, strict=True)
                )
                for released, waiting in ((hold, waiter), (held, long)):
                    await released.release()
                    await (await waiting.result()).release()

    BlockingHarness().run(body)
