"""What the etcd store sends and leaves: requests counted, keys, leases, holders of other programs."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from leasehold import AsyncClient, Client, LeaseLost, NameInUse, Unsupported
from leasehold.stores.etcd.keys import Keys, spelled, unspelled
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import EtcdServer
from support.flavors import both
from support.patience import until
from support.stores.doc_pages import numbers


def calls_of(server: EtcdServer, before: dict[str, int]) -> dict[str, int]:
    """Return what was called since, without what a test itself asks to look at the server."""
    now = server.calls()
    names = ("Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "Watch")
    return {name: now.get(name, 0) - before.get(name, 0) for name in names if now.get(name, 0) != before.get(name, 0)}


# --- requests ----------------------------------------------------------------------------------------------------


def stated(label: str) -> int:
    """Return how many requests something costs, as the page says."""
    return numbers("etcd", label)[0]


@both
@pytest.mark.parametrize("kind", ["lock", "rlock", "writer", "permit"])
def test_an_acquire_is_one_request_and_a_release_is_one(etcd_server, namespace, kind, harness):
    async def body(harness):
        locks = harness.client(etcd_server.url, namespace=namespace)
        make = {
            "lock": lambda: locks.lock("x"),
            "rlock": lambda: locks.rlock("x"),
            "writer": lambda: locks.rw_lock("x").writer(),
            "permit": lambda: locks.semaphore("x", 3).permits(2),
        }[kind]
        await (await make().acquire(timeout=5)).release()
        before = etcd_server.calls()
        for _ in range(10):
            await (await make().acquire(timeout=5)).release()
        assert calls_of(etcd_server, before) == {"Txn": 10 * (stated("acquire, nobody there") + stated("release"))}

    harness.run(body)


@both
def test_a_reader_beside_others_and_a_cell_cost_what_the_page_says(etcd_server, namespace, harness):
    async def body(harness):
        locks, others = (harness.client(etcd_server.url, namespace=namespace) for _ in range(2))
        await (await locks.lock("warm").acquire(timeout=5)).release()
        first = await others.rw_lock("x").reader().acquire(timeout=5)
        cell = locks.versioned("cell")
        await cell.put(1)
        before = etcd_server.calls()
        second = await locks.rw_lock("x").reader().acquire(timeout=5)
        assert calls_of(etcd_server, before) == {"Txn": stated("acquire of a reader or of permits alongside others")}
        before = etcd_server.calls()
        await cell.get()
        assert sum(calls_of(etcd_server, before).values()) == stated("cell: read")
        before = etcd_server.calls()
        await cell.put(2)
        assert sum(calls_of(etcd_server, before).values()) == stated("cell: write")
        for hold in (first, second):
            await hold.release()

    harness.run(body)


def test_the_first_acquire_of_a_client_also_gets_a_lease(etcd_server, namespace):
    before = etcd_server.calls()
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("x"), locks.lock("y"):
        pass
    assert calls_of(etcd_server, before) == {"LeaseGrant": 1, "Txn": 4, "LeaseRevoke": 1}


def test_a_hand_over_is_one_more_request_and_waiting_is_none(etcd_server, namespace):
    """However long it waits, as long as nothing is to be renewed."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(etcd_server.url, namespace=namespace) as two,
    ):
        for locks in (one, two):
            with locks.lock("warm"):
                pass
        hold = one.lock("x").acquire()
        before = etcd_server.calls()
        waiter = threading.Thread(target=lambda: two.lock("x").acquire().release())
        waiter.start()
        time.sleep(2.0)
        assert calls_of(etcd_server, before) == {"Txn": 1, "Watch": 1}
        hold.release()
        waiter.join()
        assert calls_of(etcd_server, before) == {"Txn": 4, "Watch": 1}


