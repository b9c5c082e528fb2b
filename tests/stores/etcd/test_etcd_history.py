"""Compacted history, an older copy of the data, and leases and keys that an operator ends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from etcd_helpers import NOISE, in_a_thread, ticket, url

from leasehold import Client, LeaseLost
from leasehold._model import Granted, ReleaseReason, Wait
from leasehold._runtimes.base import finish
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdServer
from support.patience import until

# --- history -----------------------------------------------------------------------------------------------------


def test_compaction_during_a_wait(etcd_server, namespace):
    """The history is compacted again and again, with events that a watch has not delivered; no waiter waits in vain."""
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as one,
        Client.from_url(etcd_server.url, namespace=namespace) as two,
    ):
        for _ in range(5):
            hold = one.lock("x").acquire()
            thread, got = in_a_thread(lambda: two.lock("x").acquire(timeout=30))
            until(lambda: len(etcd_server.keys(f"leasehold/{namespace}/lock/x/")) == 2, 5.0)
            etcd_server.compact()
            start = time.monotonic()
            hold.release()
            thread.join()
            assert time.monotonic() - start < NOISE
            got[0].release()


@contextmanager
def released_before_the_watch_begins(server: EtcdServer, proxy: FaultProxy, namespace: str) -> Iterator[Client]:
    """Delay the waiter's watch until the holder has released and the block has run; then it must wake at once."""
    with (
        Client.from_url(server.url, namespace=namespace) as one,
        Client.from_url(url(proxy), namespace=namespace) as two,
    ):
        hold = one.lock("x").acquire()
        late = proxy.hold(where=b"/v3/watch")
        thread, got = in_a_thread(lambda: two.lock("x", lease=60.0).acquire(timeout=30))
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


# --- an older copy of the data -----------------------------------------------------------------------------------


def test_a_cluster_that_is_restored_from_an_older_copy(namespace, tmp_path):
    """Revisions go back. Holders are notified, and a waiter no longer waits for a revision that is in the future."""
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
        thread, got = in_a_thread(lambda: two.lock("x", lease=30.0).acquire(timeout=60))
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
