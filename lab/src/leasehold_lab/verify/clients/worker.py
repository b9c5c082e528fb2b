"""One client process of a run: ``python -m leasehold_lab.verify.clients.worker``, with orders on standard input.

The orders are one line of JSON. They contain the URL of the store, which may have a password, so they are not passed
as arguments. The process exits when its standard input ends, so an interrupted run leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold._runtimes.base import Flavor, run_sync
from leasehold._runtimes.clock import boottime as now
from leasehold.client import AsyncClient, Client
from leasehold_lab.history.journal import Journal, Record, into_file
from leasehold_lab.verify.clients.resource import ResourceClient
from leasehold_lab.verify.clients.stall_detector import StallDetector, timed, waited_by_main, waited_by_watchdog
from leasehold_lab.verify.clients.workload import Load, Worker, note_queueing

ENDS_WITHIN = 20.0
"""Seconds that the threads or tasks get to finish their current operations."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a client."""

    who: str
    url: str
    namespace: str
    flavor: Flavor
    workers: int
    seed: str
    journal: str
    port: int
    load: Load
    response_timeout: float

    @classmethod
    def read(cls, line: str) -> Orders:
        """Read the line that `leasehold_lab.verify.clients.process` wrote."""
        fields: dict[str, Any] = json.loads(line)
        fields["flavor"], fields["load"] = Flavor(fields["flavor"]), Load(**fields["load"])
        return cls(**fields)

    def __repr__(self) -> str:
        return f"<Orders of {self.who}>"  # the URL may have a password


def main() -> int:
    """Work until standard input ends or contains a line."""
    orders = Orders.read(sys.stdin.readline())
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    put = into_file(Path(orders.journal))
    waited = waited_by_watchdog if orders.flavor is Flavor.SYNC else waited_by_main
    StallDetector(Journal(orders.who, now, put), now, waited=waited).start()
    if orders.flavor is Flavor.SYNC:
        _in_threads(orders, stop, put)
    else:
        asyncio.run(_in_tasks(orders, stop, put))
    return 0


def _listen(stop: threading.Event) -> None:
    if not sys.stdin.readline():
        os._exit(1)  # the process of the run is gone
    stop.set()
    sys.stdin.readline()
    os._exit(1)


def _worker(
    orders: Orders,
    number: int,
    client: AsyncClient,
    put: Callable[[Record], None],
    resource: ResourceClient | None = None,
) -> Worker:
    who = f"{orders.who}.{number}"
    whom = orders.who if orders.flavor is Flavor.ASYNC else who  # a blocked task blocks the whole event loop

    def late(seconds: float) -> None:
        Journal(who, now, put).held_up(seconds, whom)

    journal = Journal(who, now, timed(put, now, late))
    write = timed((resource or ResourceClient(orders.port)).write, now, late)
    seed = random.Random(f"{orders.seed}.{number}")
    return Worker(client, orders.load, journal, write, client._engine.runtime.sleep, now, seed)


class WorkerSets:
    """Makes the workers of each successive client; the load decides whether clients are closed while in use."""

    def __init__(self, orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
        self._orders = orders
        self._stop = stop
        self._put = put
        self._resources = [ResourceClient(orders.port) for _ in range(orders.workers)]
        self._made = 0
        self._chance = random.Random(f"{orders.seed}.closes")

    def next(self, client: AsyncClient) -> list[Worker]:
        """Return the workers of the next client; print ``ready`` for the first client."""
        first = self._made
        self._made += len(self._resources)
        made = [
            _worker(self._orders, number, client, self._put, resource)
            for number, resource in enumerate(self._resources, first)
        ]
        if not first:
            print("ready", flush=True)
        return made

    def lifetime(self) -> float | None:
        """Return for how many seconds a client is used before it is closed; None if it is not closed while in use."""
        load = self._orders.load
        return self._chance.uniform(0.5, 1.5) * load.closes * load.lease if load.closes else None

    def go_on(self) -> bool:
        """Return whether another client follows."""
        return not self._stop.is_set()


def _in_threads(orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
    sets = WorkerSets(orders, stop, put)

    def work(worker: Worker) -> None:
        run_sync(worker.run(stop.is_set))

    while sets.go_on():
        client = Client.from_url(
            orders.url, namespace=orders.namespace, response_timeout=orders.response_timeout, observer=note_queueing
        )
        with client:
            workers = sets.next(client._core)
            threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
            for thread in threads:
                thread.start()
            if not stop.wait(sets.lifetime()):
                client.close()
            for thread in threads:
                thread.join()


async def _in_tasks(orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
    sets = WorkerSets(orders, stop, put)
    gc.freeze()
    while sets.go_on():
        client = AsyncClient.from_url(
            orders.url, namespace=orders.namespace, response_timeout=orders.response_timeout, observer=note_queueing
        )
        async with client:
            working = asyncio.gather(*(worker.run(stop.is_set) for worker in sets.next(client)))
            await asyncio.wait([working], timeout=sets.lifetime())
            if not working.done():
                await client.close()
            await working


if __name__ == "__main__":
    sys.exit(main())
