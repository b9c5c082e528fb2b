"""A name becomes free without a message, for example because an operator deletes its key: waiters notice it soon."""

from __future__ import annotations

import pytest

from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.redis.server import RedisServerModel
from models.redis.transport import SimulatedRedis

HELD, LEASE = 600.0, 3.0
"""Seconds: the lease of the holder, longer than the test, and that of a waiter, which renews at each third of it."""


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_deleted_lock_is_found_by_the_renewal_of_a_waiter(seed: int, fair: bool) -> None:
    harness, waited = SimulatedHarness(seed), list[float]()

    async def body(_: Harness) -> None:
        server = RedisServerModel(harness.scheduler)
        holder = harness.machine("holder").client(SimulatedRedis(server), namespace="n")
        waiter = harness.machine("waiter").client(SimulatedRedis(server), namespace="n")
        assert await holder.lock("a", lease=HELD, renew=False).acquire() is not None

        async def wait() -> None:
            hold = await waiter.lock("a", lease=LEASE, fair=fair).acquire(timeout=60.0)
            assert hold is not None
            waited.append(harness.now() - deleted)
            await hold.release()

        job = harness.spawn(wait)
        await harness.sleep(LEASE / 2)
        assert server.model.execute([b"DEL", keys.mutex_keys("n", "a")[0]]) == 1
        deleted = harness.now()
        await job.result()

    harness.run(body)
    assert waited[0] <= LEASE / 3 * 1.05 + 0.1
