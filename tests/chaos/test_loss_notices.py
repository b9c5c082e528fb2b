"""How soon a holder is told that it has lost its locks: on every store, in both flavors, many at once.

Three ways to lose: nothing is heard of the store any more, the store has given the lock up, the process was stopped.
Beside each bound there is no allowance but for time in which this process got no turn of the machine, measured as
`leasehold verify` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployments import SYSTEMS, Deployment, systems

from leasehold import AsyncClient, Client, LeaseLost
from leasehold._engine.watchdog.timers import RENEWALS_PER_LEASE
from leasehold._model import DRIFT, MARGIN
from leasehold._runtimes.base import Flavor
from leasehold._runtimes.clock import boottime
from leasehold_lab.history import Stall
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.verify.clients.stall_detector import timed_callback
from support.flavors import both
from support.missed_turns import US, Missed, turns_missed
from support.programs.loss_notice_client import DEEDS

PARTY = Path(__file__).parents[1] / "support" / "programs" / "loss_notice_client.py"

NAMES = 50
"""Locks that one client holds, all of which end at once."""

FEW = 10
"""Such locks where the bound is some milliseconds: each loss also costs a line of the log, which is the user's wish."""

REMOVED_WITHIN = 0.05
"""Seconds after which a client hears that its connection has ended, and its locks with it."""

ASKED = 0.05
"""Seconds that a renewal takes at most, from when it is due until its answer has been told to the holders."""

RESUMED_WITHIN = 0.02
"""Seconds after a process goes on until 99 of 100 of its holds have been told of."""

LATEST = 0.05
"""Seconds until the last of them has."""

AT_MOST = 0.05
"""Seconds by which a loss may be told after the store may have given the lock to somebody else."""


async def hold_all(client: AsyncClient, lease: float, told: dict[int, float], count: int = NAMES) -> list[Any]:
    """Hold many locks; what is told of the loss of each is written down by its number."""
    holds = list[Any]()

    def tell(number: int) -> Callable[[LeaseLost], None]:
        return lambda _: told.setdefault(number, boottime()) and None

    for number in range(count):
        hold = await client.lock(f"told-{number}", lease=lease).acquire(timeout=10)
        assert hold is not None
        hold.on_lost(timed_callback(tell(number)))
        holds.append(hold)
    return holds


async def all_told(harness: Harness, told: dict[int, float], within: float, count: int = NAMES) -> None:
    until = harness.now() + within
    while len(told) < count:
        assert harness.now() < until, f"{count - len(told)} of {count} were not told"
        await harness.sleep(0.01)


def lease_of(hold: Any) -> Any:
    return hold.blocking._core._lease if hasattr(hold, "blocking") else hold._lease


@systems
@both
def test_who_hears_nothing_of_the_store_is_told_before_it_may_give_the_lock_away(
    name: str, harness: Harness, deployment: Deployment, namespace: str, record_property: Any
) -> None:
    told = dict[int, float]()

    async def body(harness: Harness) -> None:
        client = harness.client(deployment.url, namespace=namespace, response_timeout=1.0)
        holds = await hold_all(client, SYSTEMS[name].lease, told, FEW)
        with turns_missed(harness.runtime.flavor) as missed:
            await harness.sleep(SYSTEMS[name].lease / 2)  # each was renewed since
            deployment.pause()
            try:
                await all_told(harness, told, 3 * SYSTEMS[name].lease, FEW)
            finally:
                deployment.resume()
        leases = [lease_of(hold) for hold in holds]
        ends = [lease.deadline + MARGIN + DRIFT * lease.length for lease in leases]  # as the store counts, or later
        late = [missed.less(end, told[number]) for number, end in enumerate(ends)]
        record_property(
            "spread:told after the store may have given it away, of silence", [max(0.0, one) for one in late]
        )
        print(f"{name}, {harness}: {1e3 * min(late):.1f}..{1e3 * max(late):.1f} ms after it may be given away")
        assert max(late) <= AT_MOST
        assert max(late) <= 0, "told after the store may have given it away"

    harness.run(body)


# --- the store has given it up ---------------------------------------------------------------------------------------


def remove(name: str, namespace: str, url: str, servers: Any) -> None:
    """Take all locks from their holder, as an operator does, or a server that ends a connection."""
    if name == "postgresql-session":
        query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid != %s"
        servers.query(query, (os.getpid(),))
    elif name == "mariadb-session":
        servers.end_sessions()
    else:
        with Client.from_url(url, namespace=namespace) as operator:
            for info in operator.holds():
                for holder in info.holders:
                    assert holder.token is not None
                    assert operator.force_release(info.name, holder.token)