def test_a_release_wakes_one_of_many(etcd_server, namespace):
    """Ten wait in turn; each is told by the one before it alone, and asks once."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold, waiters = locks.lock("x").acquire(), []
        for number in range(10):
            waiters.append(threading.Thread(target=lambda: locks.lock("x").acquire().release()))
            waiters[-1].start()
            until(lambda n=number: len(etcd_server.keys(f"leasehold/{namespace}/")) == n + 2, 5.0)
        before = etcd_server.calls()
        hold.release()
        for waiter in waiters:
            waiter.join()
        assert calls_of(etcd_server, before) == {"Txn": 21}


def test_one_keep_alive_renews_all_tickets_of_a_length(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        start = time.monotonic()
        holds = [locks.lock(f"x{number}", lease=6.0).acquire() for number in range(30)]
        spread = time.monotonic() - start
        before = etcd_server.calls()
        time.sleep(2.5)
        sent = calls_of(etcd_server, before)
        assert sent["LeaseKeepAlive"] <= 1 + spread / 0.2 + 1  # due within 0.2 s: together
        assert sent["Txn"] == sent["LeaseKeepAlive"]
        for hold in holds:
            hold.release()


# --- keys and leases ---------------------------------------------------------------------------------------------


def test_keys_stand_where_go_puts_them(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("a/b %ü") as hold:
        (key,) = etcd_server.keys(f"leasehold/{namespace}/")
        name, _, entry = key.rpartition("/")
        lease, _, ticket = entry.partition("-")
        assert name == f"leasehold/{namespace}/lock/a%2Fb %25ü"
        assert int(lease, 16) in etcd_server.leases()
        assert len(ticket) == 22
        said = json.loads(etcd_server.ctl("get", key, "-w", "json"))
        assert said["kvs"][0]["create_revision"] == hold.token == said["kvs"][0]["mod_revision"]
        assert said["kvs"][0]["lease"] == int(lease, 16)
        assert etcd_server.keys(f"leasehold/{namespace}/lock/a%2Fb %25ü/") == [key]


def test_the_path_of_the_url_is_the_first_part_of_all_keys(etcd_server, namespace):
    with Client.from_url(f"{etcd_server.url}/my/{namespace}") as locks, locks.lock("x"):
        (key,) = etcd_server.keys(f"my/{namespace}/")
        assert key.startswith(f"my/{namespace}/default/lock/x/")


def test_locks_stand_where_others_prescribe(etcd_server, namespace):
    with Client.from_url(f"{etcd_server.url}?locks=/jobs-{namespace}/") as locks, locks.lock("nightly"):
        assert len(etcd_server.keys(f"/jobs-{namespace}/nightly/")) == 1
        assert [info.name for info in locks.holds()] == ["nightly"]
        assert locks.versioned("v").put("value") == 1
    assert etcd_server.keys(f"/jobs-{namespace}/") == []


def test_names_are_spelled_so_that_no_two_meet():
    names = ["a", "a/b", "a%2Fb", "a%", "%", "/", "a b", "ü/ключ", "\n", "a\x00b", "%25", "a%2fb"]
    assert len({spelled(name) for name in names}) == len(names)
    assert [unspelled(spelled(name)) for name in names] == names
    assert all("/" not in spelled(name) and "\n" not in spelled(name) for name in names)
    keys = Keys("l/", "c/", "g/", "m/")
    assert [keys.name_of(f"{keys.queue(name)}entry") for name in names] == names
    assert keys.name_of("l/a/b/entry") is None


def test_a_lease_is_whole_seconds_and_as_the_server_grants_it():
    """A server with slow elections keeps no short leases: the holder is told how long it has."""
    with EtcdServer(heartbeat=250) as server, Client.from_url(server.url) as locks:  # least lease: 3.75 s
        with locks.lock("x", lease=1.0) as hold:
            assert 3.0 < hold.remaining <= 4.0
        with locks.lock("x", lease=4.2) as hold:
            assert 4.0 < hold.remaining <= 5.0
        with locks.lock("x", lease=0.3, renew=False) as hold:
            assert 3.0 < hold.remaining <= 4.0


def test_a_client_has_one_lease_for_each_length(etcd_server, namespace):
    before = set(etcd_server.leases())
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        holds = [locks.lock(f"{lease}-{number}", lease=lease).acquire() for lease in (10, 20) for number in range(5)]
        assert len(set(etcd_server.leases()) - before) == 2
        for hold in holds:
            hold.release()
        assert len(set(etcd_server.leases()) - before) == 2
    assert set(etcd_server.leases()) == before


def test_a_fixed_lease_ends_though_the_client_renews_others(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        renewed = locks.lock("renewed", lease=1.0).acquire()
        fixed = locks.lock("fixed", lease=1.0, renew=False).acquire()
        start = time.monotonic()
        successor = locks.lock("fixed").acquire(timeout=10)
        assert 0.98 <= time.monotonic() - start < 1.0 + 1.0 + 1.0  # the lease, its notice, noise
        assert fixed.lost
        renewed.raise_if_lost()
        assert successor.token > fixed.token
        with pytest.raises(LeaseLost):
            fixed.release()
        successor.raise_if_lost()


def test_leases_of_fixed_tickets_are_used_again(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        with locks.lock("x", renew=False):
            pass
        before = etcd_server.calls()
        for _ in range(5):
            with locks.lock("x", renew=False) as hold:
                assert hold.remaining > 29.0
        assert calls_of(etcd_server, before) == {"Txn": 10, "LeaseKeepAlive": 5}


def test_a_renewal_is_one_keep_alive_and_one_transaction_for_all_that_hold_and_wait(etcd_server, namespace):
    """The transaction confirms the keep-alive, and shows that the keys are there; it goes through the log."""
    lease = 3.0
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as locks,
        FaultProxy(etcd_server.port) as proxy,
        Client.from_url(f"etcd://127.0.0.1:{proxy.port}", namespace=namespace) as mine,
    ):
        taken = locks.lock("taken", lease=60.0).acquire()
        holds = [mine.lock(f"x{number}", lease=lease).acquire() for number in range(10)]
        waiting = threading.Thread(target=lambda: mine.lock("taken", lease=lease).acquire().release())
        waiting.start()
        until(lambda: proxy.count(b"/v3/lease/keepalive") == 1, lease)
        time.sleep(lease / 6)
        entries, txns = etcd_server.entries(), proxy.count(b"/v3/kv/txn")
        until(lambda: proxy.count(b"/v3/lease/keepalive") == 2, lease)
        time.sleep(lease / 6)
        assert proxy.count(b"/v3/kv/txn") == txns + 1
        assert proxy.count(b"/v3/lease/keepalive") == 2
        assert etcd_server.entries() == entries + 1
        taken.release()
        waiting.join()
        for hold in holds:
            hold.release()


def test_a_key_whose_ticket_is_renewed_no_more_is_taken_out(etcd_server, namespace):
    """A hold that its owner dropped as lost: the client's other locks keep the session, but not this key."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("other", lease=1.0):
        lost = locks.lock("lost", lease=1.0).acquire()
        locks._core._engine.watchdog.forget(lost._core._lease)  # as after a loss that nobody looks at
        start = time.monotonic()
        until(lambda: not etcd_server.keys(f"leasehold/{namespace}/lock/lost/"), 5.0)
        assert time.monotonic() - start < 1.0 + 1.0 / 3 + 1.0


