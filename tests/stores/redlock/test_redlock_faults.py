"""Redlock under faults: nodes are killed, emptied, stalled or slow, and replies are lost."""

from __future__ import annotations

import pytest
from redlock_proxies import proxies
from redlock_votes import knows, voted

from leasehold import LeaseLost, StoreUnavailable
from leasehold._engine.watchdog.background import RELEASE_WITHIN
from leasehold.stores.redis.redlock.node import STUCK
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, REDLOCK_RELEASE
from leasehold_lab.history import Bounds, Promise, check
from leasehold_lab.history.journal import Journal, assemble
from leasehold_lab.proxy.proxy import Side
from leasehold_lab.servers import RedlockNodes
from support.flavors import both
from support.patience import until_in

ORDER = Bounds(linearizable=False, tries=False, fifo=False, notified=1.0)


# --- slow votes -------------------------------------------------------------------------------------------------


@both
def test_slow_votes_shorten_the_remaining_lease(nodes, namespace, harness):
    """A lease counts from before the request for votes."""
    lease, late = 3.0, 1.0

    async def body(harness):
        with proxies(nodes, 5) as (fault_proxies, url):
            async with harness.client(url, namespace=namespace) as locks:
                await (await locks.lock("other").acquire(timeout=5)).release()
                for proxy in fault_proxies:
                    proxy.delay(late, Side.REPLIES)
                hold = await locks.lock("x", lease=lease, renew=False).acquire(timeout=2 * lease)
                assert hold is not None
                assert 0 < hold.remaining <= lease - late
                for proxy in fault_proxies:
                    proxy.heal()
                await hold.release()

    harness.run(body)


@both
def test_votes_slower_than_the_lease_are_given_back(nodes, namespace, harness):
    """No client gets a hold from them. Once the nodes answer again, another client acquires at once."""
    lease = 1.0

    async def body(harness):
        with proxies(nodes, 3) as (fault_proxies, url):
            async with (
                harness.client(url, namespace=namespace, response_timeout=3.0) as locks,
                harness.client(nodes.url, namespace=namespace) as others,
            ):
                await (await locks.lock("other").acquire(timeout=5)).release()
                held = [proxy.hold(Side.REPLIES) for proxy in fault_proxies]
                job = harness.spawn(lambda: locks.lock("x", lease=lease, renew=False).acquire(timeout=1.3 * lease))
                await harness.sleep(1.2 * lease)
                for fault in held:
                    fault.remove()
                try:
                    got = await job.result()
                except (LeaseLost, StoreUnavailable):
                    got = None
                if got is not None:  # it retried, with a new lease
                    assert 0 < got.remaining <= lease
                    await got.release()
                other = await others.lock("x", lease=lease).acquire(timeout=lease)
                assert other is not None
                await other.release()

    harness.run(body)


# --- progress, and tokens in order ------------------------------------------------------------------------------


async def load(harness, url, namespace, records, until, *, clients=3, lease=3.0):
    """Let clients acquire and release until ``until()``, each with a journal; return the number of turns."""
    turns = 0

    async def work(number):
        nonlocal turns
        client = harness.client(url, namespace=namespace, response_timeout=1.0)
        journal = Journal(f"client{number}", harness.now, records.append)
        while not until():
            n = journal.asked("x", lease=lease)
            try:
                hold = await client.lock("x", lease=lease).acquire(timeout=2.0)
            except (StoreUnavailable, LeaseLost) as error:
                journal.failed(n, error)
                continue
            if hold is None:
                journal.refused(n)
                continue
            journal.granted(n, hold.token)
            await harness.sleep(0.002)
            journal.leaving(n)
            try:
                journal.freed(n, await hold.release())
            except LeaseLost:
                journal.notified(n, harness.now())
            turns += 1

    for job in [harness.spawn(lambda number=number: work(number)) for number in range(clients)]:
        await job.result()
    return turns


