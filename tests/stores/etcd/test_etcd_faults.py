"""One etcd through the fault proxy: lost replies, late requests, cut and silent connections."""

from __future__ import annotations

import threading
import time

import pytest
from etcd_helpers import NOISE, TXN, in_a_thread, ticket, url

from leasehold import Client, LeaseLost, StoreUnavailable
from leasehold._model import Granted, ReleaseReason, Wait
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import EtcdServer
from support.flavors import both
from support.patience import until

DELETION = b'"success": [{"request_delete_range"'
"""Of a transaction that deletes. In the other branch of one that reads, a deletion only sends it through the log."""


# --- lost replies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lock", "reader", "permit"])
def test_an_acquire_whose_reply_is_lost_is_retried_and_finds_its_key(etcd_server, proxy, namespace, kind):
    with Client.from_url(url(proxy), namespace=namespace) as locks:
        make = {
            "lock": lambda: locks.lock("x"),
            "reader": lambda: locks.rw_lock("x").reader(),
            "permit": lambda: locks.semaphore("x", 3).permits(2),
        }[kind]
        with locks.lock("warm"):
            pass
        lost = proxy.drop_reply(where=TXN)
        hold = make().acquire()
        assert lost.hits == 1
        assert len(etcd_server.keys(f"leasehold/{namespace}/lock/x/")) == 1
        assert locks.inspect("x").holders[0].token == hold.token
        hold.release()
        (left,) = etcd_server.keys(f"leasehold/{namespace}/")
        assert left.startswith(f"leasehold/{namespace}/grave/"), "the first claim may arrive yet, and does nothing then"
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_release_whose_reply_is_lost_is_retried(etcd_server, proxy, namespace):
    with Client.from_url(url(proxy), namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        lost = proxy.drop_reply(where=TXN)
        hold.release()
        assert lost.hits == 1
        assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_grant_of_a_lease_whose_reply_is_lost_is_not_made_twice(etcd_server, proxy, namespace):
    before = set(etcd_server.leases())
    lost = proxy.drop_reply(where=b"/v3/lease/grant")
    with Client.from_url(url(proxy), namespace=namespace) as locks, locks.lock("x") as hold:
        assert lost.hits == 1
        assert hold.remaining > 29
        assert len(set(etcd_server.leases()) - before) == 1
    assert set(etcd_server.leases()) == before


@pytest.mark.parametrize("shared", [False, True])
def test_an_acquire_that_arrives_after_its_release_does_nothing(etcd_server, proxy, namespace, shared):
    """Its connection was given up, but the network kept the request: without a grave it would hold for ever."""
    with Client.from_url(url(proxy), namespace=namespace, response_timeout=0.5) as locks:
        with locks.lock("warm"):
            pass
        late = proxy.hold(where=TXN, nth=1)
        lock = locks.rw_lock("x").writer() if shared else locks.lock("x")
        with pytest.raises(StoreUnavailable) as failed:
            lock.acquire(timeout=0.3)
        assert failed.value.unknown
        assert late.hits == 1
        assert ["/grave/" in key for key in etcd_server.keys(f"leasehold/{namespace}/")] == [True]
        late.remove()
        time.sleep(1.0)  # it is carried out in a moment, if at all, on however busy a machine
        assert etcd_server.keys(f"leasehold/{namespace}/lock/") == []
        lock.acquire(timeout=5).release()
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_lock_whose_release_never_arrived_is_free_while_the_client_lives(etcd_server, proxy, namespace):
    """The other locks of the client keep the session alive, and so its key: it is taken out when etcd answers again."""
    lease = 2.0
    with Client.from_url(url(proxy), namespace=namespace) as locks, locks.lock("other", lease=lease) as other:
        hold = locks.lock("x", lease=lease).acquire()
        cut = proxy.cut_at(0, where=DELETION)
        assert not hold.release()
        time.sleep(2.5 * lease)  # the leave is given up, and deletions of what was left behind failed, too
        assert cut.hits > 2
        cut.remove()
        with Client.from_url(etcd_server.url, namespace=namespace) as others:
            mine = others.lock("x", lease=lease).acquire(timeout=2 * lease + NOISE)
            assert mine is not None, "no client will ever get it"
            mine.release()
        other.raise_if_lost()


@pytest.mark.parametrize("blocking", [True, False], ids=["acquire", "try"])
def test_a_late_acquire_after_an_answered_one_leaves_no_key(etcd_server, namespace, blocking):
    """A member that was stopped carries it out late, when the lock was released: its client's other locks keep it."""
    queue = f"leasehold/{namespace}/lock/x/"
    with FaultProxy(etcd_server.port) as slow:
        members = f"etcd://127.0.0.1:{slow.port},127.0.0.1:{etcd_server.port}"
        with (
            Client.from_url(members, namespace=namespace, response_timeout=2.0) as locks,
            Client.from_url(etcd_server.url, namespace=namespace) as others,
            locks.lock("other"),
        ):
            theirs = None if blocking else others.lock("x").acquire()
            late = slow.hold(Side.REQUESTS, where=b"/v3/kv/txn", nth=1)
            hold = locks.lock("x").acquire(blocking=blocking)
            assert (hold is not None) is blocking
            assert late.hits == 1
            for one in (hold, theirs):
                if one is not None:
                    one.release()
            assert etcd_server.keys(queue) == []
            late.remove()
            time.sleep(0.5)
            assert etcd_server.keys(queue) == []
            with others.lock("x", timeout=1.0):
                pass


# --- renewals that come late --------------------------------------------------------------------------------------


@both
def test_a_key_is_not_removed_during_a_successful_acquire(etcd_server, proxy, namespace, harness):
    """Its own time was over, since it was not renewed; but its session lives, and its claim was carried out."""

    async def body(harness):
        async with (
            harness.client(url(proxy), namespace=namespace) as locks,
            harness.client(etcd_server.url, namespace=namespace) as others,
        ):
            store, waits, busy, before, after = locks.store, *(ticket(number, lease=2.0) for number in range(4))
            assert isinstance(await others.store.try_acquire("x", before, join=True, within=2.0), Granted)
            assert isinstance(await store.try_acquire("busy", busy, join=True, within=2.0), Granted)
            assert isinstance(await store.try_acquire("x", waits, join=True, within=2.0), Wait)
            await others.store.release("x", before, reason=ReleaseReason.RELEASE, within=2.0)
            for _ in range(2):  # the session lives on, by another ticket
                await harness.sleep(0.9)
                await store.renew([("busy", busy)], within=2.0)
            await harness.sleep(0.3)
            slow = proxy.hold(Side.REPLIES, nth=1)
            claim = harness.spawn(lambda: store.try_acquire("x", waits, join=True, within=5.0))
            while not slow.hits:
                await harness.sleep(0.01)
            await store.renew([("busy", busy)], within=2.0)
            slow.remove()
            granted = await claim.result()
            other = await others.store.try_acquire("x", after, join=True, within=2.0)
            believed = isinstance(granted, Granted) and granted.since + granted.lease * 0.99 > harness.now()
            assert believed is isinstance(other, Wait), (granted, other)
            for one, who in ((store, waits), (store, busy), (others.store, after)):
                await one.release("busy" if who is busy else "x", who, reason=ReleaseReason.RELEASE, within=2.0)

    harness.run(body)


# --- connections -------------------------------------------------------------------------------------------------


def test_connections_that_are_cut_again_and_again(etcd_server, proxy, namespace):
    """Holds live on, hand-overs go on, and no token comes twice."""
    tokens, over = [], threading.Event()

    def work(locks):
        while not over.is_set():
            try:
                with locks.lock("x", lease=2.0, timeout=20) as hold:
                    tokens.append(hold.token)
            except (LeaseLost, StoreUnavailable):
                pass

    with (
        Client.from_url(url(proxy), namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace) as two,
    ):
        held = one.lock("held", lease=2.0).acquire()
        threads = [threading.Thread(target=work, args=(locks,)) for locks in (one, two)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            time.sleep(0.1)
            proxy.cut()
        over.set()
        for thread in threads:
            thread.join()
        held.raise_if_lost()
        held.release()
    assert len(tokens) > 10
    assert tokens == sorted(set(tokens))
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_waiter_whose_watch_was_cut_is_notified(etcd_server, proxy, namespace):
    """It was released while there was no watch: the next one begins where the last one ended."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace) as two,
    ):
        hold = one.lock("x").acquire()
        thread, got = in_a_thread(lambda: two.lock("x", lease=60.0).acquire(timeout=30))
        until(lambda: proxy.count(b"/v3/watch") == 1, 5.0)
        time.sleep(0.1)
        held = proxy.hold(where=b"/v3/watch")
        proxy.cut()
        hold.release()
        time.sleep(0.2)
        start = time.monotonic()
        held.remove()
        thread.join()
        assert got[0] is not None
        assert time.monotonic() - start < 2 + NOISE  # opening may have been given up once meanwhile
        got[0].release()


def test_a_silently_dead_watch_delays_a_waiter_by_a_third_of_a_lease(etcd_server, proxy, namespace):
    """Its events are swallowed and its connection stays: the renewal of the waiter sees that the key is gone."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace) as two,
    ):
        hold = one.lock("x").acquire()
        thread, got = in_a_thread(lambda: two.lock("x", lease=3.0).acquire(timeout=30))
        until(lambda: proxy.count(b"/v3/watch") == 1, 5.0)
        time.sleep(0.1)
        deaf = proxy.drop(Side.REPLIES, where=b'"type":"DELETE"')
        start = time.monotonic()
        hold.release()
        thread.join()
        assert got[0] is not None
        assert time.monotonic() - start < 3.0 / 3 + NOISE
        assert deaf.hits >= 1
        deaf.remove()
        until(lambda: not two.store._watch._waiting, 5.0)
        got[0].release()


def test_a_blackholed_holder_is_notified_before_its_lease_ends(etcd_server, proxy, namespace):
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace, response_timeout=0.5) as two,
    ):
        hold = two.lock("x", lease=2.0).acquire()
        told = []
        hold.on_lost(lambda error: told.append(time.monotonic()))
        proxy.blackhole()
        start = time.monotonic()
        successor = one.lock("x").acquire(timeout=20)
        entered = time.monotonic()
        assert told
        assert told[0] < entered
        assert hold.lost
        assert entered - start < 2.0 + 1.0 + NOISE
        proxy.heal()
        with pytest.raises(LeaseLost):
            hold.release()
        successor.raise_if_lost()
        successor.release()


