"""A name that becomes free without a word, as when an operator deletes the key of a long lease: waiters see it soon."""

from __future__ import annotations

import pytest

from leasehold.stores.redis import keys
from leasehold_lab.runtimes.case_runtimes import SimulatedWorld, World
from models.redis.server import RedisServerModel
from models.redis.transport import SimulatedRedis

HELD, LEASE = 600.0, 3.0
"""Seconds: the lease of the holder, which nobody waits out, and of a waiter, renewed each third of it."""


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_deleted_lock_is_found_by_the_renewal_of_a_waiter(seed: int, fair: bool) -> None:
    world, waited = SimulatedWorld(seed), list[float]()

    async def body(_: World) -> None:
        server = RedisServerModel(world.scheduler)
        holder = world.machine("holder").client(SimulatedRedis(server), namespace="n")
        waiter = world.machine("waiter").client(SimulatedRedis(server), namespace="n")
        assert await holder.lock("a", lease=HELD, renew=False).acquire() is not None

        async def wait() -> None:
            hold = await waiter.lock("a", lease=LEASE, fair=fair).acquire(timeout=60.0)
            assert hold is not None
            waited.append(world.now() - deleted)
            await hold.release()

        job = world.spawn(wait)
        await world.sleep(LEASE / 2)
        assert server.model.execute([b"DEL", keys.mutex_keys("n", "a")[0]]) == 1
        deleted = world.now()
        await job.result()

    world.run(body)
    assert waited[0] <= LEASE / 3 * 1.05 + 0.1
