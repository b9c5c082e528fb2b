"""Continuous load on locks during a failover, and the checks of its promises afterwards."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leasehold import LeaseLost
from leasehold.errors import StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness

LEASE = 1.5
"""Seconds. Some holders lose all three renewals of a lease in a failover."""

NOISE = 1.0
"""Seconds by which a busy machine may exceed the bounds of the protocol."""


@dataclass
class Holding:
    """One hold: the times of its request, of its grant, and of its release or loss notice."""

    name: str
    token: int
    asked: float
    got: float
    ended: float = float("inf")
    told: bool = False


class Resource:
    """The guarded resource: it refuses a token lower than the highest that it has seen."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._highest: dict[str, int] = {}
        self.applied: dict[str, list[int]] = {}
        self.refused = 0

    def write(self, name: str, token: int) -> None:
        with self._mutex:
            if token < self._highest.get(name, 0):
                self.refused += 1
                return
            self._highest[name] = token
            self.applied.setdefault(name, []).append(token)


@dataclass
class Load:
    """Workers that acquire, write and release, with a record of what happened."""

    harness: Harness
    url: str
    namespace: str
    names: list[str]
    workers: int = 2
    lease: float = LEASE
    fair: bool = True
    ends: bool = False
    holdings: list[Holding] = field(default_factory=list)
    failures: list[tuple[float, Exception]] = field(default_factory=list)
    resource: Resource = field(default_factory=Resource)

    async def run(self, disturb: Callable[[], object]) -> None:
        """Run the load until ``disturb`` returns, which runs in its own thread. Raise the error of ``disturb``."""
        failed: list[BaseException] = []

        def work() -> None:
            try:
                disturb()
            except BaseException as error:
                failed.append(error)

        async with self.harness.client(self.url, namespace=self.namespace, response_timeout=5.0) as locks:
            jobs = [
                self.harness.spawn(lambda name=name: self._work(locks, name))
                for name in self.names
                for _ in range(self.workers)
            ]
            thread = threading.Thread(target=work)
            thread.start()
            while thread.is_alive():
                await self.harness.sleep(0.02)
            thread.join()
            self.ends = True
            for job in jobs:
                await job.result()
        if failed:
            raise failed[0]

    def seen_since(self, moment: float) -> set[str]:
        """Return the names that were granted for requests after ``moment``."""
        return {holding.name for holding in list(self.holdings) if holding.asked > moment}

    def wait_service(self, within: float, names: set[str] | None = None) -> float:
        """Wait until each name has been granted again; return the seconds that it took."""
        began = time.monotonic()
        wanted = set(self.names) if names is None else names
        while missing := wanted - self.seen_since(began):
            assert time.monotonic() - began < within, f"{missing} not granted within {within} s: {self.failures[-2:]}"
            time.sleep(0.01)
        return time.monotonic() - began

    def check(self) -> None:
        """Check tokens, loss notices and fencing; see the page on Redis for the promises."""
        by_name: dict[str, list[Holding]] = {}
        for holding in self.holdings:
            by_name.setdefault(holding.name, []).append(holding)
        assert by_name.keys() == set(self.names)
        for name, those in by_name.items():
            those.sort(key=lambda holding: holding.token)
            tokens = [holding.token for holding in those]
            assert len(set(tokens)) == len(tokens), f"{name}: a token was given out twice"
            latest = those[0]  # of all with a lower token, the one that was asked for last
            for newer in those[1:]:
                # A request that was sent after another one was granted gets a higher token, across every failover.
                assert newer.got >= latest.asked, f"{name}: token {newer.token} was given out before {latest.token}"
                latest = max(latest, newer, key=lambda holding: holding.asked)
            for older, newer in itertools.pairwise(those):
                if older.ended > newer.got:  # both held: a failover lost the older one's grant
                    assert older.told, (
                        f"{name}: the holder of {older.token} got no notice when {newer.token} was granted"
                    )
                    assert older.ended - newer.got < self.lease + NOISE, f"{name}: the notice of {older.token} is late"
        for name, tokens in self.resource.applied.items():
            assert tokens == sorted(tokens), f"{name}: a guarded write went backwards"

    async def _work(self, locks: Any, name: str) -> None:
        lock = locks.lock(name, lease=self.lease, fair=self.fair)
        while not self.ends:
            asked = time.monotonic()
            try:
                hold = await lock.acquire(timeout=2.0)
            except (StoreUnavailable, LeaseLost) as error:
                self.failures.append((time.monotonic(), error))
                await self.harness.sleep(0.02)
                continue
            if hold is None:
                continue
            holding = Holding(name, hold.token, asked, time.monotonic())
            self.holdings.append(holding)
            await self._hold(hold, holding)

    async def _hold(self, hold: Any, holding: Holding) -> None:
        # Most holds are short. Every eighth lasts for several renewals, so some last through a failover.
        until = holding.got + (self.lease * 1.5 if len(self.holdings) % 8 == 0 else 0.01)
        while time.monotonic() < until and not hold.lost and not self.ends:
            self.resource.write(holding.name, holding.token)
            await self.harness.sleep(0.01)
        holding.told = hold.lost
        holding.ended = time.monotonic()
        try:
            await hold.release()
        except LeaseLost:
            holding.told = True
