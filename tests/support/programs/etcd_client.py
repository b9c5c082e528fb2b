"""A process for interoperation tests: acquires a lock again and again, and enters a room that one may be in.

Arguments: flavor, URL, name, lease, room, log. It runs until it is killed. Exit code 3: another was in the room.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable


def visit(token: int, room: str, log: str) -> None:
    door = os.open(room, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(3)
    time.sleep(0.001)
    book = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(book, f"us {token}\n".encode())
    os.close(book)
    os.close(door)


def blocking(url: str, name: str, lease: float, room: str, log: str) -> None:
    with Client.from_url(url) as locks:
        while True:
            try:
                with locks.lock(name, lease=lease) as hold:
                    visit(hold.token, room, log)
            except (LeaseLost, StoreUnavailable):
                pass


async def asynchronous(url: str, name: str, lease: float, room: str, log: str) -> None:
    async with AsyncClient.from_url(url) as locks:
        while True:
            try:
                async with locks.lock(name, lease=lease) as hold:
                    visit(hold.token, room, log)
            except (LeaseLost, StoreUnavailable):
                pass


def main() -> None:
    flavor, url, name, lease, room, log = sys.argv[1:]
    if flavor == "asyncio":
        asyncio.run(asynchronous(url, name, float(lease), room, log))
    else:
        blocking(url, name, float(lease), room, log)


if __name__ == "__main__":
    main()
