"""A process that holds many locks and is stopped. It reports its loss notices, and which calls still succeeded.

Arguments: flavor, URL, namespace, lease, number of locks. It prints two lines of JSON: the first when it holds all
locks, the second with its report.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold._runtimes.base import Flavor, finish
from leasehold._runtimes.clock import boottime
from leasehold_lab.runtimes.sync_facade import sync_facade
from leasehold_lab.verify.clients.stall_detector import timed_callback
from support.missed_turns import turns_missed

DEEDS = ("check", "renew", "release")
"""The calls of a hold that are repeated until one raises `LeaseLost`; each of the first holds uses another call."""

BETWEEN = 0.001
"""Seconds between two calls."""


async def repeat(hold: Any, deed: str, last: dict[str, float], stop: Any, sleep: Any) -> None:
    """Repeat a call until it raises, and record when the last successful call began. Release only once."""
    try:
        while True:
            if deed != "release" or stop():
                began = boottime()
                try:
                    await getattr(hold, deed)() if deed != "check" else hold.raise_if_lost()
                except StoreUnavailable:  # it was sent before the stop, and its outcome is unknown
                    continue
                last[deed] = max(last.get(deed, 0.0), began)
                if deed == "release":
                    return
            await sleep(BETWEEN)
    except LeaseLost:
        last[f"{deed} refused"] = last.get(f"{deed} refused", 0) + 1


async def hold_many(client: Any, lease: float, count: int, stop: Any, sleep: Any, alongside: Any) -> None:
    told, last, holds = dict[int, float](), dict[str, float](), list[Any]()
    for number in range(count):
        hold = await client.lock(f"told-{number}", lease=lease).acquire(timeout=20)
        hold.on_lost(timed_callback(lambda _, number=number: told.setdefault(number, boottime())))
        holds.append(hold)
    print(json.dumps({"holds": count}), flush=True)
    await alongside(
        [(hold, deed, last, stop, sleep) for hold, deed in zip(holds[: 2 * len(DEEDS)], DEEDS * 2, strict=True)]
    )
    while len(told) < count:
        await sleep(0.005)
    ends = [(hold.blocking._core if hasattr(hold, "blocking") else hold)._lease.deadline for hold in holds]
    report = {"told": [told[number] for number in range(count)], "ends": ends, "last": last}
    answers.append(report)


answers: list[dict[str, Any]] = []


async def in_tasks(url: str, namespace: str, lease: float, count: int, stop: Any) -> None:
    async def alongside(each: Any) -> None:
        await asyncio.gather(*(repeat(*one) for one in each))

    async with AsyncClient.from_url(url, namespace=namespace) as client:
        await hold_many(client, lease, count, stop, asyncio.sleep, alongside)


def in_threads(url: str, namespace: str, lease: float, count: int, stop: Any) -> None:
    async def alongside(each: Any) -> None:
        threads = [threading.Thread(target=lambda one=one: finish(repeat(*one))) for one in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with Client.from_url(url, namespace=namespace) as client:
        finish(hold_many(sync_facade(client), lease, count, stop, client._core._engine.runtime.sleep, alongside))


def main() -> None:
    flavor, (url, namespace), (lease, count) = (
        Flavor(sys.argv[1]),
        sys.argv[2:4],
        (float(sys.argv[4]), int(sys.argv[5])),
    )
    said = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), said.set()), daemon=True).start()
    with turns_missed(flavor) as missed:
        if flavor is Flavor.ASYNC:
            asyncio.run(in_tasks(url, namespace, lease, count, said.is_set))
        else:
            in_threads(url, namespace, lease, count, said.is_set)
    stalls = [(stall.begin, stall.end) for stall in missed.stalls]
    print(json.dumps({**answers[0], "stalls": stalls}), flush=True)


if __name__ == "__main__":
    main()
