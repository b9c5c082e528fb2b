"""How soon a holder is notified that it has lost its locks: on every store, in both flavors, with many locks.

There are three causes: the store does not answer, the store has removed the lock, or the process was stopped. The only
tolerance is the time in which this process got no processor. It is measured as `leasehold verify` does.
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

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "loss_notice_client.py"

NAMES = 50
"""Locks that one client holds and loses at the same time."""

FEW = 10
"""The number of locks where the bound is a few milliseconds. More would be slower: each loss also logs a warning."""

REMOVED_WITHIN = 0.05
"""Seconds within which a client notices that its connection, and its locks with it, have ended."""

RENEWED_WITHIN = 0.05
"""The most seconds from the moment when a renewal is due until its result has reached the holders."""

RESUMED_WITHIN = 0.02
"""Seconds after a process continues within which 99 % of its holders are notified."""

AT_MOST = 0.05
"""The most seconds from the moment when the store may grant the lock to another client until the loss notice."""


async def hold_all(client: AsyncClient, lease: float, told: dict[int, float], count: int = NAMES) -> list[Any]:
    """Hold many locks; record the time of each loss notice by the number of the lock."""
    holds = list[Any]()

    def tell(number: int) -> Callable[[LeaseLost], None]:
        return lambda _: told.setdefault(number, boottime()) and None

    for number in range(count):
        hold = await client.lock(f"told-{number}", lease=lease).acquire(timeout=10)
        assert hold is not None
        hold.on_lost(timed_callback(tell(number)))
        holds.append(hold)
    return holds


async def all_notified(harness: Harness, told: dict[int, float], within: float, count: int = NAMES) -> None:
    until = harness.now() + within
    while len(told) < count:
        assert harness.now() < until, f"{count - len(told)} of {count} holders were not notified"
        await harness.sleep(0.01)


def lease_of(hold: Any) -> Any:
    return hold.blocking._core._lease if hasattr(hold, "blocking") else hold._lease


@systems
@both
def test_a_holder_is_notified_before_a_silent_store_may_grant_its_lock_to_another(
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
                await all_notified(harness, told, 3 * SYSTEMS[name].lease, FEW)
            finally:
                deployment.resume()
        leases = [lease_of(hold) for hold in holds]
        ends = [
            lease.deadline + MARGIN + DRIFT * lease.length for lease in leases
        ]  # not before the store's own deadline
        late = [missed.less(end, told[number]) for number, end in enumerate(ends)]
        record_property(
            "spread:told after the store may have given it away, of silence", [max(0.0, one) for one in late]
        )
        print(f"{name}, {harness}: {1e3 * min(late):.1f}..{1e3 * max(late):.1f} ms after another may acquire it")
        assert max(late) <= AT_MOST
        assert max(late) <= 0, "notified after the store may have granted the lock to another"

    harness.run(body)


# --- the store has removed the locks ---------------------------------------------------------------------------------


def remove(name: str, namespace: str, url: str, servers: Any) -> None:
    """Remove all locks: release them by force, as an operator does, or end the connection on the server."""
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
def test_a_holder_is_notified_of_a_removal_at_the_next_renewal_or_at_once(
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
            await all_notified(harness, told, 2 * system.lease)
        bound = REMOVED_WITHIN if "session" in name else system.lease / RENEWALS_PER_LEASE + RENEWED_WITHIN
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
def test_a_holder_that_was_stopped_gets_an_error_at_every_call_and_a_notice_when_it_continues(
    name: str, flavor: str, deployment: Deployment, namespace: str, record_property: Any
) -> None:
    lease = SYSTEMS[name].lease
    command = [sys.executable, str(PROGRAM), flavor, deployment.url, namespace, str(lease), str(NAMES)]
    paths = os.pathsep.join([str(PROGRAM.parents[2]), *sys.path])
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
    assert last["check"] < resumed, "a check that began after the stop succeeded"
    assert last["renew"] < resumed
    assert "release" not in last, "a release after the loss succeeded"
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
def test_a_holder_whose_event_loop_was_blocked_is_notified_within_two_iterations(url: str, tmp_path: Path) -> None:
    """In the first iteration the timer of the deadline fires, and in the second the watchdog's task runs."""

    async def main() -> None:
        told = list[int]()
        turns = 0
        async with AsyncClient.from_url(url + (str(tmp_path / "locks") if url == "sqlite:" else "")) as client:
            hold = await client.lock("x", lease=0.3).acquire()
            assert hold is not None
            hold.on_lost(lambda _: told.append(turns))
            await asyncio.sleep(0.05)
            time.sleep(0.5)  # noqa: ASYNC251 to block the loop
            with pytest.raises(LeaseLost):
                await hold.renew()
            assert told == [0], "the call itself notifies the holder"
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
