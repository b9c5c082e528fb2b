"""Redlock without failures: the number of rounds, waiting, tokens, refusals, and the outcome of votes."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from leasehold import AsyncClient, Client, Unsupported
from leasehold._model import Change, RenewalResult, Severity
from leasehold._runtimes.base import finish
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.protocol import (
    Outcome,
    Vote,
    free_after,
    majority,
    outcome,
    released_majority,
    renewal_result,
)
from leasehold.stores.redis.redlock.rounds import Rounds
from support.flavors import both
from support.patience import until


def scripts_run(nodes):
    return [node.commandstats().get("evalsha", 0) for node in nodes.nodes]


def votes_of(nodes, namespace, name):
    """Return the ticket that has the vote of each node."""
    return [node.command("HGET", keys.node_keys(namespace, name)[0], "t") for node in nodes.nodes]


# --- rounds -----------------------------------------------------------------------------------------------------


@both
def test_acquire_and_release_cost_one_parallel_round_each(redlock_nodes, namespace, harness):
    async def body(harness):
        lock = harness.client(redlock_nodes.url, namespace=namespace).lock("x")
        await (await lock.acquire()).release()  # the nodes know the scripts by now
        await harness.sleep(0.3)
        for node in redlock_nodes.nodes:
            node.reset_stats()
        hold = await lock.acquire()
        await harness.sleep(0.3)  # for the slow nodes, too
        assert scripts_run(redlock_nodes) == [1] * 5
        await hold.release()
        await harness.sleep(0.3)
        assert scripts_run(redlock_nodes) == [2] * 5
        assert not any("keys" in node.commandstats() for node in redlock_nodes.nodes)

    harness.run(body)


@both
def test_a_waiter_sends_nothing_until_a_release_wakes_it(redlock_nodes, namespace, harness):
    async def body(harness):
        first, second = (harness.client(redlock_nodes.url, namespace=namespace) for _ in range(2))
        hold = await first.lock("x", lease=60.0).acquire()
        job = harness.spawn(lambda: second.lock("x", lease=60.0).acquire(timeout=20.0))
        info = await first.inspect("x")
        while not info.waiters:
            await harness.sleep(0.01)
            info = await first.inspect("x")
        await harness.sleep(0.5)
        for node in redlock_nodes.nodes:
            node.reset_stats()
        await harness.sleep(1.5)
        assert scripts_run(redlock_nodes) == [0] * 5
        released = harness.now()
        await hold.release()
        late = await job.result()
        assert harness.now() - released < 1.0  # far below the lease: it was notified
        assert late.token > hold.token
        await late.release()

    harness.run(body)


def test_twenty_clients_at_once_make_progress_within_ten_rounds(redlock_nodes, namespace, monkeypatch):
    rounds, ask = {}, Rounds._ask

    def counted(self, proposal, channels, *, join, until):
        rounds[proposal.ticket.id] = rounds.get(proposal.ticket.id, 0) + 1
        return ask(self, proposal, channels, join=join, until=until)

    run = Node.ask_all

    async def ask_with_delay(self, commands, within):
        await asyncio.sleep(random.random() * 0.005)
        return await run(self, commands, within)

    monkeypatch.setattr(Rounds, "_ask", counted)
    monkeypatch.setattr(Node, "post", lambda *_: False)  # so that all requests go through the background
    monkeypatch.setattr(Node, "ask_all", ask_with_delay)

    async def start(number):
        """Let all clients request one name at once; return the highest number of rounds until one acquired it."""
        clients = [AsyncClient.from_url(redlock_nodes.url, namespace=namespace) for _ in range(20)]
        try:
            await asyncio.gather(*[client.inspect("x") for client in clients])  # all are connected
            rounds.clear()
            tasks = [asyncio.ensure_future(client.lock(f"x{number}").acquire(timeout=10)) for client in clients]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            most = max(rounds.values())
            for task in pending:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.result() is not None for task in done)
            return most
        finally:
            await asyncio.gather(*[client.close() for client in clients])

    async def body():
        return sorted([await start(number) for number in range(6)])

    most = asyncio.run(body())
    assert most[-1] <= 10, most
    assert most[-1] > 1, "no vote was ever split"


# --- tokens -----------------------------------------------------------------------------------------------------


@both
def test_a_client_whose_clock_is_behind_still_gets_a_higher_token(redlock_nodes, namespace, harness):
    ahead = (int(time.time()) + 3600) * 1_000_000

    async def body(harness):
        client = harness.client(redlock_nodes.url, namespace=namespace)
        for node in redlock_nodes.nodes[1:4]:
            node.command("HSET", keys.node_keys(namespace, "x")[4], "f", ahead)
        first = await client.lock("x").acquire(timeout=5)
        assert first.token > ahead
        await first.release()
        second = await client.lock("x").acquire(timeout=5)
        assert second.token > first.token
        await second.release()

    harness.run(body)


def test_the_highest_token_outlives_release_and_expiry(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        released = locks.lock("released").acquire()
        released.release()
        expired = locks.lock("expired", lease=0.2, renew=False).acquire()
        time.sleep(0.4)

        def remembered(name):
            found = [node.command("HGET", keys.node_keys(namespace, name)[4], "f") for node in redlock_nodes.nodes]
            return [int(token or 0) for token in found]

        until(lambda: remembered("released") == [released.token] * 5, 5.0)
        until(lambda: remembered("expired") == [expired.token] * 5, 5.0)
        for node in redlock_nodes.nodes:
            for key in node.command("KEYS", f"leasehold:{{{namespace}:*"):
                assert key.endswith(":votetoken"), key
                assert 0 < node.command("PTTL", key) <= 3_600_000 + 30_000
        assert locks.lock("expired").acquire().token > expired.token


# --- refusals and doctor ----------------------------------------------------------------------------------------


def test_what_cannot_be_promised_is_refused_with_the_reason(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        for make in (locks.lock, locks.rlock):
            with pytest.raises(
                Unsupported, match=r"fair order; its nodes know nothing of each other.* leave it out, or"
            ):
                make("x", fair=True)
        with pytest.raises(Unsupported, match=r"shared|fair"):
            locks.rw_lock("x").reader()
        with pytest.raises(Unsupported, match="permits"):
            locks.semaphore("x", 2).acquire()
        with pytest.raises(Unsupported, match="versions"):
            locks.versioned("x")
        with pytest.raises(Unsupported, match="cannot agree"):
            finish(locks.store.compare_and_set("x", Change()))


def test_doctor_looks_at_all_nodes(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["nodes"].severity is Severity.OK
    assert findings["restart of a node"].severity is Severity.WARNING  # they keep no data, and there is no quarantine
    assert "clocks of the nodes" in findings
    for node in redlock_nodes.nodes:
        assert findings[f"127.0.0.1:{node.port} eviction"].severity is Severity.OK
    four = redlock_nodes.url.rpartition(",")[0] + "?quarantine=60"
    with Client.from_url(four, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["nodes"].severity is Severity.WARNING
    assert findings["restart of a node"].severity is Severity.OK
    with Client.from_url(redlock_nodes.url.rpartition(",")[0] + ",127.0.0.1:1", namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["quorum"].severity is Severity.WARNING
    assert "127.0.0.1:1" in findings["quorum"].found


# --- the outcome of votes ---------------------------------------------------------------------------------------

MINE, OTHER, THIRD = Vote(token=7), Vote(top=5, left=9.0, holder="o", owner="h:1:o"), Vote(top=5, left=4.0, holder="t")
FREE, ABSTAINS = Vote(top=9), Vote(top=1, left=30.0, abstains=True)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([MINE, MINE, MINE], Outcome.WON),
        ([MINE, MINE, MINE, OTHER, OTHER], Outcome.WON),
        ([MINE, MINE, OTHER, OTHER, OTHER], Outcome.TAKEN),
        ([MINE, MINE, OTHER, OTHER, THIRD], Outcome.SPLIT),
        ([MINE, MINE, Vote(token=6), OTHER, OTHER], Outcome.LOW),
        ([MINE, MINE, FREE], Outcome.LOW),
        ([FREE] * 5, Outcome.LOW),
        ([MINE, MINE], Outcome.SILENT),
        ([MINE, MINE, ABSTAINS, ABSTAINS, ABSTAINS], Outcome.SILENT),
        ([MINE, MINE, ABSTAINS, OTHER], Outcome.SPLIT),
        ([], Outcome.SILENT),
    ],
)
def test_the_outcome_of_a_round(votes, expected):
    assert outcome(dict(enumerate(votes)), 7, 5) is expected


def test_majorities():
    assert [majority(nodes) for nodes in (3, 4, 5, 6, 7)] == [2, 3, 3, 4, 4]
    assert free_after(dict(enumerate([MINE, OTHER, THIRD, OTHER, THIRD])), 5) == 4.0
    assert [
        renewal_result(dict(enumerate(told)), 5) for told in ([1, 1, 1], [1, 1, 0, 0], [0, 0, 0], [2, 2, 3], [1, 1, 2])
    ] == [
        RenewalResult.HELD,
        None,
        RenewalResult.GONE,
        RenewalResult.QUEUED,
        RenewalResult.QUEUED,
    ]
    assert released_majority({0: True, 1: True, 2: True}, 5) is True
    assert released_majority({0: True, 1: True, 2: False}, 5) is None
    assert released_majority({0: False, 1: False, 2: False}, 5) is False