def test_after_a_silent_member_the_next_one_is_tried(etcd_server, proxy, namespace):
    """Three addresses, the first two of which say nothing: an acquire costs a share of its time for each."""
    with FaultProxy(etcd_server.port) as second, FaultProxy(etcd_server.port) as third:
        where = url(proxy, second, third)
        with Client.from_url(where, namespace=namespace, response_timeout=3.0) as locks:
            hold = locks.lock("x", lease=9.0).acquire()
            proxy.blackhole()
            second.blackhole()
            start = time.monotonic()
            other = locks.lock("y", lease=9.0).acquire()
            assert other is not None
            assert time.monotonic() - start < 3.0 + NOISE
            time.sleep(3.2)  # a renewal
            hold.raise_if_lost()
            hold.release()
            other.release()


def test_a_server_that_is_down_raises_an_error_at_once(namespace):
    with FaultProxy(1) as nobody:
        where = url(nobody)
    with Client.from_url(where, namespace=namespace) as locks:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="nobody listens") as failed:
            locks.lock("x").acquire()
        assert not failed.value.unknown
        assert time.monotonic() - start < NOISE


def test_a_waiter_tolerates_a_restart(namespace):
    with EtcdServer() as server, Client.from_url(server.url, namespace=namespace) as locks:
        hold = locks.lock("x", lease=20.0).acquire()
        thread, got = in_a_thread(lambda: locks.lock("x", lease=20.0).acquire(timeout=30))
        until(lambda: len(server.keys(f"leasehold/{namespace}/lock/")) == 2, 5.0)
        server.restart()
        time.sleep(0.5)
        hold.raise_if_lost()
        start = time.monotonic()
        hold.release()
        thread.join()
        assert time.monotonic() - start < 2 + NOISE
        assert got[0].token > hold.token
        got[0].release()
