"""A client that dies with a thousand waiters: a hand-over passes them over, and costs the server little for each."""

from __future__ import annotations

import threading
import time

import pytest

from leasehold import Client
from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.redis import keys
from leasehold_lab.servers import RedisServer
from support.stores.crowds import commands

WAITERS = 1000
LEASE = 30.0


@pytest.fixture
def server():
    with RedisServer() as running:
        yield running


def enqueue_and_die(url, namespace):
    """Let a thousand tickets of one client wait, and end its connections without a release."""
    runtime = BlockingRuntime()
    store = registry.opener(url).open(runtime, namespace)
    terms = LeaseTerms(LockMode(), Owner("host", 1, "x"), LEASE)
    finish(store.transport.listen(2.0))
    for _ in range(WAITERS):
        finish(store.try_acquire("x", Ticket(ticket_id(runtime.random_bytes(16)), terms), join=True, within=2.0))
    finish(store.close())


def test_a_hand_over_passes_the_waiters_of_a_dead_client_cheaply(server, namespace):
    with Client.from_url(server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        enqueue_and_die(server.url, namespace)
        costs = []
        for _ in range(3):
            server.reset_stats()
            hold.release()
            costs.append(sum(commands(server).values()))
            hold = locks.lock("x", fair=True).acquire()
        hold.release()
        assert costs[0] <= 3.2 * WAITERS, costs
        assert max(costs[1:]) <= 1.2 * WAITERS, costs


def test_a_live_waiter_behind_dead_ones_gets_the_turn_and_they_expire(server, namespace):
    with Client.from_url(server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        enqueue_and_die(server.url, namespace)
        granted = []

        def wait():
            with locks.lock("x", fair=True):
                granted.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        queue, beat, waiters = keys.mutex_keys(namespace, "x")[1:4]
        while server.command("ZCARD", queue) <= WAITERS:
            time.sleep(0.01)
        time.sleep(0.1)  # it has subscribed by now
        released = time.monotonic()
        hold.release()
        thread.join(10)
        assert granted[0] - released < 0.5
        assert server.command("ZCARD", queue) == WAITERS
        seconds, micros = server.command("TIME")
        latest = float(server.command("ZRANGE", beat, "-1", "-1", "WITHSCORES")[1]) / 1000
        assert latest <= int(seconds) + int(micros) / 1e6 + 1.0, "each keeps its place for a second"
        time.sleep(1.1)
        with locks.lock("x", fair=True):
            pass
        for count, key in (("ZCARD", queue), ("ZCARD", beat), ("HLEN", waiters)):
            assert server.command(count, key) == 0