class Fault:
    """A fault of two of five nodes, and its repair."""

    def __init__(self, kind, nodes, fault_proxies):
        self.kind, self.two, self.fault_proxies = kind, nodes.nodes[:2], fault_proxies

    def begin(self):
        for node, proxy in zip(self.two, self.fault_proxies, strict=True):
            match self.kind:
                case "down" | "empty":
                    node.kill()
                case "stalled":
                    node.pause()
                case "late":
                    proxy.delay(0.4, Side.REPLIES)
                case "blackhole":
                    proxy.blackhole()

    def end(self):
        for node, proxy in zip(self.two, self.fault_proxies, strict=True):
            match self.kind:
                case "down":
                    node.start()
                case "empty":
                    node.restart(keep_data=False)
                case "stalled":
                    node.resume()
            proxy.heal()


@both
@pytest.mark.parametrize("kind", ["down", "empty", "stalled", "late", "blackhole"])
def test_two_of_five_nodes_fail_and_come_back(nodes, namespace, harness, kind):
    """There is progress before, during and after. No two clients hold at a time, and tokens increase."""
    records, stop = [], [False]
    with proxies(nodes, 2) as (fault_proxies, url):
        fault = Fault(kind, nodes, fault_proxies)

        async def body(harness):
            job = harness.spawn(lambda: load(harness, url, namespace, records, lambda: stop[0]))
            grants = []
            for change in (lambda: None, fault.begin, fault.end):
                change()
                start = sum(record["is"] == "granted" for record in records)
                await harness.sleep(0.8)
                grants.append(sum(record["is"] == "granted" for record in records) - start)
            stop[0] = True
            turns = await job.result()
            assert min(grants) > 5, grants
            assert turns == sum(record["is"] == "granted" for record in records)

        harness.run(body)
    verdict = check(assemble(records), ORDER)
    assert verdict.ok, verdict.report()


@both
def test_without_a_majority_acquire_fails_with_the_reason(nodes, namespace, harness):
    async def body(harness):
        client = harness.client(nodes.url, namespace=namespace, response_timeout=1.0)
        hold = await client.lock("x", lease=1.2).acquire()
        for node in nodes.nodes[:3]:
            node.kill()
        start = harness.now()
        with pytest.raises(StoreUnavailable, match=r"too few nodes answered: 2 of 5, and it takes 3") as caught:
            await client.lock("y").acquire(timeout=0.5)
        for node in nodes.nodes[:3]:
            assert f"127.0.0.1:{node.port}" in str(caught.value)
        while not hold.lost:  # a minority renews it, which does not count
            assert harness.now() < start + 1.2 + 0.5
            await harness.sleep(0.02)
        with pytest.raises(LeaseLost):
            await hold.release()
        for node in nodes.nodes[:3]:
            node.start()
        again = await client.lock("x").acquire(timeout=10)
        assert again.token > hold.token
        await again.release()

    harness.run(body)


@both
def test_an_acquire_that_reached_no_node_leaves_nothing_in_the_client(nodes, namespace, harness):
    """No release follows it: it would be for nothing."""

    async def body(harness):
        client = harness.client(nodes.url, namespace=namespace, response_timeout=1.0)
        await (await client.lock("x").acquire()).release()
        for node in nodes.nodes:
            node.kill()
        store, unknown = client.store, [True]
        while unknown[-1]:  # a request on a connection that just ended may have been carried out
            assert len(unknown) < 20
            with pytest.raises(StoreUnavailable) as caught:
                await client.lock("x").acquire(timeout=0.5)
            unknown.append(caught.value.unknown)
        before = len(store._waiting._notified), len(store._proposals._proposals)
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as caught:
                await client.lock("x").acquire(timeout=0.1)
            assert not caught.value.unknown
        assert (len(store._waiting._notified), len(store._proposals._proposals)) == before

    harness.run(body)


