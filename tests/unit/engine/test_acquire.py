"""The acquire loop in every harness: lost replies, refusals, outages, late grants, timeouts."""

import time
from collections.abc import Awaitable, Callable

import pytest

from leasehold import AcquireTimeout, AsyncClient, LeaseLost, StoreUnavailable
from leasehold.events import Event, GaveUp
from leasehold.stores.memory import Memory
from leasehold_lab.conformance.case_context import LASTING
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind, always, nth
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

LEASE = 1.6
BUSY = 0.3  # seconds of scheduling noise on a busy machine

Body = Callable[[Harness], Awaitable[None]]


def space() -> Memory:
    return Memory(f"acquire-{time.monotonic_ns()}")


def faulty(opener: Memory, plan: Callable[[Call], Fault | None]) -> Faulty:
    return Faulty(opener, plan)


@pytest.mark.parametrize("times", [1, 3])
def test_a_claim_whose_reply_was_lost_finds_its_own_grant(harness: Harness, times: int) -> None:
    async def body(harness: Harness) -> None:
        memory, left = space(), [times]

        def plan(call: Call) -> Fault | None:
            if call.method == "try_acquire" and left[0]:
                left[0] -= 1
                return Fault(Kind.DROP_REPLY)
            return None

        looker = harness.client(memory)
        client = harness.client(faulty(memory, plan))
        hold = await client.lock("a", lease=LEASE).acquire(timeout=5)
        assert hold is not None
        info = await looker.inspect("a")
        assert info is not None
        assert [holder.token for holder in info.holders] == [hold.token]
        assert info.token == hold.token, "one grant, one token"
        assert info.waiters == ()
        assert await hold.release() is True
        assert await looker.inspect("a") is None

    harness.run(body)


@pytest.mark.parametrize("kind", [Kind.DROP_REPLY, Kind.DUPLICATE, Kind.DROP_REQUEST])
def test_a_release_whose_reply_was_lost_is_repeated_and_no_loss(harness: Harness, kind: Kind) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(faulty(memory, nth(0, Fault(kind), method="release")))
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        if kind is Kind.DUPLICATE:
            with pytest.raises(LeaseLost):  # the store reported that it was gone, which decides
                await hold.release()
        else:
            await hold.release()
        assert not await client.lock("a").locked()

    harness.run(body)


