"""A process that is killed after its k-th effect: it makes a child for each order, and each child takes a lock twice.

Orders are lines of JSON on standard input. For each it says the child's number, and later that it has done all. It is
itself without threads, so that it can fork, and has imported everything, so that a child begins at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from types import FrameType
from typing import Any

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable

DRIVERS = ("redis.asyncio", "hiredis", "psycopg", "pymysql", "asyncmy", "kazoo.client", "h11")


def tell(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def blocking(order: dict[str, Any]) -> None:
    with Client.from_url(order["url"], namespace=order["namespace"], response_timeout=10.0) as locks:
        for _ in range(2):
            hold = locks.lock(order["name"], lease=order["lease"]).acquire(timeout=60)
            assert hold is not None
            time.sleep(order["lease"] * 0.45)  # long enough for a renewal
            hold.extend()
            hold.release()


async def asyncio_(order: dict[str, Any]) -> None:
    async with AsyncClient.from_url(order["url"], namespace=order["namespace"], response_timeout=10.0) as locks:
        for _ in range(2):
            hold = await locks.lock(order["name"], lease=order["lease"]).acquire(timeout=60)
            assert hold is not None
            await asyncio.sleep(order["lease"] * 0.45)
            await hold.extend()
            await hold.release()


def die_after(statements: int) -> None:
    """Kill this process when so many statements of SQLite have been executed, in whatever threads."""
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        if event == "c_return" and arg.__name__ == "execute" and isinstance(arg.__self__, sqlite3.Connection):
            count += 1
            if count == statements:
                tell(id=me, killed=count)
                os.kill(os.getpid(), signal.SIGKILL)

    me = os.environ["ORDER"]
    threading.setprofile(profile)
    sys.setprofile(profile)


def live(order: dict[str, Any]) -> None:
    os.environ["ORDER"] = order["id"]
    if order["statements"]:
        die_after(order["statements"])
    with contextlib.suppress(LeaseLost, StoreUnavailable):  # the machine is busy: it was told, and that is an end, too
        if order["colour"] == "blocking":
            blocking(order)
        else:
            asyncio.run(asyncio_(order))
    tell(id=order["id"], done=True)


def main() -> None:
    for driver in DRIVERS:
        importlib.import_module(driver)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    tell(ready=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            code = 1
            try:
                live(order)
                code = 0
            except BaseException as error:
                tell(id=order["id"], failed=repr(error))
                raise
            finally:
                os._exit(code)
        tell(id=order["id"], pid=pid)


if __name__ == "__main__":
    main()
