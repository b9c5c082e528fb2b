"""Nodes of Redlock that lose their data one after the other, during one hold: each must vote for the holder again.

Some of them answer later than a majority does. A node is down while the lock is acquired.

And nodes that all lose their data while clients wait: then tokens increase by the clients' clocks alone. A token that
is chosen long before its request is sent may be lower than those that were granted meanwhile, which no node remembers.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest

from leasehold._model import Granted, Ticket, Wait
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock import rounds
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.redis.server import RedisServerModel
from models.system import GOOD
from models.systems.redlock import NODES, RedlockSystem

LEASE = 3.0
"""Seconds; it is renewed at each third of them."""

NEAR, FAR = (0.0001, 0.001), (0.02, 0.08)
"""Seconds that a message takes, at least and at most."""

APART = 2 * LEASE
"""Seconds from the loss of one node's data to that of the next."""


def has_vote(server: RedisServerModel, namespace: str) -> bool:
    return server.answer([b"HGET", keys.node_keys(namespace, "x")[0], b"t"]) is not None


@pytest.mark.parametrize("far", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_a_hold_outlives_the_data_of_every_node(seed: int, far: int) -> None:
    harness, namespace = SimulatedHarness(seed), "n"

    async def body(_: Harness) -> None:
        system, machine = RedlockSystem(harness, 1.0, GOOD), harness.machine("holder")
        chance = harness.scheduler.random
        for number, server in enumerate(chance.sample(system.servers, NODES)):
            server.link(machine.machine.name).latency = FAR if number < far else NEAR
        order = chance.sample(system.servers, NODES)
        order[0].restart(0.5)
        hold = await machine.client(system.opener, namespace=namespace).lock("x", lease=LEASE).acquire()
        assert hold is not None
        for server in order:
            await harness.sleep(APART)
            lacking = [each.machine.name for each in system.servers if not has_vote(each, namespace)]
            assert not lacking, f"at {harness.now():.1f} s the holder lacks the votes of {lacking}"
            server.restart(0.05 + chance.random() * 0.5, lose=True)
        await harness.sleep(APART)
        assert await hold.release() is True

    with quiet():
        harness.run(body)


@pytest.mark.parametrize("seed", range(10))
def test_a_hold_with_a_bare_majority_gets_the_vote_that_replaces_one_of_them(seed: int) -> None:
    """Two nodes were down at the acquire, and are back; before a renewal finds that out, a third one goes down."""
    harness, namespace = SimulatedHarness(seed), "n"

    async def body(_: Harness) -> None:
        system, machine = RedlockSystem(harness, 1.0, GOOD), harness.machine("holder")
        away, lost = (chosen := harness.scheduler.random.sample(system.servers, 3))[:2], chosen[2]
        for server in away:
            server.restart(0.3)
        hold = await machine.client(system.opener, namespace=namespace).lock("x", lease=LEASE).acquire()
        assert hold is not None
        assert not any(has_vote(server, namespace) for server in away)
        await harness.sleep(0.5)
        lost.restart(10 * LEASE)
        await harness.sleep(3 * LEASE)
        assert await hold.release() is True

    with quiet():
        harness.run(body)


CLIENTS, WAITERS, TURNS = 4, 3, 4

SHORT = 1.0
"""Seconds: a lease."""

LOSSES = 2.0
"""Seconds from one loss of all data to the next, on average."""


@pytest.mark.parametrize("seed", range(10))
def test_a_token_is_higher_than_those_granted_before_its_request(seed: int) -> None:
    harness, chance = SimulatedHarness(seed), random.Random(f"forgotten/{seed}")
    grants: list[tuple[float, float, int]] = []  # when it was asked for, when it was answered, the token

    async def work(system: RedlockSystem, machine: SimulatedMachine) -> None:
        client = machine.client(system.opener, namespace="n", response_timeout=1.0)
        store: Any = client._engine.store
        ask = store.try_acquire

        async def noted(name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
            answer: Granted | Wait = await ask(name, ticket, join=join, within=within)
            if isinstance(answer, Granted):
                grants.append((answer.since, machine.now(), answer.token))
            return answer

        store.try_acquire = noted

        async def hold() -> None:
            for _ in range(TURNS):
                patience = chance.choice((0.0, 0.5, 5.0))
                try:
                    if (hold := await client.lock("x", lease=SHORT).acquire(timeout=patience)) is not None:
                        await machine.sleep(chance.uniform(0.0, 1.5))
                        await hold.release()
                except (StoreUnavailable, LeaseLost):
                    pass
                await machine.sleep(chance.choice((0.0, 0.0, 0.5)))

        for job in [machine.spawn(hold) for _ in range(WAITERS)]:
            await job.result()

    async def body(_: Harness) -> None:
        system = RedlockSystem(harness, 1.0, GOOD)
        machines = [harness.machine(f"c{number}", offset=0.0, rate=1.0) for number in range(CLIENTS)]
        jobs = [machine.spawn(partial(work, system, machine)) for machine in machines]
        while not all(job.done() for job in jobs):
            await harness.sleep(chance.uniform(0.0, 2 * LOSSES))
            for server in system.servers:
                server.flush()
        for job in jobs:
            await job.result()

    with quiet():
        harness.run(body)
    assert len(grants) > TURNS
    for (_, answered, token), (asked, _, later) in itertools.permutations(grants, 2):
        assert asked < answered or later > token, f"{token} was granted {asked - answered:.3f} s before {later}"


def test_the_token_of_a_round_is_chosen_after_the_pause_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The votes are split; in the pause the nodes forget them, another client holds, and the nodes forget that."""
    harness = SimulatedHarness(1)
    monkeypatch.setattr(rounds, "FIRST_BACK_OFF", 5.0)

    async def body(_: Harness) -> None:
        system = RedlockSystem(harness, 1.0, GOOD)
        first, other = (harness.machine(name, offset=0.0, rate=1.0) for name in ("first", "other"))
        for server in system.servers[:3]:
            server.answer([b"HSET", keys.node_keys("n", "x")[0], b"t", server.machine.name.encode(), b"f", b"1"])
            server.answer([b"PEXPIRE", keys.node_keys("n", "x")[0], b"60000"])
        lock = first.client(system.opener, namespace="n", response_timeout=10.0).lock("x")
        waits = first.spawn(lambda: lock.acquire(timeout=9.0))
        await harness.sleep(0.1)
        for server in system.servers:
            server.flush()
        between = await other.client(system.opener, namespace="n").lock("x").acquire(timeout=0)
        assert between is not None
        assert not waits.done()
        for server in system.servers:
            server.flush()
        hold = await waits.result()
        assert hold is not None
        assert hold.token > between.token

    with quiet():
        harness.run(body)
