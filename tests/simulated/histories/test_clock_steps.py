"""A server's clock steps while a client waits: how long the wait lasts, and which deadline the client assumes.

And it is set back by hours, or a client's clock is ahead by hours: tokens increase after any idle time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from leasehold import AsyncHold, AsyncLock, AsyncSemaphore, LeaseLost, LockInfo
from leasehold.stores._sql.waiting import LONGEST_LOOK
from leasehold.stores.redis import keys
from leasehold_lab.runtimes.harnesses import Harness, Job, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD
from models.systems import SYSTEMS
from models.systems.redlock import RedlockSystem

LEASE = 6.0
FAR = 3600.0
KEPT = 3600.0
"""Seconds for which the key of a lock outlives its lease."""

NOISE = 0.2
"""Seconds: round trips, and the jitter of renewals."""

seeds = pytest.mark.parametrize("seed", range(10))
kinds = pytest.mark.parametrize("kind", ["lock", "fair", "permit"])
systems = pytest.mark.parametrize("system", ["redis", "postgres", "mysql"])
rows = pytest.mark.parametrize("system", ["postgres", "mysql"])


class Scene:
    """A server, and machines with a client each."""

    def __init__(self, harness: SimulatedHarness, system: str, names: Sequence[str]) -> None:
        self.harness = harness
        servers = cast(Any, SYSTEMS[system](harness, 1.0, GOOD))
        self.server = servers.server
        self.machines: dict[str, SimulatedMachine] = {name: harness.machine(name) for name in names}
        self.clients = {name: machine.client(servers.opener, namespace="n") for name, machine in self.machines.items()}

    def lock(self, name: str, kind: str, **options: Any) -> AsyncLock | AsyncSemaphore:
        """Return the lock of a client."""
        client = self.clients[name]
        if kind == "permit":
            return client.semaphore("a", 1, lease=LEASE, **options)
        return client.lock("a", lease=LEASE, fair=kind == "fair", **options)

    async def acquire(self, name: str, kind: str, *, timeout: float = 60.0, **options: Any) -> AsyncHold:
        """Acquire."""
        hold = await self.lock(name, kind, **options).acquire(timeout=timeout)
        assert hold is not None
        return hold

    def wait(self, name: str, kind: str) -> Job[float]:
        """Acquire and release in the background; return when that was granted."""

        async def work() -> float:
            hold = await self.acquire(name, kind)
            granted = self.harness.now()
            await hold.release()
            return granted

        return self.machines[name].spawn(work)

    async def shown(self, name: str) -> LockInfo:
        """Return what is shown of the lock to a client."""
        info = await self.clients[name].inspect("a")
        assert info is not None
        return info

    def kill(self, name: str) -> None:
        """Kill a machine; its server learns that its connections have ended."""
        self.machines[name].kill()
        self.server.hang_up(self.machines[name].machine, arrives=True)

    def left(self) -> float:
        """Return for how many more seconds the name is held, according to the server."""
        return int(self.server.model.execute([b"PTTL", keys.mutex_keys("n", "a")[0]])) / 1000 - KEPT


def play(seed: int, names: Sequence[str], story: Callable[[Scene], Awaitable[None]], system: str = "redis") -> None:
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        await story(Scene(harness, system, names))

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
@systems
def test_after_a_step_back_a_waiter_acquires_a_dead_holders_lock_within_two_leases(
    system: str, seed: int, kind: str
) -> None:
    """It waits for the rest of the dead holder's lease. Then it retries, and waits for one lease more."""

    async def story(scene: Scene) -> None:
        await scene.acquire("first", kind, renew=False)
        waits = scene.wait("second", kind)
        await scene.harness.sleep(LEASE / 2)
        scene.server.step(-FAR)
        stepped = scene.harness.now()
        assert await waits.result() - stepped <= LEASE / 2 + LEASE + NOISE

    play(seed, ("first", "second"), story, system)


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


# --- lease rows: a database's clock is set back, or another server takes over whose clock is behind -----------------


@seeds
@kinds
@rows
def test_who_comes_after_a_step_back_waits_a_lease_for_a_dead_holder(system: str, seed: int, kind: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.acquire("first", kind, renew=False)
        scene.server.step(-FAR)
        await scene.harness.sleep(3 * LEASE)
        (shown,) = (await scene.shown("second")).holders
        assert shown.remaining <= LEASE
        came = scene.harness.now()
        await scene.acquire("second", kind)
        assert scene.harness.now() - came <= LEASE + NOISE

    play(seed, ("first", "second"), story, system)


@seeds
@kinds
@rows
def test_a_live_holder_keeps_its_lock_over_a_step_back(system: str, seed: int, kind: str) -> None:
    """Its stored lease is shortened, and its next renewal makes it whole."""

    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", kind)
        scene.server.step(-FAR)
        waits = scene.wait("second", kind)
        await scene.harness.sleep(3 * LEASE)
        first.raise_if_lost()
        assert not waits.done()
        await first.release()
        await waits.result()

    play(seed, ("first", "second"), story, system)


@seeds
@rows
def test_a_lock_delay_lasts_no_longer_for_a_step_back(system: str, seed: int) -> None:
    """What is left of it begins anew, once. Writes in between, as of a waiter that joins, do not."""
    delay = 2 * LEASE

    async def story(scene: Scene) -> None:
        await scene.acquire("first", "lock", renew=False, lock_delay=delay)
        await scene.harness.sleep(LEASE + 1.0)
        assert await scene.lock("second", "lock", lock_delay=delay).acquire(timeout=0) is None
        scene.server.step(-FAR)
        stepped = scene.harness.now()
        for _ in range(3):
            await scene.harness.sleep(1.0)
            assert await scene.lock("third", "fair", lock_delay=delay).acquire(timeout=0.1) is None
            assert (await scene.shown("third")).free_in <= delay
        await scene.acquire("second", "lock", lock_delay=delay)
        assert delay - 1.0 - NOISE <= scene.harness.now() - stepped <= delay + 1.0 + NOISE

    play(seed, ("first", "second", "third"), story, system)


@seeds
@rows
def test_a_dead_waiter_is_in_the_way_for_no_longer_than_before(system: str, seed: int) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", "fair")
        scene.wait("dead", "fair")
        await scene.harness.sleep(1.0)
        scene.kill("dead")
        scene.server.step(-FAR)
        waits = scene.wait("second", "fair")
        await scene.harness.sleep(2 * LEASE)
        assert len((await scene.shown("second")).waiters) == 1
        await first.release()
        released = scene.harness.now()
        assert await waits.result() - released <= LONGEST_LOOK + NOISE

    play(seed, ("first", "dead", "second"), story, system)


@seeds
def test_a_waiter_keeps_its_channel_when_another_request_shortens_its_entry(seed: int) -> None:
    """A grant that is sent to another channel would be found by the next renewal only."""

    async def story(scene: Scene) -> None:
        first = await scene.acquire("first", "lock")
        waits = scene.wait("second", "lock")
        await scene.harness.sleep(LEASE / 3 + NOISE)  # its first renewal is over
        scene.server.step(-FAR)
        assert await scene.lock("third", "lock").acquire(timeout=0.1) is None
        await first.release()
        released = scene.harness.now()
        assert await waits.result() - released <= NOISE

    play(seed, ("first", "second", "third"), story, "postgres")
