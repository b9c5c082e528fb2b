"""One etcd through the fault proxy: lost replies, cut and silent connections, compaction, leases that are ended."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, Wait
from leasehold._runtimes.base import finish
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import EtcdServer
from support.flavors import both
from support.patience import until
from support.steps import TO_THE_END, after_steps

NOISE = 1.0
TXN = b"POST /v3/kv/txn"
DELETION = b'"success": [{"request_delete_range"'
"""Of a transaction that deletes. In the other branch of one that reads, a deletion only sends it through the log."""


@pytest.fixture
def proxy(etcd_server):
    with FaultProxy(etcd_server.port) as proxy:
        yield proxy


def url(*proxies: FaultProxy) -> str:
    return "etcd://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)


def alongside(work):
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    return thread, got


def ticket(number: int, *, lease: float = 10.0) -> Ticket:
    return Ticket(f"ticket-{number:015d}", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease))


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


# --- renewals that come late --------------------------------------------------------------------------------------


@both
def test_a_key_is_not_removed_during_a_successful_acquire(etcd_server, proxy, namespace, harness):
    """Its own time was over, since nobody had renewed it; but its session lives, and its claim was carried out."""

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
        thread, got = alongside(lambda: two.lock("x", lease=60.0).acquire(timeout=30))
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
        thread, got = alongside(lambda: two.lock("x", lease=3.0).acquire(timeout=30))
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
        thread, got = alongside(lambda: locks.lock("x", lease=20.0).acquire(timeout=30))
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


# --- history -----------------------------------------------------------------------------------------------------


def test_compaction_during_a_wait(etcd_server, namespace):
    """History goes again and again, and with it what a watch may have still to tell; nobody waits in vain."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(etcd_server.url, namespace=namespace) as two,
    ):
        for _ in range(5):
            hold = one.lock("x").acquire()
            thread, got = alongside(lambda: two.lock("x").acquire(timeout=30))
            until(lambda: len(etcd_server.keys(f"leasehold/{namespace}/lock/x/")) == 2, 5.0)
            etcd_server.compact()
            start = time.monotonic()
            hold.release()
            thread.join()
            assert time.monotonic() - start < NOISE
            got[0].release()


@contextmanager
def released_before_the_watch_begins(server: EtcdServer, proxy: FaultProxy, namespace: str) -> Iterator[Client]:
    """Hold up the watch of who waits until the holder is gone and the block has run; then it must be told at once."""
    with (
        Client.from_url(server.url, namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace) as two,
    ):
        hold = one.lock("x").acquire()
        late = proxy.hold(where=b"/v3/watch")
        thread, got = alongside(lambda: two.lock("x", lease=60.0).acquire(timeout=30))
        assert late.wait(5)
        hold.release()
        yield one
        start = time.monotonic()
        late.remove()
        thread.join()
        assert time.monotonic() - start < NOISE
        got[0].release()


def test_waiters_retry_when_the_watch_needs_compacted_history(etcd_server, proxy, namespace):
    with released_before_the_watch_begins(etcd_server, proxy, namespace) as locks, locks.lock("y"):
        etcd_server.compact()


def test_a_deletion_at_the_compacted_revision_wakes_the_waiter(etcd_server, proxy, namespace):
    """Many an etcd begins a watch at that revision without a word, and has forgotten what was deleted there."""
    with released_before_the_watch_begins(etcd_server, proxy, namespace):
        etcd_server.compact()


# --- leases that end ---------------------------------------------------------------------------------------------


def lease_of(server: EtcdServer, key: str) -> str:
    return str(int(key.rpartition("/")[2].partition("-")[0], 16))


