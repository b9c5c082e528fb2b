"""Redlock under faults: nodes are killed, emptied, stalled or slow; replies are lost; holders die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
import redis

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable, Unsupported
from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.protocol import Proposal
from leasehold.stores.redis.redlock.rounds import Rounds
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, REDLOCK_LEAVE
from leasehold_lab.history import Bounds, Promise, check
from leasehold_lab.history.journal import Journal, assemble
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedisServer, RedlockNodes
from support.flavors import both
from support.patience import until
from support.steps import TO_THE_END, after_steps

ORDER = Bounds(linearizable=False, tries=False, fifo=False, notified=1.0)


@pytest.fixture
def nodes():
    """Five nodes that a test may break."""
    with RedlockNodes(5) as group:
        yield group
        for node in group.nodes:
            if node.running:
                node.resume()


@contextmanager
def proxies(nodes, count):
    """Put a proxy before the first ``count`` nodes; yield them, and the URL of all."""
    with ExitStack() as stack:
        before = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes[:count]]
        ports = [proxy.port for proxy in before] + [node.port for node in nodes.nodes[count:]]
        yield before, "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def voted(node, namespace, name="x"):
    return node.command("HGET", keys.node_keys(namespace, name)[0], "t")


# --- slow votes -------------------------------------------------------------------------------------------------


@both
def test_slow_votes_shorten_the_remaining_lease(nodes, namespace, harness):
    """A lease counts from before the request for votes."""
    lease, late = 3.0, 1.0

    async def body(harness):
        with proxies(nodes, 5) as (before, url):
            async with harness.client(url, namespace=namespace) as locks:
                await (await locks.lock("other").acquire(timeout=5)).release()
                for proxy in before:
                    proxy.delay(late, Side.REPLIES)
                hold = await locks.lock("x", lease=lease, renew=False).acquire(timeout=2 * lease)
                assert hold is not None
                assert 0 < hold.remaining <= lease - late
                for proxy in before:
                    proxy.heal()
                await hold.release()

    harness.run(body)


@both
def test_votes_slower_than_the_lease_are_given_back(nodes, namespace, harness):
    """No client gets a hold from them. Once the nodes answer again, another client acquires at once."""
    lease = 1.0

    async def body(harness):
        with proxies(nodes, 3) as (before, url):
            async with (
                harness.client(url, namespace=namespace, response_timeout=3.0) as locks,
                harness.client(nodes.url, namespace=namespace) as others,
            ):
                await (await locks.lock("other").acquire(timeout=5)).release()
                held = [proxy.hold(Side.REPLIES) for proxy in before]
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

    def __init__(self, kind, nodes, before):
        self.kind, self.two, self.before = kind, nodes.nodes[:2], before

    def begin(self):
        for node, proxy in zip(self.two, self.before, strict=True):
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
        for node, proxy in zip(self.two, self.before, strict=True):
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
    with proxies(nodes, 2) as (before, url):
        fault = Fault(kind, nodes, before)

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


# --- a node that forgets ----------------------------------------------------------------------------------------


def attempt(locks, name, timeout):
    """Return the hold, or the error as text."""
    try:
        return locks.lock(name, lease=2.5, renew=False).acquire(timeout=timeout)
    except StoreUnavailable as error:
        return str(error)


@pytest.mark.parametrize("quarantine", [0, 3])
def test_a_node_that_restarted_empty_does_not_vote_again_while_in_quarantine(namespace, quarantine):
    """A and B vote; B forgets; B and C would vote again. Without quarantine they do, as the control shows."""
    with RedlockNodes(3) as nodes, FaultProxy(nodes.nodes[2].port) as proxy:
        a, b, c = nodes.nodes
        url = f"redlock://127.0.0.1:{a.port},127.0.0.1:{b.port},127.0.0.1:{{}}?quarantine={quarantine}"
        with (
            Client.from_url(url.format(proxy.port), namespace=namespace) as locks,
            Client.from_url(url.format(c.port), namespace=namespace) as others,
        ):
            start, warm = time.monotonic(), attempt(others, "warm", 0)
            while isinstance(warm, str):  # new nodes may have forgotten votes
                assert quarantine
                assert "may have forgotten votes" in warm
                assert time.monotonic() - start < quarantine + 2
                warm = attempt(others, "warm", 0)
            warm.release()
            time.sleep(0.5)  # the third node's quarantine is over, too
            proxy.stop()
            first = attempt(locks, "x", 5)
            b.restart(keep_data=False)
            a.pause()  # only B and C are left to vote
            second = attempt(others, "x", 0.5)
            a.resume()
            assert first.remaining > 0
            if not quarantine:
                assert second.token > first.token  # both hold; a resource that checks tokens knows the newer
                return
            assert "too few nodes voted: 1 of 3" in second
            later = attempt(others, "x", 5)
            while later is None or isinstance(later, str):
                later = attempt(others, "x", 5)
            assert first.remaining == 0
            assert later.token > first.token


def test_a_lease_longer_than_the_quarantine_is_refused(redlock_nodes, namespace):
    with (
        Client.from_url(redlock_nodes.url + "?quarantine=10", namespace=namespace) as locks,
        pytest.raises(Unsupported, match="longer than the quarantine"),
    ):
        locks.lock("x", lease=11).acquire(timeout=1)


@both
def test_a_renewal_regains_the_votes_of_nodes_that_were_down_or_forgot(nodes, namespace, harness):
    async def body(harness):
        client = harness.client(nodes.url, namespace=namespace)
        nodes.nodes[0].kill()
        hold = await client.lock("x", lease=0.9).acquire()
        nodes.nodes[1].flush()
        nodes.nodes[0].start()
        until = harness.now() + 6.0
        while not all(voted(node, namespace) for node in nodes.nodes):
            assert harness.now() < until
            await harness.sleep(0.05)
        hold.raise_if_lost()
        for node in nodes.nodes[2:4]:  # it holds the other votes again, so it survives this
            node.kill()
        await harness.sleep(1.5)
        hold.raise_if_lost()
        await hold.release()

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


def run(node, command):
    script, those, words = command
    return node.command("EVAL", script.text, len(those), *those, *words)


def test_a_request_that_arrives_after_its_release_gets_no_vote(redlock_nodes, namespace):
    node = redlock_nodes.nodes[0]
    ticket = Ticket("t" * 22, LeaseTerms(LockMode(), Owner("host", 1, "client"), 30.0))
    proposal = Proposal("x", ticket, 7, 7)

    def claim(token):
        command = protocol.try_acquire(namespace, proposal, token, join=False, channel=b"", quarantine=0)
        return run(node, command)

    assert run(node, protocol.release(namespace, "x", ticket, 7, ReleaseReason.RELEASE)) == 0
    assert claim(7)[:2] == [0, "7"]
    assert voted(node, namespace) is None
    assert claim(8) == [1, "8"]
    assert claim(8) == [1, "8"]  # the same round again
    assert claim(9) == [1, "9"]  # another round of the same ticket
    assert run(node, protocol.give_back(namespace, proposal, 8, b"")) == 1
    assert run(node, protocol.release(namespace, "x", ticket, 8, ReleaseReason.RELEASE)) == 1
    assert voted(node, namespace) == ticket.id  # what an older round gives back takes nothing from a newer one
    assert run(node, protocol.release(namespace, "x", ticket, 9, ReleaseReason.RELEASE)) == 1
    assert claim(9)[0] == 0


@pytest.mark.parametrize(
    ("listeners", "notified"),
    [
        (5, "b"),  # a server counts its subscribers: the first waiter is notified
        (0, "bcdef"),  # no subscribers: each waiter is tried
    ],
    ids=["subscribers", "none"],
)
def test_which_waiters_are_notified_of_a_free_vote(namespace, listeners, notified):
    """A notified waiter that does not ask blocks nobody: the next to ask gets the vote."""
    with RedisServer() as node:
        channels = {letter: keys.channel(namespace, letter * 8) for letter in "abcdef"}
        tickets = {one: Ticket(one * 22, LeaseTerms(LockMode(), Owner("host", 1, one), 30.0)) for one in "abcdef"}
        for order, (letter, ticket) in enumerate(tickets.items(), 1):
            proposal = Proposal("x", ticket, order, order)
            asks = protocol.try_acquire(namespace, proposal, order, join=True, channel=channels[letter])
            assert run(node, asks)[0] == (letter == "a")
        pubsub = redis.Redis(port=node.port).pubsub()
        for letter in "bcdef"[:listeners]:
            pubsub.subscribe(channels[letter])
            assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        node.reset_stats()
        assert run(node, protocol.release(namespace, "x", tickets["a"], 1, ReleaseReason.RELEASE)) == 1
        assert node.commandstats()["publish"] == len(notified)
        if listeners:
            assert pubsub.get_message(timeout=5)["data"] == (notified * 22).encode()
            assert pubsub.get_message(timeout=0.2) is None
        pubsub.close()


def test_a_round_after_a_give_back_has_a_new_token(redlock_nodes, namespace):
    """A give-back may arrive after the next round. Its lower token tells the two apart."""
    rounds = []
    ask = Rounds._ask

    def noting(self, proposal, *args, **rest):
        rounds.append(proposal.token)
        return ask(self, proposal, *args, **rest)

    with (
        Client.from_url(redlock_nodes.url, namespace=namespace) as holder,
        Client.from_url(redlock_nodes.url, namespace=namespace) as waiter,
        pytest.MonkeyPatch.context() as patch,
    ):
        holder.lock("x", lease=0.5, renew=False).acquire()
        patch.setattr(Rounds, "_ask", noting)
        waiter.lock("x", lease=5).acquire(timeout=20).release()
    assert len(rounds) > 1
    assert rounds == sorted(set(rounds))


# --- lost replies, cancellation, death --------------------------------------------------------------------------


@both
@pytest.mark.parametrize("script", [REDLOCK_CLAIM, REDLOCK_LEAVE], ids=["claim", "leave"])
def test_lost_replies_of_a_majority(nodes, namespace, harness, script):
    """Votes that a ticket has without knowing do not block it. A release without replies counts."""
    with proxies(nodes, 3) as (before, url):

        async def body(harness):
            client = harness.client(url, namespace=namespace)
            await (await client.lock("x").acquire()).release()
            for proxy in before:
                proxy.cut_at(1, Side.REPLIES) if script is REDLOCK_CLAIM else None
            hold = await client.lock("x").acquire(timeout=5)
            assert hold is not None
            if script is REDLOCK_LEAVE:
                for proxy in before:
                    proxy.cut_at(1, Side.REPLIES)
            await hold.release()
            start = harness.now()
            again = await client.lock("x").acquire(timeout=5)
            assert harness.now() - start < 3.0  # far below the lease
            assert again.token > hold.token
            await again.release()

        harness.run(body)


def test_cancel_at_each_step_leaves_nothing(redlock_nodes, namespace):
    async def body():
        async with AsyncClient.from_url(redlock_nodes.url, namespace=namespace) as locks:
            await (await locks.lock("x").acquire()).release()
            outcomes = set()
            for k in (*range(40), TO_THE_END):
                task = asyncio.ensure_future(locks.lock("x").acquire())
                await after_steps(k, task)
                outcomes.add(task.cancelled())
                if not task.cancelled():
                    await task.result().release()
                start = asyncio.get_running_loop().time()
                hold = await locks.lock("x").acquire(timeout=5)  # the lease is 30 s
                assert asyncio.get_running_loop().time() - start < 3.0
                await hold.release()
            assert outcomes == {True, False}

    asyncio.run(body())
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        until(lambda: locks.holds() == [] and not any(voted(node, namespace) for node in redlock_nodes.nodes), 5.0)


HOLD = """
import sys, time
from leasehold import Client
locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
hold = locks.lock("x", lease=1.0).acquire()
print(hold.token, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_holder_that_dies_or_stalls_blocks_for_its_lease(redlock_nodes, namespace, end):
    command = [sys.executable, "-c", HOLD, redlock_nodes.url, namespace]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder,
        Client.from_url(redlock_nodes.url, namespace=namespace) as locks,
    ):
        try:
            token = int(holder.stdout.readline())
            assert locks.lock("x").acquire(blocking=False) is None
            os.kill(holder.pid, end)
            start = time.monotonic()
            hold = locks.lock("x").acquire(timeout=20)
            assert time.monotonic() - start < 1.0 + 1.0  # lease, back-off and noise
            assert hold.token > token
            hold.release()
        finally:
            holder.kill()


def test_a_forked_child_has_connections_and_votes_of_its_own(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                taken = locks.lock("x").acquire(blocking=False)
                own = locks.lock("y").acquire(timeout=5)
                code = 0 if taken is None and own is not None and own.release() else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        hold.raise_if_lost()
        assert hold.release() is True


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