@systems
@both
def test_whose_locks_the_store_gave_up_is_told_at_the_next_renewal_or_at_once(
    name: str,
    harness: Harness,
    deployment: Deployment,
    namespace: str,
    request: pytest.FixtureRequest,
    record_property: Any,
) -> None:
    system, told = SYSTEMS[name], dict[int, float]()
    servers = request.getfixturevalue(system.fixture) if system.fixture else None

    async def body(harness: Harness) -> None:
        client = harness.client(deployment.url, namespace=namespace)
        holds = await hold_all(client, system.lease, told)
        with turns_missed(harness.runtime.flavor) as missed:
            await harness.sleep(system.lease / 2)
            began = boottime()
            if harness.runtime.flavor is Flavor.ASYNC:
                await asyncio.to_thread(remove, name, namespace, deployment.url, servers)
            else:
                remove(name, namespace, deployment.url, servers)
            removed = boottime()
            await all_told(harness, told, 2 * system.lease)
        bound = REMOVED_WITHIN if "session" in name else system.lease / RENEWALS_PER_LEASE + ASKED
        took = [missed.less(removed, moment) for moment in told.values()]  # a name may have been removed earlier
        record_property(f"spread:told of a removal, {name}", [max(0.0, one) for one in took])
        print(
            f"{name}, {harness}: {1e3 * max(took):.1f} of {1e3 * bound:.0f} ms; removing took {removed - began:.3f} s"
        )
        assert max(took) <= bound
        assert all(hold.lost for hold in holds)

    harness.run(body)


# --- the process was stopped -----------------------------------------------------------------------------------------


@systems
@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
def test_who_was_stopped_is_refused_at_every_call_and_told_as_soon_as_it_goes_on(
    name: str, flavor: str, deployment: Deployment, namespace: str, record_property: Any
) -> None:
    lease = SYSTEMS[name].lease
    command = [sys.executable, str(PARTY), flavor, deployment.url, namespace, str(lease), str(NAMES)]
    paths = os.pathsep.join([str(PARTY.parents[2]), *sys.path])
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"holds": NAMES}
            time.sleep(lease / 2)
            process.send_signal(signal.SIGSTOP)
            time.sleep(lease + 0.3)
            process.stdin.write(b"release\n")
            process.stdin.flush()
            resumed = boottime()
            process.send_signal(signal.SIGCONT)
            said = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert max(said["ends"]) < resumed
    last = said["last"]
    assert [last[f"{deed} refused"] for deed in DEEDS] == [2, 2, 2]
    assert last["check"] < resumed, "a check that began afterwards said yes"
    assert last["renew"] < resumed
    assert "release" not in last, "a release after the loss said that all was well"
    missed = Missed()
    missed.stalls += [Stall(US, begin, end) for begin, end in said["stalls"]]
    took = sorted(missed.less(resumed, moment) for moment in said["told"])
    record_property("spread:told after a stop", took)
    whole = 1e3 * (max(said["told"]) - resumed)
    print(
        f"{name}, {flavor}: {1e3 * took[len(took) // 2]:.1f}..{1e3 * took[-1]:.1f} ms ({whole:.1f} with turns missed)"
    )
    assert took[int(len(took) * 0.99)] <= RESUMED_WITHIN


@pytest.mark.parametrize("url", ["memory:", "sqlite:"])
def test_whose_event_loop_was_blocked_is_told_within_two_turns_of_it(url: str, tmp_path: Path) -> None:
    """The first turn sees that the time is up, and the watchdog's task has the second."""

    async def main() -> None:
        told = list[int]()
        turns = 0
        async with AsyncClient.from_url(url + (str(tmp_path / "locks") if url == "sqlite:" else "")) as client:
            hold = await client.lock("x", lease=0.3).acquire()
            assert hold is not None
            hold.on_lost(lambda _: told.append(turns))
            await asyncio.sleep(0.05)
            time.sleep(0.5)  # noqa: ASYNC251 it blocks the loop
            with pytest.raises(LeaseLost):
                await hold.renew()
            assert told == [0], "who asks is told by the call"
            hold = await client.lock("y", lease=0.3).acquire()
            assert hold is not None
            hold.on_lost(lambda _: told.append(turns))
            await asyncio.sleep(0.05)
            time.sleep(0.5)  # noqa: ASYNC251
            while len(told) < 2 and turns < 100:
                await asyncio.sleep(0)
                turns += 1
            assert told[1] <= 2

    asyncio.run(main())
