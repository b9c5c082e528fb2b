"""What the tests of strict mode share: a short longest lease, waiting for a new dataset, and load."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from leasehold import LeaseLost, StoreUnavailable
from leasehold_lab.history import Hold
from leasehold_lab.runtimes.harnesses import Harness, Job
from leasehold_lab.servers import RedisServer

LONGEST = 1.5
"""Seconds of the longest lease, and of the leases here."""

NOISE = 1.0
"""Seconds that a busy machine may add to what the protocol bounds."""


def url_of(url: str, strict: bool = True, more: str = "") -> str:
    if not strict:
        return url
    return f"{url}{'&' if '?' in url else '?'}strict=true&longest_lease={LONGEST}{more}"


async def warm(harness: Harness, url: str, namespace: str, name: str = "a") -> None:
    """Wait out the quarantine of a dataset that is new."""
    async with harness.client(url, namespace=namespace) as locks, locks.lock(name, lease=LONGEST, timeout=10.0):
        pass


async def got(lock: Any, timeout: float | None = None) -> Any:
    """Acquire; None is a failure."""
    hold = await lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


@contextmanager
def stalled(*servers: RedisServer) -> Generator[None, None, None]:
    """Stop servers for a while."""
    for server in servers:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            os.kill(server.pid, signal.SIGCONT)


def lose_touch(replica: RedisServer) -> None:
    """Disconnect a replica from its primary; a stalled one would still read what is in its socket."""
    replica.command("REPLICAOF", "127.0.0.1", "1")


async def overlap(harness: Harness, url: str, namespace: str, first: Any) -> bool:
    """Acquire what ``first`` holds; return whether both claims are valid at once."""
    async with harness.client(url, namespace=namespace) as others:
        began = harness.now()
        second = await others.lock(first.name, lease=LONGEST).acquire(timeout=10.0)
        both_valid = first.remaining > 0
        assert second is not None
        assert harness.now() - began < 5.0 + NOISE
        assert second.token > first.token
        await second.release()
        return both_valid


async def disturbed(
    harness: Harness, disturb: Callable[[], None], jobs: Sequence[Job[None]], ends: threading.Event
) -> None:
    """Disturb the servers while the jobs run; raise the errors of both."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            disturb()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        await harness.sleep(0.02)
    ends.set()
    for job in jobs:
        await job.result()
    if failed:
        raise failed[0]


async def work(harness: Harness, locks: Any, who: str, name: str, holds: list[Hold], ends: threading.Event) -> None:
    """Acquire again and again; some holds last over a failover."""
    while not ends.is_set():
        asked = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            hold = await locks.lock(name, lease=LONGEST).acquire(timeout=2.0)
        except (StoreUnavailable, LeaseLost):
            await harness.sleep(0.02)
            continue
        if hold is None:
            continue
        got = time.clock_gettime(time.CLOCK_BOOTTIME)
        keep = LONGEST * 1.5 if len(holds) % 8 == 0 else 0.01
        left = now = got
        while now < got + keep and hold.remaining > 0 and not ends.is_set():
            await harness.sleep(0.01)
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            left = now if hold.remaining > 0 else left
        holds.append(Hold(who, name, asked, got, left, token=hold.token, lease=LONGEST))
        try:
            await hold.release()
        except LeaseLost:
            pass