def test_a_lease_that_the_server_revokes_is_lost_at_the_next_renewal(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x", lease=3.0).acquire()
        (key,) = etcd_server.keys(f"leasehold/{namespace}/lock/x/")
        etcd_server.ask("/v3/lease/revoke", {"ID": lease_of(etcd_server, key)})
        until(lambda: hold.lost, 3.0 / 3 + NOISE)
        with pytest.raises(LeaseLost):
            hold.release()
        with locks.lock("x", lease=3.0, timeout=5) as again:
            assert again.token > hold.token


def test_a_waiter_whose_lease_ended_does_not_hold_after_a_deletion(etcd_server, namespace):
    """Its own key is gone, and another stands there: being woken is not having the lock."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        store = locks.store
        holder, waiter, third = ticket(1), ticket(2), ticket(3, lease=20.0)
        assert isinstance(finish(store.try_acquire("x", holder, join=True, within=5.0)), Granted)
        (key,) = etcd_server.keys(f"leasehold/{namespace}/lock/x/")
        stranger = ticket(4, lease=30.0)
        waits = finish(store.try_acquire("x", waiter, join=True, within=5.0))
        assert isinstance(waits, Wait)
        assert isinstance(finish(store.try_acquire("x", third, join=True, within=5.0)), Wait)
        etcd_server.ask("/v3/lease/revoke", {"ID": lease_of(etcd_server, key)})  # the waiter's, too
        assert finish(store.wait("x", waiter, waits.mark, timeout=10.0)) is None
        answer = finish(store.try_acquire("x", waiter, join=True, within=5.0))
        assert isinstance(answer, Wait), "the third was before it"
        assert isinstance(finish(store.try_acquire("x", third, join=True, within=5.0)), Granted)
        assert isinstance(finish(store.try_acquire("x", stranger, join=True, within=5.0)), Wait)
        for one in (third, stranger, waiter):
            finish(store.release("x", one, reason=ReleaseReason.RELEASE, within=5.0))


def test_a_key_that_an_operator_deletes_is_lost_at_the_next_renewal(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x", lease=3.0).acquire()
        other = locks.lock("y", lease=3.0).acquire()
        etcd_server.ctl("del", f"leasehold/{namespace}/lock/x/", "--prefix")
        until(lambda: hold.lost, 3.0 / 3 + NOISE)
        other.raise_if_lost()
        with pytest.raises(LeaseLost):
            hold.release()
        other.release()


# --- cancellation ------------------------------------------------------------------------------------------------

STEPS = 60
"""More steps of the loop than an acquire, a wait and a release take."""


def pauses(k: int) -> tuple[float]:
    """Let a turn of the loop last, every other time, so long that the server may answer meanwhile."""
    return (0.0 if k % 2 else 0.0004,)


async def _take(lock) -> object:
    return await lock.acquire()


async def nothing_left(server: EtcdServer, namespace: str) -> None:
    until = time.monotonic() + 3.0
    while server.keys(f"leasehold/{namespace}/lock/x/"):
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["lock", "reader", "fixed"])
@pytest.mark.parametrize("cold", [True, False], ids=["while connecting", "connected"])
def test_cancel_a_free_acquire_at_each_step(etcd_server, namespace, cold, kind):
    async def body():
        locks = AsyncClient.from_url(etcd_server.url, namespace=namespace)
        outcomes = set()
        for k in (*range(STEPS // 2), TO_THE_END):
            if cold:
                await locks.close()
                locks = AsyncClient.from_url(etcd_server.url, namespace=namespace)
            else:
                await locks.lock("warm").acquire(blocking=False)
            lock = locks.rw_lock("x").reader() if kind == "reader" else locks.lock("x", renew=kind != "fixed")
            task = asyncio.ensure_future(_take(lock))
            await after_steps(k, task, pauses(k))
            if not task.cancelled():
                await task.result().release()
            outcomes.add(task.cancelled())
            await nothing_left(etcd_server, namespace)
        assert outcomes == {True, False}
        await locks.close()

    before = set(etcd_server.leases())
    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []
    assert set(etcd_server.leases()) <= before


@pytest.mark.parametrize("hand_over", [False, True], ids=["queued", "during the hand-over"])
@pytest.mark.parametrize("kind", ["lock", "writer"])
def test_cancel_a_waiter_at_each_step(etcd_server, namespace, hand_over, kind):
    async def body():
        async with (
            AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks,
            AsyncClient.from_url(etcd_server.url, namespace=namespace) as others,
        ):

            def make(client):
                return client.lock("x") if kind == "lock" else client.rw_lock("x").writer()

            for k in range(STEPS // 2):
                hold = await make(others).acquire()
                task = asyncio.ensure_future(_take(make(locks)))
                if hand_over:
                    while len(etcd_server.keys(f"leasehold/{namespace}/lock/x/")) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
                    await asyncio.sleep(0.01)
                    release = asyncio.ensure_future(hold.release())
                    await after_steps(k, task, pauses(k))
                    await release
                else:
                    await after_steps(k, task, pauses(k))
                    await hold.release()
                if not task.cancelled():
                    await task.result().release()
                await nothing_left(etcd_server, namespace)

    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_cancel_a_release_at_each_step(etcd_server, namespace):
    async def body():
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks:
            for k in range(1, STEPS // 3):
                hold = await locks.lock("x").acquire()
                await after_steps(k, asyncio.ensure_future(hold.release()), pauses(k))
                await nothing_left(etcd_server, namespace)

    asyncio.run(body())


# --- an older copy of the data -----------------------------------------------------------------------------------


def test_a_cluster_that_is_restored_from_an_older_copy(namespace, tmp_path):
    """Revisions go back. Who held is told, and who waited from a revision that is to come waits no longer for that."""
    with (
        EtcdServer() as server,
        Client.from_url(server.url, namespace=namespace) as one,
        Client.from_url(server.url, namespace=namespace) as two,
    ):
        with one.lock("x"):
            pass
        server.ctl("snapshot", "save", str(tmp_path / "copy"))
        for _ in range(50):
            with one.lock("y"):
                pass
        hold = one.lock("x", lease=3.0).acquire()
        thread, got = alongside(lambda: two.lock("x", lease=30.0).acquire(timeout=60))
        until(lambda: len(server.keys(f"leasehold/{namespace}/lock/x/")) == 2, 5.0)
        server.kill()
        peer = f"http://127.0.0.1:{server.peer_port}"
        shutil.rmtree(server.folder / "data")
        server.ctl(
            *("snapshot", "restore", str(tmp_path / "copy"), "--data-dir", str(server.folder / "data")),
            *("--name", server.name, "--initial-cluster", f"{server.name}={peer}"),
            *("--initial-advertise-peer-urls", peer),
        )
        server.start()
        thread.join(20)
        assert got, "it waits for a revision that is long to come"
        got[0].raise_if_lost()
        until(lambda: hold.lost, 3.0 / 3 + NOISE)
        got[0].release()


# --- shared locks ------------------------------------------------------------------------------------------------


def test_a_fair_waiter_does_not_enter_alongside_one_that_overtook_it_unseen(etcd_server, proxy, namespace):
    """A reader that may pass enters between the writer's look and its entering: the writer looks again."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as readers,
        Client.from_url(url(proxy), namespace=namespace) as writers,
    ):
        first = readers.rw_lock("x").reader().acquire()
        thread, got = alongside(lambda: writers.rw_lock("x").writer().acquire(timeout=30))
        until(lambda: len(readers.inspect("x").waiters) == 1, 5.0)
        time.sleep(0.2)
        late = proxy.hold(where=TXN, nth=2)  # it looks, and enters
        first.release()
        assert late.wait(5)
        passing = readers.rw_lock("x", fair=False).reader().acquire(blocking=False)
        assert passing is not None
        late.remove()
        time.sleep(0.3)
        assert got == []
        passing.raise_if_lost()
        passing.release()
        thread.join()
        assert got[0].token > passing.token
        got[0].release()
    assert etcd_server.keys(f"leasehold/{namespace}/") == []


def test_a_hundred_readers_and_permits_at_the_same_moment(etcd_server, namespace):
    """Each enters by three requests, however many others do."""

    async def body(make):
        clients = [AsyncClient.from_url(etcd_server.url, namespace=namespace) for _ in range(10)]
        for client in clients:
            await client.lock("warm").acquire(blocking=False)
        before = etcd_server.calls()["Txn"]
        holds = await asyncio.gather(*(make(clients[number % 10]) for number in range(100)))
        assert etcd_server.calls()["Txn"] - before <= 300
        assert len({hold.token for hold in holds}) == 100
        await asyncio.gather(*(hold.release() for hold in holds))
        for client in clients:
            await client.close()

    asyncio.run(body(lambda client: client.rw_lock("rw").reader().acquire(timeout=30)))
    asyncio.run(body(lambda client: client.semaphore("s", 100).acquire(timeout=30)))
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
            assert mine is not None, "nobody will ever have it"
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
