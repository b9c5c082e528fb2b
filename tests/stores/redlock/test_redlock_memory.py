"""What a node of Redlock remembers: when it restarts empty, is promoted, or its clock is set back; pending releases."""

from __future__ import annotations

import time

import pytest
from redlock_votes import run, voted

from leasehold import Client, StoreUnavailable, Unsupported
from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, RenewalResult, Ticket
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.background import PendingReleases
from leasehold.stores.redis.redlock.node import OpenRequest
from leasehold.stores.redis.redlock.protocol import Proposal
from leasehold.stores.redis.redlock.rounds import Rounds
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedisServer, RedlockNodes
from support.flavors import both
from support.patience import until_in

FAR = 3600.0
"""Seconds of a step: far more than any lease here."""

QUARANTINE = 0.6
"""Seconds."""

NOISE = 0.05
"""Seconds: a node counts in milliseconds, and a late test sees less."""


@pytest.fixture
def node():
    """A server whose clock can be stepped."""
    server = RedisServer()
    server.give_clock()
    with server:
        yield server


def ticket(letter, lease=30.0, lock_delay=0.0):
    return Ticket(letter * 22, LeaseTerms(LockMode(), Owner("host", 1, letter), lease, lock_delay))


def claim(node, namespace, ticket, token, quarantine=0.0):
    proposal, memory = Proposal("x", ticket, token, token), keys.memory_key(namespace, "")
    return run(
        node,
        protocol.try_acquire(namespace, proposal, token, join=False, channel=b"", quarantine=quarantine, memory=memory),
    )


def remembered(node, namespace):
    """Wait for the end of the quarantine of a new node."""
    assert claim(node, namespace, ticket("a", QUARANTINE), 1, QUARANTINE)[0] == 3
    time.sleep(QUARANTINE + NOISE)
    assert claim(node, namespace, ticket("a", QUARANTINE), 1, QUARANTINE) == [1, "1"]
    assert run(node, protocol.release(namespace, "x", ticket("a"), 1, ReleaseReason.RELEASE)) == 1


def test_a_node_that_was_replaced_and_promoted_again_may_have_forgotten_votes(node, namespace):
    """It has its old run id, and the data of its successor, but may lack its own last votes."""
    remembered(node, namespace)
    node.command("REPLICAOF", "127.0.0.1", "1")
    node.command("REPLICAOF", "NO", "ONE")
    kind, _, left = claim(node, namespace, ticket("b", QUARANTINE), 9, QUARANTINE)
    assert kind == 3
    assert 0 < int(left) <= 1000 * QUARANTINE


def test_a_node_in_quarantine_confirms_no_vote_that_may_have_been_given_back(node, namespace):
    """Its data are older than the give-back. What it has voted for since then, it has forgotten."""
    mine, other, quarantine = ticket("a"), ticket("b"), 30.0
    assert claim(node, namespace, mine, 1, quarantine)[0] == 3
    node.command("HSET", keys.memory_key(namespace, ""), "s", 1)  # it has been running for long
    assert claim(node, namespace, mine, 1, quarantine) == [1, "1"]
    assert claim(node, namespace, mine, 2, quarantine) == [1, "2"]  # the request repeated
    node.command("SAVE")
    assert run(node, protocol.release(namespace, "x", mine, 2, ReleaseReason.RELEASE, last=False)) == 1
    assert claim(node, namespace, other, 3, quarantine) == [1, "3"]
    node.kill()
    node.start()
    assert voted(node, namespace) == mine.id
    assert claim(node, namespace, other, 4, quarantine)[0] == 0  # others still see whose vote it was
    before = node.command("PTTL", keys.node_keys(namespace, "x")[0])
    kind, _, left = claim(node, namespace, mine, 5, quarantine)
    assert kind == 3
    assert 0 < int(left) <= 1000 * quarantine
    assert node.command("PTTL", keys.node_keys(namespace, "x")[0]) <= before
    [(renewal, _)] = protocol.renewals(namespace, [("x", mine)], [])
    assert run(node, renewal) == [1]  # one that holds by later votes loses nothing


