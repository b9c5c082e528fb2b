"""A waiter tolerates an outage of the store, and raises at once an error that no retry can cure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from leasehold import AsyncLeadership, Leader, LeaseLost, StoreUnavailable
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, always
from leasehold_lab.runtimes.harnesses import Harness
from support.patience import until_in

LEASE = 1.5

numbers = itertools.count()


class NoRight(StoreUnavailable):
    """As where a server's rule for a user lacks a right."""

    lasting = True


class Outage:
    """A plan that refuses some methods while it lasts."""

    def __init__(self, *methods: str) -> None:
        self.methods = methods
        self.lasts = False
        self.met = 0

    def __call__(self, call: Call) -> Fault | None:
        if not self.lasts or call.method not in self.methods:
            return None
        self.met += 1
        return Fault(Kind.REFUSE)


def space() -> Memory:
    return Memory(f"outages-{next(numbers)}")


def refuse(monkeypatch: pytest.MonkeyPatch, client: Any, method: str) -> None:
    """Let the store of a client refuse a method, for good."""

    async def refused(*args: object, **options: object) -> None:
        raise NoRight(f"the right to {method} is missing")

    core = client.blocking._core if hasattr(client, "blocking") else client
    monkeypatch.setattr(core.store, method, refused)


# --- what no asking again can mend -------------------------------------------------------------------------------


def test_a_waiter_without_the_right_to_subscribe_raises_and_leaves_the_queue(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client, other = harness.client(memory), harness.client(memory)
        refuse(monkeypatch, client, "wait")
        async with other.lock("a"):
            with pytest.raises(NoRight):
                await client.lock("a").acquire()
            found = await other.inspect("a")
            assert found is not None
            assert found.waiters == ()

    harness.run(body)


def test_waiting_for_a_latch_without_the_right_to_subscribe_raises(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        refuse(monkeypatch, client, "wait_for_cell")
        with pytest.raises(NoRight):
            await client.latch("a", 2).wait()

    harness.run(body)


def test_a_barrier_without_the_right_to_read_raises_and_takes_no_entry(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client, other = harness.client(memory), harness.client(memory)
        waits = harness.spawn(lambda: other.barrier("a", 2, lease=LEASE).wait())
        await until_in(harness, lambda: other.barrier("a", 2).n_waiting())
        refuse(monkeypatch, client, "inspect")
        with pytest.raises(NoRight):
            await client.barrier("a", 2, lease=LEASE).wait()
        third = harness.client(memory)
        assert sorted([await third.barrier("a", 2, lease=LEASE).wait(), await waits.result()]) == [0, 1]

    harness.run(body)


def test_who_may_not_look_any_more_is_told_when_it_observes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        stream = client.election("a").observe(every=0.01)
        assert await following(stream) is None
        refuse(monkeypatch, client, "inspect")
        with pytest.raises(NoRight):
            await following(stream)

    harness.run(body)


def test_a_campaign_without_the_right_to_acquire_raises(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())

        async def lead(leadership: AsyncLeadership) -> None:
            refuse(monkeypatch, client, "try_acquire")
            await client.force_release("election/a", leadership.token)
            await until_in(harness, lambda: leadership.lost)  # where a block can be cut short, this one is
            leadership.raise_if_lost()

        with pytest.raises(NoRight):
            await client.election("a", lease=0.3).run(lead)

    harness.run(body)


# --- what passes -------------------------------------------------------------------------------------------------


async def following(stream: Any) -> Leader | None:
    """Return what an observer sees next, in either flavor."""
    found: Leader | None = await anext(stream) if hasattr(stream, "__anext__") else next(stream)
    return found


def test_an_observer_goes_on_when_an_outage_is_over(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, outage = space(), Outage("inspect")
        client, candidate = harness.client(Faulty(memory, outage)), harness.client(memory)
        stream = client.election("a").observe(every=0.01)
        assert await following(stream) is None
        outage.lasts = True
        seen = harness.spawn(lambda: following(stream))
        await until_in(harness, lambda: outage.met > 2)
        assert not seen.done(), "an outage is no change"
        async with candidate.election("a", "me") as leadership:
            outage.lasts = False
            leader = await seen.result()
            assert leader == Leader("me", leadership.token, candidate.owner)

    harness.run(body)


def test_a_former_leader_campaigns_through_an_outage_and_leads_again(harness: Harness) -> None:
    async def body(harness: Harness) -> list[int]:
        outage, tokens = Outage("try_acquire"), list[int]()
        client = harness.client(Faulty(space(), outage))

        async def lead(leadership: AsyncLeadership) -> list[int]:
            tokens.append(leadership.token)
            if len(tokens) == 2:
                return tokens
            outage.lasts = True
            harness.spawn(end_it)
            await client.force_release("election/a", leadership.token)
            await until_in(harness, lambda: leadership.lost)  # where a block can be cut short, this one is
            leadership.raise_if_lost()
            raise AssertionError("the lead is lost")

        async def end_it() -> None:
            await until_in(harness, lambda: outage.met > 2)
            outage.lasts = False

        found = await client.election("a", lease=0.3).run(lead)
        assert found == tokens
        assert tokens[0] < tokens[1]
        outage.lasts = True
        with pytest.raises(StoreUnavailable):
            await client.election("a", lease=0.3).run(lead)  # at the first contact it raises at once
        return tokens

    harness.run(body)


def test_a_lease_lost_error_of_the_work_is_its_own_while_the_leadership_is_held(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())

        async def lead(leadership: AsyncLeadership) -> None:
            raise LeaseLost("a lock that the work uses")

        with pytest.raises(LeaseLost, match="that the work uses"):
            await client.election("a").run(lead)
        assert await client.election("a").leader() is None

    harness.run(body)


def test_members_of_a_barrier_meet_though_dead_members_cannot_be_detected(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, outage = space(), Outage("inspect")
        outage.lasts = True
        one, other = (harness.client(Faulty(memory, outage)).barrier("a", 2, lease=LEASE) for _ in range(2))
        first = harness.spawn(one.wait)
        await until_in(harness, one.n_waiting)
        assert await other.wait() == 1
        assert await first.result() == 0
        assert outage.met

    harness.run(body)


def test_a_latch_is_polled_if_the_subscription_fails(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(Faulty(memory, always(Fault(Kind.REFUSE), ["wait_for_cell"])))
        waits = harness.spawn(client.latch("a", 1).wait)
        await harness.sleep(0.3)
        assert not waits.done()
        await harness.client(memory).latch("a", 1).count_down()
        start = harness.now()
        assert await waits.result()
        assert harness.now() - start < 0.25 + 0.5

    harness.run(body)


def test_a_latch_is_polled_where_the_store_sends_no_notifications(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, watches=False))

    async def body(harness: Harness) -> None:
        memory = space()
        latch = harness.client(memory).latch("a", 1)
        waits = harness.spawn(latch.wait)
        await harness.sleep(0.3)
        await harness.client(memory).latch("a", 1).count_down()
        start = harness.now()
        assert await waits.result()
        assert harness.now() - start < 0.25 + 0.5

    harness.run(body)


def test_a_refused_write_raises_and_is_not_made(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        outage = Outage("compare_and_set")
        value = harness.client(Faulty(space(), outage)).versioned("a")
        await value.put(1)
        outage.lasts = True
        with pytest.raises(StoreUnavailable) as caught:
            await value.put(2)
        assert not caught.value.unknown
        outage.lasts = False
        assert await value.get() == (1, 1)

    harness.run(body)