# --- a node that does not answer delays no caller ---------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["down", "blackhole"])
def test_a_dead_node_is_not_connected_to_at_each_call(nodes, namespace, harness, kind):
    with proxies(nodes, 1) as ((proxy,), url):

        async def body(harness):
            lock = harness.client(url, namespace=namespace).lock("x")

            async def sixty() -> float:
                start = harness.now()
                for _ in range(60):
                    await (await lock.acquire(timeout=5)).release()
                return harness.now() - start

            usual = await sixty()
            before, began = proxy.connections, harness.now()
            if kind == "blackhole":
                proxy.blackhole()
            else:
                nodes.nodes[0].kill()
            took = await sixty()
            assert took < max(5.0, 3 * usual)  # no call waited for it
            assert (
                proxy.connections - before <= 3 + 2 * (harness.now() - began) / 0.05
            )  # also while it was being killed

        harness.run(body)


@both
def test_a_release_that_failed_on_a_node_is_retried(namespace, harness):
    with RedlockNodes(3, append_only=True) as nodes:
        away = nodes.nodes[2]

        async def body(harness):
            client = harness.client(nodes.url, namespace=namespace, response_timeout=1.0)
            hold = await client.lock("x", lease=60).acquire()
            until = harness.now() + 2.0
            while not voted(away, namespace):
                assert harness.now() < until
                await harness.sleep(0.01)
            away.kill()
            assert await hold.release() is True
            away.start()
            until = harness.now() + 10.0  # far below the lease
            while voted(away, namespace) is not None:
                assert harness.now() < until
                await harness.sleep(0.02)

        harness.run(body)


@both
@pytest.mark.parametrize("hold_for", [0.0, 2 * STUCK], ids=["the release waits, too", "the release is not sent"])
def test_the_vote_of_a_request_that_waits_for_a_stalled_node_is_given_back(namespace, harness, hold_for):
    """In a blocking client the thread of a node sends what was asked meanwhile as soon as the node answers again."""
    with RedlockNodes(3) as nodes:
        stalled = nodes.nodes[2]

        async def body(harness):
            client = harness.client(nodes.url, namespace=namespace, response_timeout=30.0)
            stalled.pause()
            busy = await client.lock("other", lease=60).acquire()  # the request to the stalled node waits for its end
            hold = await client.lock("x", lease=60).acquire()
            await harness.sleep(hold_for)
            assert await hold.release() is True
            await harness.sleep(1.2 * RELEASE_WITHIN)  # no time is left for that release
            stalled.resume()
            await busy.release()
            await (await client.lock("last").acquire()).release()
            await until_in(harness, lambda: knows(stalled, namespace, "x"))
            await until_in(harness, lambda: voted(stalled, namespace) is None)  # far below the lease

        harness.run(body)


# --- lost replies -----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("script", [REDLOCK_CLAIM, REDLOCK_RELEASE], ids=["claim", "release"])
def test_lost_replies_of_a_majority(nodes, namespace, harness, script):
    """Votes whose replies were lost do not block their ticket. A release whose replies were lost takes effect."""
    with proxies(nodes, 3) as (fault_proxies, url):

        async def body(harness):
            client = harness.client(url, namespace=namespace)
            await (await client.lock("x").acquire()).release()
            for proxy in fault_proxies:
                proxy.cut_at(1, Side.REPLIES) if script is REDLOCK_CLAIM else None
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            if script is REDLOCK_RELEASE:
                for proxy in fault_proxies:
                    proxy.cut_at(1, Side.REPLIES)
            await hold.release()
            start = harness.now()
            again = await client.lock("x").acquire(timeout=5)
            assert harness.now() - start < 3.0  # far below the lease
            assert again.token > hold.token
            await again.release()

        harness.run(body)


def test_the_checker_finds_tokens_out_of_order():
    """The other tests rely on this check."""
    records = []
    clock = iter(range(100))
    journal = Journal("a", lambda: float(next(clock)), records.append)
    for token in (2, 1):
        n = journal.asked("x", lease=1.0)
        journal.granted(n, token)
        journal.leaving(n)
        journal.freed(n, confirmed=True)
    verdict = check(assemble(records), ORDER)
    assert [violation.promise for violation in verdict.violations] == [Promise.TOKENS]
