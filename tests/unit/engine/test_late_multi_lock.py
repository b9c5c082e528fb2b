"""A multi-lock whose members are granted late, lost on the way, or released without an answer."""

from __future__ import annotations

import pytest
from engine_cases.late import force_release, space

from leasehold import LeaseLost
from leasehold.events import Acquired, Event
from leasehold_lab.conformance.case_context import LASTING
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, nth
from leasehold_lab.runtimes.harnesses import Harness
from support.patience import until_in


@pytest.mark.parametrize(("timeout", "lease"), [(None, LASTING), (0, 0.3)])
def test_late_grants_of_a_multi_lock_are_released(harness: Harness, timeout: float | None, lease: float) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(Faulty(memory, nth(0, Fault(Kind.DELAY_REPLY, lease + 0.1), method="try_acquire_many")))
        lock = client.multi_lock(["a", "b"], lease=lease)
        if timeout is None:
            hold = await lock.acquire()
            assert hold is not None
            hold.raise_if_lost()
            await hold.release()
        else:
            with pytest.raises(LeaseLost, match="too late"):
                await lock.acquire(timeout=timeout)
        assert await harness.client(memory).holds() == []

    harness.run(body)


def test_closing_while_several_are_claimed_leaves_none(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(Faulty(memory, nth(0, Fault(Kind.DELAY_REQUEST, 1.5), method="try_acquire_many")))
        job = harness.spawn(client.multi_lock(["a", "b"]).acquire)
        await harness.sleep(0.1)
        await client.close()
        with pytest.raises(RuntimeError, match="client is closed"):
            await job.result()
        assert await harness.client(memory).holds() == []

    harness.run(body)


def test_closing_while_a_late_grant_is_given_back_ends_the_acquire(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()

        def plan(call: Call) -> Fault | None:
            return {"try_acquire": Fault(Kind.DELAY_REPLY, 0.4), "release": Fault(Kind.DELAY_REPLY, 0.4)}.get(
                call.method
            )

        client = harness.client(Faulty(memory, plan))
        job = harness.spawn(client.lock("a", lease=0.3).acquire)
        await harness.sleep(0.6)
        await client.close()
        with pytest.raises(RuntimeError, match="client is closed"):
            await job.result()
        assert await harness.client(memory).holds() == []

    harness.run(body)


def test_several_whose_release_has_no_answer_are_released_later(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, lost = space(), [True]
        store = Faulty(
            memory, lambda call: Fault(Kind.DROP_REQUEST) if lost[0] and call.method == "release_many" else None
        )
        looker, client = harness.client(memory), harness.client(store)
        hold = await client.multi_lock(["a", "b"], lease=30.0).acquire()
        assert hold is not None
        assert await hold.release() is False
        lost[0] = False

        async def none() -> bool:
            return await looker.holds() == []

        await until_in(harness, none)

    harness.run(body)


@pytest.mark.parametrize(("lease", "renew"), [(LASTING, True), (LASTING, False), (30.0, False)])
def test_a_member_lost_while_the_multi_lock_waits_for_the_next_is_acquired_again(
    harness: Harness, lease: float, renew: bool
) -> None:
    """The loss is noticed by a renewal; or, of leases that begin when all are held, by that beginning."""

    async def body(harness: Harness) -> None:
        memory = space()
        client, other = harness.client(memory), harness.client(memory)
        first = await other.lock("b").acquire()
        assert first is not None
        job = harness.spawn(client.multi_lock(["a", "b"], lease=lease, renew=renew).acquire)

        async def waits() -> bool:
            found = await other.inspect("b")
            return found is not None and bool(found.waiters)

        await until_in(harness, waits)
        found = await other.inspect("a")
        assert found is not None
        assert found.token is not None
        lost = found.token
        assert await other.force_release("a", lost)
        if lease < 30.0:
            await harness.sleep(0.8 * lease)
        await first.release()
        hold = await job.result()
        assert hold is not None
        hold.raise_if_lost()
        assert hold.tokens["a"] > lost, "it was acquired anew"
        await hold.release()
        assert await other.holds() == []

    harness.run(body)


def test_a_member_lost_until_the_timeout_raises_lease_lost(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        slow = Fault(Kind.DELAY_REPLY, 0.9)
        client = harness.client(Faulty(memory, lambda call: slow if call.method == "release" else None))
        other = harness.client(memory)
        first = await other.lock("b").acquire()
        assert first is not None
        job = harness.spawn(lambda: client.multi_lock(["a", "b"], lease=30.0, renew=False).acquire(timeout=3.0))
        await harness.sleep(0.7)
        await force_release(other, "a")
        await harness.sleep(1.6)
        await first.release()
        with pytest.raises(LeaseLost, match="'a'"):
            await job.result()
        assert await other.holds() == []

    harness.run(body)


def test_a_multi_hold_reports_only_the_first_of_several_losses(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client, told = harness.client(space()), list[LeaseLost]()
        hold = await client.multi_lock(["a", "b"], lease=LASTING).acquire()
        assert hold is not None
        hold.on_lost(told.append)
        for name in "ab":
            await force_release(client, name)
        await until_in(harness, lambda: told)
        await harness.sleep(LASTING)
        assert len(told) == 1
        with pytest.raises(LeaseLost):
            await hold.release()

    harness.run(body)


def test_a_lost_reentrant_member_of_a_multi_lock_raises_at_the_release(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        hold = await client.multi_lock([client.rlock("a"), "b"], lease=30.0).acquire()
        assert hold is not None
        await force_release(client, "a")
        with pytest.raises(LeaseLost, match="'a'"):
            await hold.release()
        assert await client.holds() == [], "the other is released"

    harness.run(body)


def test_an_observer_hears_of_each_of_several(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        events = list[Event]()
        client = harness.client(space(), observer=events.append)
        async with client.multi_lock(["a", "b"]) as hold:
            acquired = {event.name: event.token for event in events if isinstance(event, Acquired)}
            assert acquired == hold.tokens

    harness.run(body)


def test_the_block_of_a_multi_lock_with_a_lost_member_never_begins(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        hold = await client.multi_lock(["a", "b"], lease=LASTING).acquire()
        assert hold is not None
        await force_release(client, "b")
        await until_in(harness, lambda: hold.lost)
        with pytest.raises(LeaseLost, match="'b'"):
            async with hold:
                pytest.fail("the block ran")
        assert await client.holds() == []

    harness.run(body)
