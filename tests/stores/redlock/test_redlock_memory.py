"""What a node of Redlock remembers when it is promoted or its clock is set back; and pending releases."""

from __future__ import annotations

import time

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.background import PendingReleases
from leasehold.stores.redis.redlock.node import OpenRequest
from leasehold.stores.redis.redlock.protocol import Proposal
from leasehold_lab.servers import RedisServer

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


def run(node, command):
    script, those, words = command
    return node.command("EVAL", script.text, len(those), *those, *words)


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


def test_a_release_that_is_not_confirmed_stays_pending_though_others_are():
    ready, sent = [], []
    answers = {"a": [1], "b": [1, ReplyError("LOADING it reads its data")], "c": [ReplyError("WRONGTYPE no")]}

    class Loading:
        """A node that is still loading at the first attempt of one release."""

        index = 0

        def is_skipped(self, now):
            return not ready

        def open_request(self):
            return OpenRequest(self)

        def end_request(self, asked, failure):
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
