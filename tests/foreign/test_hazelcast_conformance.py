"""The conformance kit on Hazelcast, whose members Maven brings."""

from __future__ import annotations

import pytest
from hazelcast_members import cluster

from leasehold._inspection import LockInfo
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold_lab.conformance import cases
from leasehold_lab.conformance.case_context import SOON, CaseContext
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness

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
waits that begin one right after the other may be served in either order."""

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
