"""The conformance kit on Hazelcast, whose members Maven brings."""

from __future__ import annotations

import pytest
from hazelcast_members import cluster

from leasehold import AcquireTimeout
from leasehold._engine.engine import PROBE
from leasehold._inspection import LockInfo
from leasehold._model import LockMode, ReleaseReason, Wait
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold_lab.conformance import cases
from leasehold_lab.conformance.case_context import SOON, CaseContext, held, ticket
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness
from support.flavors import both
from support.patience import until_in

HARNESSES = (BlockingHarness(), AsyncioHarness())

NOT_HERE = (
    "with_raises_instead_of_running_the_block",
    "inspect_shows_the_holder",
    "inspect_shows_waiters_in_order",
    "a_multi_lock_has_one_timeout",
    "ping_changes_nothing",
    "try_acquire_may_be_repeated",
)
"""Cases that do not hold: the servers tell clients neither who holds a lock nor who waits for it. As to the last, two
waits that begin one right after the other may be served in either order. What holds of them is tested below."""

RUNS = [
    pytest.param(HARNESSES[number % 2], case, id=f"{name}-{HARNESSES[number % 2]}")
    for number, (name, case) in enumerate(cases(FencedLockStore.capabilities))
    if not name.endswith(NOT_HERE)
]
"""Each case, in one flavor in turn."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def members(program):
    with cluster(program("hazelcast")[:-1]) as made:
        yield made


@pytest.fixture(autouse=True)
def own_waiters(monkeypatch):
    """Let the cases see the waiters of each client that they made, which a client alone sees."""
    stores = list[FencedLockStore]()
    start = FencedLockStore._start

    def started(self):
        start(self)
        stores.append(self)

    async def queued(self, client, count, name=None):
        name = self.name if name is None else name
        until = self.harness.now() + SOON
        while True:
            states = [state for store in stores for state in list(store._states.values())]
            waiting = [state for state in states if state.name == name and state.waiting is not None and not state.over]
            if len(waiting) == count:
                await self.harness.sleep(0.05)  # until the servers have their requests
                found: LockInfo = await client.inspect(name)
                return found
            assert self.harness.now() < until, f"{count} waiters expected, not {waiting}"
            await self.harness.sleep(0.005)

    monkeypatch.setattr(FencedLockStore, "_start", started)
    monkeypatch.setattr(CaseContext, "queued", queued)


@pytest.mark.parametrize(("harness", "case"), RUNS)
def test_conformance(members, harness, case):
    harness.run(lambda harness: case(harness, members.url))


# --- what holds of the cases that do not -----------------------------------------------------------------------------


def waits_of(client, name):
    """Return how many requests of a client wait for a lock."""
    states = list(client.store._states.values())
    return sum(state.name == name and state.waiting is not None for state in states)


@both
def test_with_raises_at_the_timeout_and_leaves_no_waiter(harness, members, namespace):
    async def body(harness):
        mine, other = harness.client(members.url), harness.client(members.url)
        hold = held(await mine.lock(namespace).acquire())
        ran, start = False, harness.now()
        with pytest.raises(AcquireTimeout) as refused:
            async with other.lock(namespace, timeout=0.2):
                ran = True
        assert not ran
        assert (refused.value.name, refused.value.owner) == (namespace, other.owner)
        assert 0.2 <= refused.value.waited <= harness.now() - start
        assert not other.store._states
        await hold.release()
        await held(await mine.lock(namespace).acquire(timeout=SOON)).release()

    harness.run(body)


@both
def test_a_multi_lock_has_one_timeout(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        first, second = (f"{namespace}-{one}" for one in "ab")
        late = held(await other.lock(second).acquire())
        both_ = client.multi_lock([first, second])
        assert await both_.acquire(timeout=0.6) is None
        assert [info.name for info in await other.holds(namespace)] == [second]
        assert not client.store._states
        await late.release()
        await held(await both_.acquire(timeout=SOON)).release()

    harness.run(body)


@both
def test_ping_disturbs_neither_a_holder_nor_a_waiter(harness, members):
    async def body(harness):
        client, other, third = (harness.client(members.url) for _ in range(3))
        hold = held(await client.lock(PROBE).acquire())
        waiter = harness.spawn(lambda: other.lock(PROBE).acquire(timeout=SOON))
        await until_in(harness, lambda: waits_of(other, PROBE), SOON)
        for pinging in (client, other, third):
            await pinging.ping()
        assert (await third.inspect(PROBE)).token == hold.token
        await hold.release()
        await held(await waiter.result()).release()
        assert await third.inspect(PROBE) is None

    harness.run(body)


@both
def test_a_claim_may_be_repeated(harness, members, namespace):
    """A holder gets the same token, and a waiter has one request on the servers: its release leaves none behind."""

    async def body(harness):
        client = harness.client(members.url)
        store, within = client.store, {"within": SOON}
        mine, next_ = (ticket(client, LockMode(), lease=4.0) for _ in range(2))
        first = await store.try_acquire(namespace, mine, join=True, **within)
        again = await store.try_acquire(namespace, mine, join=True, **within)
        assert again.token == first.token
        for _ in range(3):
            assert isinstance(await store.try_acquire(namespace, next_, join=True, **within), Wait)
        assert await store.release(namespace, mine, reason=ReleaseReason.RELEASE, **within)
        second = await store.try_acquire(namespace, next_, join=True, **within)
        assert second.token > first.token
        assert await store.release(namespace, next_, reason=ReleaseReason.RELEASE, **within)
        assert await client.inspect(namespace) is None
        assert not store._states

    harness.run(body)
