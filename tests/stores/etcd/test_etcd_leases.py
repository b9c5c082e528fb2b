"""The leases of the etcd store: how long they are, from when they count, and what they keep alive."""

from __future__ import annotations

import threading
import time

import pytest
from etcd_helpers import calls_of

from leasehold import Client, LeaseLost
from leasehold.stores.etcd.sessions import KEPT
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import EtcdServer
from support.patience import until


def test_a_lease_has_the_whole_seconds_that_the_server_grants():
    """A server with slow elections grants no short leases: the hold has the granted length."""
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


def test_leases_of_fixed_tickets_are_reused(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        with locks.lock("x", renew=False):
            pass
        before = etcd_server.calls()
        for _ in range(5):
            with locks.lock("x", renew=False) as hold:
                assert hold.remaining > 29.0
        assert calls_of(etcd_server, before) == {"Txn": 10, "LeaseKeepAlive": 5}


def test_leases_that_are_not_kept_for_the_next_ticket_are_forgotten(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        for _ in range(3):
            for hold in [locks.lock(f"x{number}", lease=20.0, renew=False).acquire() for number in range(KEPT + 4)]:
                hold.release()
        assert len(locks._core._engine.store._sessions._all) == KEPT


def test_a_renewal_is_one_keep_alive_and_one_transaction_for_all_tickets(etcd_server, namespace):
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


def test_the_key_of_a_ticket_that_is_no_longer_renewed_is_removed(etcd_server, namespace):
    """A hold that its client dropped as lost: the other locks keep the session alive, but not this key."""
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("other", lease=1.0):
        lost = locks.lock("lost", lease=1.0).acquire()
        locks._core._engine.watchdog.forget(lost._core._lease)  # as after a loss that the program does not notice
        start = time.monotonic()
        until(lambda: not etcd_server.keys(f"leasehold/{namespace}/lock/lost/"), 5.0)
        assert time.monotonic() - start < 1.0 + 1.0 / 3 + 1.0


def test_a_lease_counts_from_the_confirmed_keep_alive_not_from_the_grant(etcd_server, namespace):
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