def test_a_renewal_whose_reply_was_lost_changes_nothing(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(faulty(space(), always(Fault(Kind.DROP_REPLY), ["renew"])))
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        with pytest.raises(StoreUnavailable) as caught:
            await hold.renew()
        assert caught.value.unknown
        hold.raise_if_lost()
        await hold.release()

    harness.run(body)


def test_refused_at_first_contact_is_an_error_at_once_and_nothing_is_left(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        store = faulty(space(), always(Fault(Kind.REFUSE)))
        client = harness.client(store)
        start = harness.now()
        with pytest.raises(StoreUnavailable) as caught:
            await client.lock("a").acquire()
        assert not caught.value.unknown
        assert harness.now() - start < BUSY
        await harness.sleep(0.3)
        assert [call.method for call in store.calls] == ["try_acquire"], "what was refused needs no leave"

    harness.run(body)


def test_no_answer_at_first_contact_is_an_error_in_time(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(faulty(space(), always(Fault(Kind.DROP_REQUEST, 60.0))), response_timeout=0.5)
        start = harness.now()
        with pytest.raises(StoreUnavailable) as caught:
            await client.lock("a", lease=LEASE).acquire()
        assert caught.value.unknown
        assert harness.now() - start < 0.5 + 0.5 + BUSY, "the claim's patience, and the leave's"

    harness.run(body)


@pytest.mark.parametrize("method", ["try_acquire", "wait"])
@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.DROP_REQUEST])
def test_an_outage_while_queued_is_ridden_over(harness: Harness, method: str, kind: Kind) -> None:
    async def body(harness: Harness) -> None:
        memory, down = space(), [False]

        def plan(call: Call) -> Fault | None:
            return Fault(kind) if down[0] and call.method in (method, "renew") else None

        other = harness.client(memory)
        client = harness.client(faulty(memory, plan))
        first = await other.lock("a", lease=LEASE).acquire()
        assert first is not None
        job = harness.spawn(client.lock("a", lease=LEASE).acquire)
        await harness.sleep(0.1)
        down[0] = True
        await harness.sleep(0.1)
        await first.release()
        await harness.sleep(0.3)
        down[0] = False
        second = await job.result()
        assert second is not None
        await second.release()

    harness.run(body)


def test_a_waiter_tolerates_an_outage_from_the_start_of_the_wait(harness: Harness) -> None:
    """Each `changed` is refused: the waiter falls back on asking, with pauses."""

    async def body(harness: Harness) -> None:
        memory = space()
        store = faulty(memory, always(Fault(Kind.REFUSE), ["wait"]))
        other, client = harness.client(memory), harness.client(store)
        first = await other.lock("a", lease=LEASE).acquire()
        assert first is not None
        job = harness.spawn(client.lock("a", lease=LEASE).acquire)
        await harness.sleep(0.5)
        await first.release()
        assert await job.result() is not None
        assert len(store.calls) < 40, "without a busy loop"

    harness.run(body)


def test_a_late_grant_is_released_and_tried_again(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, events = space(), list[Event]()
        store = faulty(memory, nth(0, Fault(Kind.DELAY_REPLY, 1.6), method="try_acquire"))
        client = harness.client(store, observer=events.append)
        hold = await client.lock("a", lease=1.5, renew=False).acquire()
        assert hold is not None
        assert hold.remaining > 0
        assert [event.why for event in events if isinstance(event, GaveUp)] == ["granted too late"]
        await hold.release()
        assert not await client.lock("a").locked()

    harness.run(body)


def test_a_late_grant_at_the_timeout_raises_lease_lost_and_is_released(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(faulty(space(), nth(0, Fault(Kind.DELAY_REPLY, 0.5), method="try_acquire")))
        with pytest.raises(LeaseLost, match="too late"):
            await client.lock("a", lease=0.4, renew=False).acquire(timeout=0.2)
        assert not await client.lock("a").locked()

    harness.run(body)


@pytest.mark.parametrize("options", [{"blocking": False}, {"timeout": 0}], ids=str)
def test_a_try_leaves_no_trace(harness: Harness, options: dict[str, object]) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        store = faulty(memory, lambda call: None)
        other, client = harness.client(memory), harness.client(store)
        async with other.lock("a", lease=LEASE) as first:
            start = harness.now()
            assert await client.lock("a").acquire(**options) is None  # type: ignore[arg-type]
            assert harness.now() - start < BUSY
            info = await other.inspect("a")
            assert info is not None
            assert info.waiters == ()
            assert [holder.token for holder in info.holders] == [first.token]
        assert [call.method for call in store.calls] == ["try_acquire"], "one question, and no leave"
        assert await other.inspect("a") is None

    harness.run(body)


@pytest.mark.parametrize("timeout", [0.1, 0.5])
def test_a_timeout_is_exact_and_leaves_nothing(harness: Harness, timeout: float) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        async with client.lock("a", lease=LEASE):
            start = harness.now()
            assert await client.lock("a").acquire(timeout=timeout) is None
            assert timeout <= harness.now() - start < timeout + BUSY
            with pytest.raises(AcquireTimeout) as caught:
                async with client.lock("a", timeout=timeout):
                    pytest.fail("the block ran")
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.name == "a"
            assert caught.value.held_by == client.owner
            assert timeout <= caught.value.waited < timeout + BUSY  # type: ignore[operator]
            info = await client.inspect("a")
            assert info is not None
            assert info.waiters == ()

    harness.run(body)


def test_a_short_timeout_tells_taken_from_down(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(faulty(space(), always(Fault(Kind.DROP_REQUEST, 60.0))))
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await client.lock("a").acquire(timeout=0.01)
        assert harness.now() - start < 0.01 + 2.0 + BUSY, "a second for the answer, a second for the leave"

    harness.run(body)


def test_waiting_over_many_leases_of_the_holder(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        first = await client.lock("a", lease=LASTING).acquire()
        assert first is not None
        job = harness.spawn(client.lock("a", lease=LASTING).acquire)
        await harness.sleep(2.5 * LASTING)
        assert not job.done()
        first.raise_if_lost()
        released = harness.now()
        await first.release()
        second = await job.result()
        assert second is not None
        assert second.token > first.token
        assert harness.now() - released < BUSY

    harness.run(body)


def test_a_waiter_keeps_its_queue_entry_for_longer_than_its_lease() -> None:
    async def body(harness: Harness) -> None:
        client, patient, late = (harness.client(memory) for _ in range(3))
        first = await client.lock("a", lease=30.0).acquire()
        assert first is not None
        job = harness.spawn(patient.lock("a", lease=1.0).acquire)
        await harness.sleep(5.0)  # nothing calls it before the holder's lease ends, but that its place is renewed
        last = harness.spawn(late.lock("a", lease=30.0).acquire)
        await harness.sleep(0.2)
        await first.release()
        await harness.sleep(0.2)
        assert job.done()
        assert not last.done()
        second = await job.result()
        assert second is not None
        await second.release()
        third = await last.result()
        assert third is not None
        await third.release()

    memory = space()
    SimulatedHarness().run(body)


def test_release_when_it_was_broken_tells_everyone(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client, told = harness.client(space()), []
        hold = await client.lock("a", lease=30.0).acquire()
        assert hold is not None
        hold.on_lost(told.append)
        assert await client.force_release("a", hold.token)
        with pytest.raises(LeaseLost, match="gone when it was released"):
            await hold.release()
        assert len(told) == 1
        assert hold.lost
        with pytest.raises(LeaseLost):
            hold.raise_if_lost()
        assert await hold.release() is True, "further calls do nothing"

    harness.run(body)


def test_the_holder_of_a_lost_lock_leaves_its_successor_alone(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        client: AsyncClient = harness.client(memory)
        first = await client.lock("a", lease=0.2, renew=False).acquire()
        second = await client.lock("a", lease=LEASE).acquire()
        assert first is not None
        assert second is not None
        assert second.token > first.token
        with pytest.raises(LeaseLost):
            await first.release()
        await harness.sleep(0.1)
        second.raise_if_lost()
        info = await client.inspect("a")
        assert info is not None
        assert [holder.token for holder in info.holders] == [second.token]
        await second.release()

    harness.run(body)
