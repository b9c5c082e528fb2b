"""A process for crash tests: holds or waits for locks on command, and reports each event as a line of JSON.

Arguments: flavor, URL, namespace, role (``hold``, ``wait``), lease, then the names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

from leasehold import AsyncClient, Client, LeaseLost
from leasehold._model import Change
from leasehold._runtimes.base import finish


def tell(**facts: Any) -> None:
    line = json.dumps({"at": time.monotonic(), **facts})
    os.write(1, f"{line}\n".encode())  # in one piece, from any thread


def hold_blocking(locks: Client, name: str, lease: float) -> None:
    """Hold until the parent writes a line, then act as a holder that does not know of its loss."""
    hold = locks.lock(name, lease=lease).acquire()
    assert hold is not None
    tell(name=name, token=hold.token)
    sys.stdin.readline()
    facts: dict[str, Any] = {}
    try:
        hold.raise_if_lost()
    except LeaseLost:
        facts["check"] = "lost"
    written = finish(locks.store.compare_and_set(f"{name}:data", Change(b"late", fence=hold.token)))
    facts["written"] = written.changed
    try:
        hold.release()
    except LeaseLost:
        facts["release"] = "lost"
    tell(**facts)
    sys.stdin.readline()  # meanwhile the watchdog sends its pending releases


async def hold_asyncio(locks: AsyncClient, name: str, lease: float) -> None:
    facts: dict[str, Any] = {}
    token = 0
    try:
        async with locks.lock(name, lease=lease) as hold:
            token = hold.token
            tell(name=name, token=token)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                facts["check"] = "lost"
                written = await locks.store.compare_and_set(f"{name}:data", Change(b"late", fence=token))
                facts["written"] = written.changed
                raise
    except LeaseLost:
        facts["release"] = "lost"
    tell(**facts)
    await asyncio.to_thread(sys.stdin.readline)


async def crowd(locks: AsyncClient, role: str, names: list[str], lease: float) -> None:
    """Hold all names for ever, or acquire each as soon as it is free and keep it."""

    async def work(name: str) -> None:
        hold = await locks.lock(name, lease=lease).acquire()
        assert hold is not None
        tell(name=name, token=hold.token)
        if role == "wait":
            await asyncio.sleep(0.01)
            await hold.release()
        else:
            await asyncio.sleep(600)

    tell(role=role)
    await asyncio.gather(*map(work, names))
    await asyncio.sleep(600)


async def amain(url: str, namespace: str, role: str, lease: float, names: list[str]) -> None:
    async with AsyncClient.from_url(url, namespace=namespace) as locks:
        if role == "stop":
            await hold_asyncio(locks, names[0], lease)
        else:
            await crowd(locks, role, names, lease)


def main() -> None:
    flavor, url, namespace, role, lease, *names = sys.argv[1:]
    if flavor == "asyncio":
        asyncio.run(amain(url, namespace, role, float(lease), names))
        return
    with Client.from_url(url, namespace=namespace) as locks:
        if role == "stop":
            hold_blocking(locks, names[0], float(lease))
        else:
            crowd_of_threads(locks, role, names, float(lease))


def crowd_of_threads(locks: Client, role: str, names: list[str], lease: float) -> None:
    def work(name: str) -> None:
        hold = locks.lock(name, lease=lease).acquire()
        assert hold is not None
        tell(name=name, token=hold.token)
        if role == "wait":
            hold.release()
        else:
            time.sleep(600)

    tell(role=role)
    for name in names:
        threading.Thread(target=work, args=(name,), daemon=True).start()
    time.sleep(600)


if __name__ == "__main__":
    main()
