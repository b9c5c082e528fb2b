"""A Redis server's clock steps while a client waits: how long the wait lasts, and which deadline the client assumes.

And it is set back by hours, or a client's clock is ahead by hours: tokens increase after any idle time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from leasehold import AsyncHold, LeaseLost
from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.redis.server import RedisServerModel
from models.redis.transport import SimulatedRedis
from models.system import GOOD
from models.systems.redlock import RedlockSystem

LEASE = 6.0
FAR = 3600.0
KEPT = 3600.0
"""Seconds for which the key of a lock outlives its lease."""

NOISE = 0.2
"""Seconds: round trips, and the jitter of renewals."""

seeds = pytest.mark.parametrize("seed", range(10))
kinds = pytest.mark.parametrize("kind", ["lock", "fair", "permit"])


class Scene:
    """A server, and machines with a client each."""

    def __init__(self, harness: SimulatedHarness, *names: str) -> None:
        self.harness = harness
        self.server = RedisServerModel(harness.scheduler)
        self.machines: dict[str, SimulatedMachine] = {name: harness.machine(name) for name in names}
        self.clients = {
            name: machine.client(SimulatedRedis(self.server), namespace="n") for name, machine in self.machines.items()
        }

    async def acquire(self, name: str, kind: str, *, renew: bool = True, timeout: float = 60.0) -> AsyncHold:
        """Acquire."""
        client = self.clients[name]
        if kind == "permit":
            hold = await client.semaphore("a", 1, lease=LEASE, renew=renew).acquire(timeout=timeout)
        else:
            hold = await client.lock("a", lease=LEASE, renew=renew, fair=kind == "fair").acquire(timeout=timeout)
        assert hold is not None
        return hold

    def left(self) -> float:
        """Return for how many more seconds the name is held, according to the server."""
        return int(self.server.model.execute([b"PTTL", keys.mutex_keys("n", "a")[0]])) / 1000 - KEPT


def play(seed: int, names: Sequence[str], story: Callable[[Scene], Awaitable[None]]) -> None:
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        await story(Scene(harness, *names))

    with quiet():
        harness.run(body)


@seeds
@kinds
def test_a_step_forward_ends_a_wait_within_a_third_of_the_waiters_lease(seed: int, kind: str) -> None:
    """All leases and queue entries expire. The waiter notices that when it renews its queue entry, and retries."""

    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", kind)
        waited = list[float]()

        async def wait() -> None:
            hold = await scene.acquire("second", kind)
            waited.append(scene.harness.now())
            await hold.release()

        job: Job[None] = scene.machines["second"].spawn(wait)
        await scene.harness.sleep(LEASE / 2)
        scene.server.step(FAR)
        stepped = scene.harness.now()
        await job.result()
        assert waited[0] - stepped <= LEASE / 3 + NOISE
        await scene.harness.sleep(LEASE / 3 + NOISE)
        assert first.lost
        with pytest.raises(LeaseLost):
            await first.release()

    play(seed, ("first", "second"), story)


@seeds
@kinds
def test_a_step_back_does_not_delay_a_grant(seed: int, kind: str) -> None:
    """The grant message seems older than the wait, so the waiter ignores it. It retries, and its retry is granted."""

    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", kind)
        waited = list[float]()

        async def wait() -> None:
            hold = await scene.acquire("second", kind)
            waited.append(scene.harness.now())
            assert hold.remaining > LEASE * 0.9
            await hold.release()

        job: Job[None] = scene.machines["second"].spawn(wait)
        await scene.harness.sleep(LEASE / 2)
        scene.server.step(-FAR)
        await first.release()
        released = scene.harness.now()
        await job.result()
        assert waited[0] - released <= NOISE

    play(seed, ("first", "second"), story)


@seeds
@pytest.mark.parametrize("kind", ["lock", "fair"])
def test_after_a_step_back_a_waiter_acquires_a_dead_holders_lock_within_two_leases(seed: int, kind: str) -> None:
    """It waits for the rest of the dead holder's lease. Then it retries, and waits for one lease more."""

    async def story(scene: Scene) -> None:
        await scene.acquire("first", kind, renew=False)
        waited = list[float]()

        async def wait() -> None:
            hold = await scene.acquire("second", kind)
            waited.append(scene.harness.now())
            await hold.release()

        job: Job[None] = scene.machines["second"].spawn(wait)
        await scene.harness.sleep(LEASE / 2)
        scene.server.step(-FAR)
        stepped = scene.harness.now()
        await job.result()
        assert waited[0] - stepped <= LEASE / 2 + LEASE + NOISE

    play(seed, ("first", "second"), story)


@seeds
@kinds
def test_a_late_grant_message_does_not_lengthen_the_lease_after_a_step_forward(seed: int, kind: str) -> None:
    """The message has a time in the future. A lease that is counted from its arrival would end too late."""

    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", kind)
        left = list[tuple[float, float]]()

        async def wait() -> None:
            hold = await scene.acquire("second", kind)
            left.append((hold.remaining, scene.left()))
            await hold.release()

        job: Job[None] = scene.machines["second"].spawn(wait)
        await scene.harness.sleep(LEASE / 10)
        scene.server.link("second").replies_held = scene.harness.now() + LEASE / 4
        scene.server.step(LEASE / 2)
        await first.release()
        await job.result()
        believed, on_the_server = left[0]
        assert believed <= on_the_server

    play(seed, ("first", "second"), story)


@pytest.mark.parametrize("ends", ["released", "renewed", "dead", "broken"])
@kinds
def test_tokens_increase_after_idle_hours_behind_the_last_token(kind: str, ends: str) -> None:
    """The clock is set back by four hours during a hold. Its token is known for as long as it is ahead.

    A dead holder keeps its permit for so much longer: it is broken.
    """

    async def story(scene: Scene) -> None:
        hold = await scene.acquire("first", kind, renew=ends != "dead")
        tokens = [hold.token]
        await scene.harness.sleep(LEASE / 10)
        scene.server.step(-4 * FAR)
        if ends == "renewed":
            await scene.harness.sleep(2 * LEASE)
        if ends == "broken" or (kind, ends) == ("permit", "dead"):
            assert await scene.clients["first"].force_release("a", hold.token)
        elif ends != "dead":
            await hold.release()
        for _ in range(5):
            await scene.harness.sleep(KEPT + 2 * LEASE)
            hold = await scene.acquire("second", kind, renew=False)
            tokens.append(hold.token)
            if ends != "dead":
                await hold.release()
        assert tokens == sorted(set(tokens))

    play(1, ("first", "second"), story)


@pytest.mark.parametrize("ends", ["released", "renewed"])
def test_tokens_of_a_redlock_increase_after_an_idle_hour_behind_a_clients_clock(ends: str) -> None:
    """The first client's wall clock was two hours ahead of those of the nodes and of the second client."""
    harness = SimulatedHarness(1)

    async def body(_: Harness) -> None:
        system = RedlockSystem(harness, 1.0, GOOD)
        tokens = list[int]()
        for ahead in (2 * FAR, 0.0):
            machine = harness.machine(f"{ahead} s ahead")
            machine.machine.wall += ahead
            hold = await machine.client(system.opener, namespace="n").lock("a", lease=LEASE).acquire(timeout=10.0)
            assert hold is not None
            tokens.append(hold.token)
            if ends == "renewed":
                await harness.sleep(LEASE)
            await hold.release()
            await harness.sleep(KEPT + 2 * LEASE)
        assert tokens[0] < tokens[1]

    with quiet():
        harness.run(body)
