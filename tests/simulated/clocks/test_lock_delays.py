"""A server's clock is set back at any time: no lock delay lasts longer for that, and none begins after a release."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.history import quiet
from models.system import GOOD
from models.systems import SYSTEMS

LEASE, DELAY, BACK = 6.0, 12.0, 7200.0
LONGEST = {"released": 0.0, "broken": DELAY, "dead": LEASE + DELAY}
"""Seconds for which a name is not free after a hold that ended so."""

NOISE = 0.3
"""Seconds: round trips."""


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("system", ["redis", "postgres", "mysql"])
def test_a_name_is_free_when_the_lock_delay_of_its_last_holder_is_over(system: str, seed: int) -> None:
    harness, chance, log = SimulatedHarness(seed), random.Random(seed), list[str]()

    async def body(_: Harness) -> None:
        servers = cast(Any, SYSTEMS[system](harness, 1.0, GOOD))
        client = harness.machine("a").client(servers.opener, namespace="n")

        async def passes(*lengths: float) -> None:
            for seconds in (chance.choice(lengths), -BACK):
                if seconds > 0.0:
                    await harness.sleep(seconds)
                elif seconds and chance.random() < 0.3:
                    servers.server.step(seconds)
                log.append(f"{seconds} s")

        longest = 0.0
        for _number in range(20):
            lock = client.lock("a", lease=LEASE, lock_delay=DELAY, fair=chance.random() < 0.5, renew=False)
            hold = await lock.acquire(timeout=longest + NOISE)
            assert hold is not None, log
            await passes(0.0, LEASE / 3)
            ends = chance.choice(list(LONGEST))
            if ends == "released":
                await hold.release()
            elif ends == "broken":
                assert await client.force_release("a", hold.token)
            longest = LONGEST[ends]
            log.append(ends)
            await passes(0.0, DELAY / 2, 3 * DELAY)

    with quiet():
        harness.run(body)
