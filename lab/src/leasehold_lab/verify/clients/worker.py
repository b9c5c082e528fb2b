"""One client of a run, a process: ``python -m leasehold_lab.verify.clients.worker``, with orders on standard input.

The orders are one line of JSON; they hold the store's URL, which may have a password, so they are no arguments. When
standard input ends, so does the process: nothing is left behind by a run that was cut short.
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
from leasehold_lab.verify.clients.resource import Visitor
from leasehold_lab.verify.clients.stall_detector import Pulse, timed, waited_by_main, waited_by_watchdog
from leasehold_lab.verify.clients.workload import Load, Worker, note_queueing

ENDS_WITHIN = 20.0
"""Seconds that the threads or tasks get to end what they are at."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a client is to do."""

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
        """Read what `as_line` wrote."""
        facts: dict[str, Any] = json.loads(line)
        facts["flavor"], facts["load"] = Flavor(facts["flavor"]), Load(**facts["load"])
        return cls(**facts)

    def __repr__(self) -> str:
        return f"<Orders of {self.who}>"  # the URL may have a password


def main() -> int:
    """Work until standard input ends or says stop."""
    orders = Orders.read(sys.stdin.readline())
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    put = into_file(Path(orders.journal))
    waited = waited_by_watchdog if orders.flavor is Flavor.SYNC else waited_by_main
    Pulse(Journal(orders.who, now, put), now, waited=waited).start()
    if orders.flavor is Flavor.SYNC:
        _in_threads(orders, stop, put)
    else:
        asyncio.run(_in_tasks(orders, stop, put))
    return 0


def _listen(stop: threading.Event) -> None:
    if not sys.stdin.readline():
        os._exit(1)  # whoever steers the run is gone
    stop.set()
    sys.stdin.readline()
    os._exit(1)


def _worker(
    orders: Orders, number: int, client: AsyncClient, put: Callable[[Record], None], visitor: Visitor | None = None
) -> Worker:
    who = f"{orders.who}.{number}"
    whom = orders.who if orders.flavor is Flavor.ASYNC else who  # what blocks one task blocks all

    def late(seconds: float) -> None:
        Journal(who, now, put).held_up(seconds, whom)

    journal = Journal(who, now, timed(put, now, late))
    write = timed((visitor or Visitor(orders.port)).write, now, late)
    seed = random.Random(f"{orders.seed}.{number}")
    return Worker(client, orders.load, journal, write, client._engine.runtime.sleep, now, seed)


class Crews:
    """The workers of one client after the other: each client is closed while they use it, if the load says so."""

    def __init__(self, orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
        self._orders = orders
        self._stop = stop
        self._put = put
        self._visitors = [Visitor(orders.port) for _ in range(orders.workers)]
        self._made = 0
        self._chance = random.Random(f"{orders.seed}.closes")

    def next(self, client: AsyncClient) -> list[Worker]:
        """Return the workers of another client; the first ones say that they are ready."""
        first = self._made
        self._made += len(self._visitors)
        made = [
            _worker(self._orders, number, client, self._put, visitor)
            for number, visitor in enumerate(self._visitors, first)
        ]
        if not first:
            print("ready", flush=True)
        return made

    def lasts(self) -> float | None:
        """Return for how many seconds a client is used before it is closed; None if it is not closed under use."""
        load = self._orders.load
        return self._chance.uniform(0.5, 1.5) * load.closes * load.lease if load.closes else None

    def go_on(self) -> bool:
        """Say whether another client follows."""
        return not self._stop.is_set()


def _in_threads(orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
    crews = Crews(orders, stop, put)

    def work(worker: Worker) -> None:
        run_sync(worker.run(stop.is_set))

    while crews.go_on():
        client = Client.from_url(
            orders.url, namespace=orders.namespace, response_timeout=orders.response_timeout, observer=note_queueing
        )
        with client:
            workers = crews.next(client._core)
            threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
            for thread in threads:
                thread.start()
            if not stop.wait(crews.lasts()):
                client.close()
            for thread in threads:
                thread.join()


async def _in_tasks(orders: Orders, stop: threading.Event, put: Callable[[Record], None]) -> None:
    crews = Crews(orders, stop, put)
    gc.freeze()
    while crews.go_on():
        client = AsyncClient.from_url(
            orders.url, namespace=orders.namespace, response_timeout=orders.response_timeout, observer=note_queueing
        )
        async with client:
            working = asyncio.gather(*(worker.run(stop.is_set) for worker in crews.next(client)))
            await asyncio.wait([working], timeout=crews.lasts())
            if not working.done():
                await client.close()
            await working


if __name__ == "__main__":
    sys.exit(main())
