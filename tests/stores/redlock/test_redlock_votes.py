"""Votes that come late or are given back, and which waiters a node notifies of its free vote."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import redis
from redlock_votes import run, voted

from leasehold import Client, StoreUnavailable
from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.protocol import Proposal
from leasehold.stores.redis.redlock.rounds import Rounds
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedisServer, RedlockNodes
from support.flavors import both
from support.patience import until_in


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


def test_a_loser_that_releases_twice_takes_no_vote(redlock_nodes, namespace):
    node, mine = redlock_nodes.nodes[0], LeaseTerms(LockMode(), Owner("host", 1, "client"), 30.0)
    winner, loser = Ticket("w" * 22, mine), Ticket("l" * 22, mine)
    assert run(node, protocol.try_acquire(namespace, Proposal("x", winner, 1, 1), 7, join=False, channel=b""))[0] == 1
    assert run(node, protocol.try_acquire(namespace, Proposal("x", loser, 2, 2), 8, join=False, channel=b""))[0] == 0
    for _ in range(2):  # the first one raises the token, so that the second one finds its own
        assert run(node, protocol.release(namespace, "x", loser, 8, ReleaseReason.RELEASE)) == 0
    assert voted(node, namespace) == winner.id


def test_a_waiter_that_finds_a_free_vote_waits_no_more(redlock_nodes, namespace):
    node, terms = redlock_nodes.nodes[0], LeaseTerms(LockMode(), Owner("host", 1, "client"), 30.0)
    holder, waiter = (Proposal("x", Ticket(letter * 22, terms), order, order) for order, letter in ((1, "h"), (2, "w")))
    assert run(node, protocol.try_acquire(namespace, holder, 1, join=True, channel=b""))[0] == 1
    assert run(node, protocol.try_acquire(namespace, waiter, 2, join=True, channel=b""))[0] == 0
    vote, queue, *_ = keys.node_keys(namespace, "x")
    node.command("DEL", vote)  # its lease ended, without a message
    assert node.command("ZCARD", queue) == 1
    assert run(node, protocol.try_acquire(namespace, waiter, 3, join=True, channel=b""))[0] == 1
    assert node.command("ZCARD", queue) == 0


def test_an_earlier_request_that_arrives_after_the_release_joins_no_queue(redlock_nodes, namespace):
    node = redlock_nodes.nodes[0]
    proposal = Proposal("x", Ticket("t" * 22, LeaseTerms(LockMode(), Owner("host", 1, "c"), 30.0)), 7, 7)
    for token in (7, 8):
        assert run(node, protocol.try_acquire(namespace, proposal, token, join=True, channel=b"c"))[0] == 1
    assert run(node, protocol.release(namespace, "x", proposal.ticket, 8, ReleaseReason.RELEASE, several=True)) == 1
    run(node, protocol.give_back(namespace, proposal, 7, b"c"))
    run(node, protocol.try_acquire(namespace, proposal, 7, join=True, channel=b"c"))
    assert node.command("EXISTS", keys.node_keys(namespace, "x")[1]) == 0


@pytest.mark.parametrize("comes", ["claim", "give_back"])
def test_a_request_that_arrives_after_its_release_joins_no_queue(redlock_nodes, namespace, comes):
    """Else it would never be released, and would be notified instead of a live waiter."""
    node = redlock_nodes.nodes[0]
    holder, waiter = (Ticket(one * 22, LeaseTerms(LockMode(), Owner("host", 1, one), 30.0)) for one in "hw")
    proposals = [Proposal("x", holder, 7, 7), Proposal("x", waiter, 8, 8)]

    def claim(proposal, token):
        return run(node, protocol.try_acquire(namespace, proposal, token, join=True, channel=b"c"))[0]

    def queue():
        return node.command("ZRANGE", keys.node_keys(namespace, "x")[1], 0, -1)

    late = (
        protocol.try_acquire(namespace, proposals[1], 8, join=True, channel=b"c")
        if comes == "claim"
        else protocol.give_back(namespace, proposals[1], 8, b"c")
    )
    assert claim(proposals[0], 7) == 1
    back = protocol.release(namespace, "x", waiter, 8, ReleaseReason.RELEASE, last=False)
    run(node, back)  # a vote that was given back is no end of the ticket
    assert claim(proposals[1], 8) == 0
    assert queue() == [waiter.id]
    assert run(node, protocol.release(namespace, "x", waiter, 9, ReleaseReason.RELEASE)) == 1
    run(node, late)
    assert queue() == []
    assert node.command("PTTL", keys.node_keys(namespace, "x")[4]) > 0


@pytest.mark.parametrize(
    ("listeners", "notified"),
    [
        (5, "b"),  # a server counts its subscribers: the first waiter is notified
        (0, "bcdef"),  # no subscribers: each waiter is tried
    ],
    ids=["subscribers", "none"],
)
def test_which_waiters_are_notified_of_a_free_vote(namespace, listeners, notified):
    """A notified waiter that does not ask blocks no other: the next to ask gets the vote."""
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


@both
def test_an_attempt_that_fails_in_a_later_round_leaves_no_queues(namespace, harness, monkeypatch):
    """The nodes are gone by then: the last round was certainly not carried out, but the first one was."""
    give_back = Rounds._give_back

    with RedlockNodes(3) as nodes, ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes]
        url = "redlock://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)

        def then_cut(self, *args, **rest):
            give_back(self, *args, **rest)
            for proxy in proxies:
                proxy.stop()
            for node in self._quorum.nodes:
                node.transport.hang_up()

        async def body(harness):
            client = harness.client(url, namespace=namespace)
            await (await client.lock("other").acquire()).release()  # it is connected
            for node, letter in zip(nodes.nodes[:2], "ab", strict=True):  # all votes differ
                rival = Ticket(letter * 22, LeaseTerms(LockMode(), Owner("host", 1, letter), 60.0))
                asks = protocol.try_acquire(namespace, Proposal("x", rival, 1, 1), 1, join=False, channel=b"")
                assert run(node, asks)[0] == 1
            monkeypatch.setattr(Rounds, "_give_back", then_cut)
            with pytest.raises(StoreUnavailable) as failed:
                await client.lock("x", lease=60).acquire(timeout=5)
            assert failed.value.unknown

            def queues():
                return [node.command("ZCARD", keys.node_keys(namespace, "x")[1]) for node in nodes.nodes]

            assert any(queues())
            for proxy in proxies:
                proxy.start()
            await until_in(harness, lambda: not any(queues()), 30.0)

        harness.run(body)
