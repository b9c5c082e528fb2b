"""Processes killed or stopped while they hold or wait: locks are free within the lease, holders are notified."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest

from leasehold import Client
from leasehold._model import Change
from leasehold._runtimes.base import finish
from support.patience import until
from support.stores.killed_clients import CRASH_BOUND, crash, parties

flavors = pytest.mark.parametrize("flavor", ["blocking", "asyncio"])


@flavors
def test_locks_of_a_killed_holder_are_free_within_the_lease(redis_server, namespace, flavor):
    late = crash(redis_server, namespace, flavor, 30, 0.9)
    print(f"free {max(late) * 1000:.0f} ms after the lease at the latest")
    assert max(late) < CRASH_BOUND


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_thousand_killed_holds(redis_server, namespace):
    late = []
    for turn in range(34):
        late += crash(redis_server, f"{namespace}-{turn}", ["blocking", "asyncio"][turn % 2], 30, 0.9)
    assert max(late) < CRASH_BOUND


# --- killed waiters --------------------------------------------------------------------------------------------


@flavors
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1), (0, 1, 2)], ids=["first", "second", "two", "all but one"])
def test_killed_waiters_do_not_delay_others(redis_server, namespace, flavor, victims):
    """Their connections are closed, so a release skips them at once."""
    with parties() as start, Client.from_url(redis_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        waiters = []
        for number in range(4):
            waiters.append(start(redis_server, namespace, flavor, "wait", 30.0, "x"))
            until(lambda n=number: len(locks.inspect("x").waiters) == n + 1, 20)
        time.sleep(0.2)
        for victim in victims:
            waiters[victim].kill()
        time.sleep(0.1)
        released = time.monotonic()
        hold.release()
        for number, waiter in enumerate(waiters):
            if number not in victims:
                said = waiter.hear()
                said = said if "token" in said else waiter.hear()
                assert said["at"] - released < 0.5
        until(lambda: locks.holds() == [], 2.0)


# --- stopped holders -------------------------------------------------------------------------------------------


@flavors
def test_a_holder_stopped_beyond_its_lease_is_notified(redis_server, namespace, flavor):
    lease = 0.5
    with parties() as start, Client.from_url(redis_server.url, namespace=namespace) as locks:
        stopped = start(redis_server, namespace, flavor, "stop", lease, "x")
        token = stopped.hear()["token"]
        os.kill(stopped.process.pid, signal.SIGSTOP)
        start_at = time.monotonic()
        successor = locks.lock("x", lease=5.0).acquire(timeout=5)
        assert time.monotonic() - start_at < lease + CRASH_BOUND
        assert successor.token > token
        written = finish(locks.store.compare_and_set("x:data", Change(b"new", fence=successor.token)))
        assert written.changed
        os.kill(stopped.process.pid, signal.SIGCONT)
        resumed = time.monotonic()
        stopped.say()
        said = stopped.hear()
        assert said["check"] == "lost"
        assert said["written"] is False
        assert said["release"] == "lost"
        assert said["at"] - resumed < 0.25
        time.sleep(0.7)  # for requests that it still has to send
        successor.raise_if_lost()
        successor.renew()
        assert [holder.token for holder in locks.inspect("x").holders] == [successor.token]
        assert finish(locks.store.compare_and_set("x:data", Change())).value == b"new"
        assert successor.release()


# --- an next waiter in the same client --------------------------------------------------------------------------------


def test_a_waiter_watches_a_holder_of_its_own_client(redis_server, namespace):
    """The first waiter acquires, and overruns its fixed lease: the second must watch that lease from then on."""
    lease = 0.9
    with Client.from_url(redis_server.url, namespace=namespace) as locks:
        hold, got = locks.lock("x", lease=lease).acquire(), queue.SimpleQueue()

        def overrun():
            second = locks.lock("x", lease=lease, renew=False).acquire()
            got.put(time.monotonic())
            time.sleep(2 * lease)
            assert second.lost

        def wait():
            third = locks.lock("x", lease=lease).acquire()
            got.put(time.monotonic())
            third.release()

        threads = [threading.Thread(target=overrun), threading.Thread(target=wait)]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda n=number: len(locks.inspect("x").waiters) == n + 1, 5)
        time.sleep(0.1)
        hold.release()
        granted, next_granted = got.get(timeout=5), got.get(timeout=5)
        assert next_granted - granted < lease + CRASH_BOUND
        for thread in threads:
            thread.join()