def test_a_hold_counts_from_the_keep_alive_that_was_confirmed_and_not_from_its_own_grant(etcd_server, namespace):
    """The server began to count the session's lease before this lock was asked for."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        start = time.monotonic()
        with locks.lock("x", lease=6.0):
            pass
        time.sleep(1.5)
        before = etcd_server.calls()
        with locks.lock("x", lease=6.0) as hold:
            waited = time.monotonic() - start
            assert hold.remaining <= 6.0 - 1.5
            if waited < 1.9:  # else it was renewed first
                assert calls_of(etcd_server, before) == {"Txn": 1}
        time.sleep(max(0.0, start + 2.5 - time.monotonic()))
        before = etcd_server.calls()
        with locks.lock("x", lease=6.0) as hold:
            assert hold.remaining > 5.0
        assert calls_of(etcd_server, before) == {"Txn": 2, "LeaseKeepAlive": 1}


def test_a_keep_alive_counts_from_before_it_was_sent(etcd_server, namespace):
    """The server may have carried it out at once, and only its answer was slow."""
    with (
        FaultProxy(etcd_server.port) as proxy,
        Client.from_url(f"etcd://127.0.0.1:{proxy.port}", namespace=namespace) as locks,
    ):
        with locks.lock("x", lease=9.0):
            pass
        time.sleep(3.5)  # so that the session is kept alive before the next claim
        proxy.delay(0.5, Side.REPLIES)
        proxy.forget()
        start = time.monotonic()
        hold = locks.lock("x", lease=9.0).acquire(timeout=5)
        waited = time.monotonic() - start
        assert waited >= 1.0
        assert hold.remaining <= 9.0 - 1.0  # as long as both answers took
        assert proxy.count(b"/v3/kv/txn") == 1
        if waited < 2.9:  # else it was renewed meanwhile
            assert proxy.count(b"/v3/lease/keepalive") == 1
        hold.release()


def test_an_idle_client_keeps_nothing_alive(etcd_server, namespace):
    before = set(etcd_server.leases())
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        with locks.lock("x", lease=1.0):
            pass
        (lease,) = set(etcd_server.leases()) - before
        until(lambda: lease not in etcd_server.leases(), 5.0)
        with locks.lock("x", lease=1.0) as hold:
            hold.raise_if_lost()


def test_closing_leaves_no_key_and_no_lease(etcd_server, namespace):
    async def body():
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks:
            await locks.lock("a").acquire()
            await locks.lock("b", renew=False).acquire()
            await locks.rw_lock("c").reader().acquire()
            waiting = asyncio.ensure_future(locks.lock("a").acquire())
            await asyncio.sleep(0.2)
        with pytest.raises(RuntimeError):  # it was refused, or had the lock for a moment while the client closed
            (await waiting).raise_if_lost()

    before = set(etcd_server.leases())
    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []
    assert set(etcd_server.leases()) == before


def test_a_delay_is_refused(etcd_server):
    with Client.from_url(etcd_server.url) as locks, pytest.raises(Unsupported, match="delay"):
        locks.lock("x", lock_delay=1.0)


# --- other programs ----------------------------------------------------------------------------------------------


def test_a_foreign_holder_is_seen_waited_for_and_broken(etcd_server, namespace):
    """As Go's Mutex stands there: a key named by its lease, with an empty value."""
    lease = etcd_server.ask("/v3/lease/grant", {"TTL": "60"})["ID"]
    key = f"leasehold/{namespace}/lock/x/{int(lease):x}"
    etcd_server.ctl("put", f"--lease={int(lease):x}", key, "")
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        assert locks.lock("x").acquire(blocking=False) is None
        info = locks.inspect("x")
        (holder,) = info.holders
        assert holder.host == "lease"
        assert f"{int(lease):x}" in holder.owner
        assert 50 < holder.remaining <= 60
        assert [one.name for one in locks.holds()] == ["x"]
        with pytest.raises(NameInUse):
            locks.rw_lock("x").reader().acquire(timeout=1)
        got = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("x").acquire()))
        waiter.start()
        until(lambda: len(locks.inspect("x").waiters) == 1, 5.0)
        assert not locks.force_release("x", info.token + 1)
        assert locks.force_release("x", info.token)
        waiter.join()
        assert got[0].token > info.token
        got[0].release()
    etcd_server.ask("/v3/lease/revoke", {"ID": lease})


def test_an_election_below_the_name_counts_as_a_holder(etcd_server, namespace):
    etcd_server.ctl("put", f"leasehold/{namespace}/lock/x/77", "proposal")
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        assert locks.lock("x").acquire(timeout=0.1) is None
        assert locks.lock("x").locked()
        assert locks.force_release("x", locks.inspect("x").token)
        locks.lock("x").acquire(timeout=5).release()


# --- the command line --------------------------------------------------------------------------------------------


def test_doctor_looks_at_the_cluster(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert etcd_server.version.removeprefix("etcd ") in findings["etcd server"].found
    assert findings["members"].found == "1 voting"
    assert "3" in findings["members"].remedy or "three" in findings["members"].remedy
    assert findings["alarms"].found == "none"
    assert findings["least lease"].found == "1 s"
    assert "leader" in findings[f"member 127.0.0.1:{etcd_server.port}"].found