def test_a_quarantine_lasts_no_longer_for_a_clock_that_was_set_back(node, namespace):
    assert claim(node, namespace, ticket("a", QUARANTINE), 1, QUARANTINE)[0] == 3
    node.clock.step(-FAR)
    kind, _, left = claim(node, namespace, ticket("a", QUARANTINE), 1, QUARANTINE)
    assert kind == 3
    assert int(left) <= 1000 * QUARANTINE  # once more, from now on
    time.sleep(QUARANTINE + NOISE)
    assert claim(node, namespace, ticket("a", QUARANTINE), 1, QUARANTINE) == [1, "1"]


def test_a_vote_lasts_once_more_for_a_clock_that_was_set_back(node, namespace):
    assert claim(node, namespace, ticket("a", 0.5, 0.2), 1) == [1, "1"]
    node.clock.step(-FAR)
    kind, _, left, holder, _ = claim(node, namespace, ticket("b"), 2)
    assert (kind, holder) == (0, ticket("a").id)
    assert int(left) <= 700
    time.sleep(0.7 + NOISE)
    assert claim(node, namespace, ticket("b"), 2) == [1, "2"]


# --- nodes that restarted empty -----------------------------------------------------------------------------------


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
        hold = await client.lock("x", lease=6).acquire()
        await until_in(harness, lambda: all(voted(node, namespace) for node in nodes.nodes[1:]))
        nodes.nodes[1].flush()
        nodes.nodes[0].start()
        await until_in(harness, lambda: all(voted(node, namespace) for node in nodes.nodes))
        hold.raise_if_lost()
        for node in nodes.nodes[2:4]:  # it holds the other votes again, so it survives this
            node.kill()
        assert await hold.release() is True  # by a majority

    harness.run(body)


@both
def test_a_renewal_regains_the_vote_of_a_node_that_answers_last(namespace, harness):
    """The others confirm each renewal before that node answers that it has forgotten the holder."""
    with RedlockNodes(3) as nodes, FaultProxy(nodes.nodes[0].port) as proxy:
        last = nodes.nodes[0]
        url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in (proxy.port, *(n.port for n in nodes.nodes[1:])))

        async def body(harness):
            hold = await harness.client(url, namespace=namespace).lock("x", lease=6).acquire()
            await until_in(harness, lambda: voted(last, namespace))
            proxy.delay(0.1, Side.REPLIES)
            last.flush()
            await until_in(harness, lambda: voted(last, namespace))
            await hold.release()

        harness.run(body)


@both
@pytest.mark.parametrize("held", [False, True])
def test_only_a_holder_is_asked_votes_for_by_its_renewal(namespace, harness, held, monkeypatch):
    """An attempt without waiting may be renewed while it still asks. Nobody would give back what it then got."""
    asked, mine = [], ticket("t")
    monkeypatch.setattr(Rounds, "ask_missing_votes", lambda rounds, proposal, nodes: asked.extend(nodes))
    with RedlockNodes(3) as nodes:

        async def body(harness):
            store = harness.client(nodes.url, namespace=namespace).store
            if held:
                assert isinstance(await store.try_acquire("x", mine, join=False, within=5.0), Granted)
                await until_in(harness, lambda: all(voted(node, namespace) for node in nodes.nodes))
                nodes.nodes[1].flush()
            else:
                token = store._proposals.get_or_create("x", mine).token
                assert claim(nodes.nodes[0], namespace, mine, token)[0] == 1
            nodes.nodes[2].kill()
            assert await store.renew([("x", mine)], within=5.0) == [RenewalResult.UNKNOWN]
            assert [node.index for node in asked] == ([1] if held else [])

        harness.run(body)


def test_a_release_that_is_not_confirmed_stays_pending_though_others_are():
    ready, sent = [], []
    answers = {"a": [1], "b": [1, ReplyError("LOADING it reads its data")], "c": [ReplyError("WRONGTYPE no")]}

    class Loading:
        """A node that is still loading at the first attempt of one release."""

        index = 0

        def is_skipped(self, now):
            return not ready

        def open_request(self):
            return OpenRequest(self, 0.0)

        def end_request(self, asked, failure, began):
            assert failure is None

        async def run_all(self, commands, within):
            sent.append([*commands])
            return [answers[command].pop() for command in commands]

    node, runtime = Loading(), BlockingRuntime()
    pending = PendingReleases(runtime, [node])
    for command in "abc":
        pending.retry_release(node, command, runtime.now() + 60)
    ready.append(True)
    end = time.monotonic() + 5
    while len(pending):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sent == [["a", "b", "c"], ["b"]]
