"""A process with many clients of both flavors that work for hours, and that reports its resources on demand.

    python soak_client.py URL NAMESPACE '{"clients": 500, "threads": 25, "tasks": 50, "lease": 1.0}'

Half of the clients are blocking ones and belong to threads. The others are asyncio's and belong to tasks. A worker
chooses one of its clients and does one of `DEEDS` with it. Now and then it closes a client and makes another. At each
line of input all workers pause, and a line of JSON reports the resources of the process and what was done. Then they
go on. At the end of the input the process closes all clients, and a last line reports what is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leasehold import AcquireTimeout, AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold._runtimes.base import finish
from leasehold_lab.runtimes.harnesses import BlockingHarness
from leasehold_lab.runtimes.sync_facade import sync_facade

NAMES = 40

PERMITS = 3

LIVES = 10
"""The average number of operations after which a client is closed and replaced."""

Sleep = Callable[[float], Awaitable[None]]
Deed = Callable[[Any, str, float, Sleep], Awaitable[None]]


async def plain(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold a lock for a moment."""
    async with client.lock(name, lease=lease, timeout=1.0):
        await sleep(random.uniform(0, 0.01))


async def fair(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold a fair lock, and renew it explicitly."""
    async with client.lock(f"{name}-fair", lease=lease, timeout=1.0, fair=True) as hold:
        await hold.renew()


async def renewed(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold a lock until it was renewed."""
    async with client.lock(f"{name}-long", lease=lease, timeout=0.5):
        await sleep(lease / 2)


async def tried(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Try to acquire, and release through the lock object."""
    lock = client.lock(name, lease=lease)
    if await lock.acquire(blocking=False):
        await lock.release()


async def nested(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Enter twice."""
    lock = client.rlock(f"{name}-nested", lease=lease, timeout=1.0)
    async with lock, lock:
        await sleep(0.001)


async def reading(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold a lock as a reader or as a writer."""
    both = client.rw_lock(f"{name}-rw", lease=lease, timeout=1.0)
    async with both.writer() if random.random() < 0.2 else both.reader():
        await sleep(random.uniform(0, 0.01))


async def permits(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold a permit."""
    async with client.semaphore(f"{name}-permits", PERMITS, lease=lease, timeout=1.0):
        await sleep(random.uniform(0, 0.01))


async def several(client: Any, name: str, lease: float, sleep: Sleep) -> None:
    """Hold two locks, or none."""
    locks = [client.lock(f"{name}-{side}", lease=lease) for side in ("left", "right")]
    async with client.multi_lock(locks, timeout=1.0):
        await sleep(0.001)


DEEDS: Sequence[Deed] = (plain, fair, renewed, tried, nested, reading, permits, several)


class Crew:
    """The clients, the threads and tasks that work with them, and counts of what they did."""

    def __init__(self, url: str, namespace: str, order: dict[str, Any]) -> None:
        self._options: dict[str, Any] = {"namespace": namespace, "response_timeout": 2.0}
        self._url = url
        self._lease: float = order["lease"]
        self._each = order["clients"] // 2 // order["threads"], order["clients"] // 2 // order["tasks"]
        self._go = threading.Event()
        self._over = False
        self._resting = threading.Semaphore(0)
        self._workers: int = order["threads"] + order["tasks"]
        self.done = Counter[str]()
        self.failed = Counter[str]()
        self.idle = 0  # tasks that still ran when all clients were closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [threading.Thread(target=self._in_thread) for _ in range(order["threads"])]
        self._threads.append(threading.Thread(target=self._in_loop, args=[order["tasks"]]))

    def start(self) -> None:
        """Start the workers."""
        self._go.set()
        for thread in self._threads:
            thread.start()

    def rest(self) -> None:
        """Wait until all workers have finished their operation, and pause them."""
        self._go.clear()
        for _ in range(self._workers):
            self._resting.acquire()

    def go_on(self) -> None:
        """Let the workers go on."""
        self._go.set()

    def end(self) -> None:
        """Close all clients."""
        self._over = True
        self._go.set()
        for thread in self._threads:
            thread.join()

    def tasks(self) -> int:
        """Count the tasks of the loop, while it runs."""
        return len(asyncio.all_tasks(self._loop)) if self._loop is not None else 0

    def _in_thread(self) -> None:
        def make() -> Any:
            return sync_facade(Client.from_url(self._url, **self._options))

        finish(self._work(make, self._each[0], BlockingHarness().sleep))

    def _in_loop(self, tasks: int) -> None:
        def make() -> AsyncClient:
            return AsyncClient.from_url(self._url, **self._options)

        async def all_of_them() -> None:
            self._loop = asyncio.get_running_loop()
            await asyncio.gather(*[self._work(make, self._each[1], asyncio.sleep) for _ in range(tasks)])
            self.idle = self.tasks() - 1
            self._loop = None

        asyncio.run(all_of_them())

    async def _work(self, make: Callable[[], Any], clients: int, sleep: Sleep) -> None:
        mine = [make() for _ in range(clients)]
        while not self._over:
            if not self._go.is_set():
                self._resting.release()
                while not self._go.is_set():
                    await sleep(0.05)
                continue
            which = random.randrange(clients)
            await self._do(mine[which], sleep)
            if random.random() < 1 / LIVES:
                await mine[which].close()
                mine[which] = make()
        for client in mine:
            await client.close()

    async def _do(self, client: Any, sleep: Sleep) -> None:
        deed = random.choice(DEEDS)
        name = f"n{random.randrange(NAMES)}"
        work = deed(client, name, self._lease, sleep)
        try:
            if sleep is asyncio.sleep and random.random() < 0.1:
                work = asyncio.wait_for(work, random.uniform(0, 0.05))
            await work
            self.done[deed.__name__] += 1
        except (AcquireTimeout, LeaseLost) as error:
            self.failed[type(error).__name__] += 1
        except StoreUnavailable as error:
            self.failed[type(error).__name__] += 1
            await sleep(0.02)
        except TimeoutError:
            self.failed["cancelled"] += 1
        except Exception as error:
            self.failed[f"unexpected: {error!r}"] += 1


MALLINFO2 = (
    "context",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class Mallinfo2(ctypes.Structure):
    """The result of mallinfo2(3) of the C library, in bytes but for the three counts."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO2)


def in_use() -> int:
    """Return the bytes that the C library has allocated: large objects, buffers, memory outside of Python's own."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Mallinfo2
    info: Any = library.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def resources(crew: Crew) -> dict[str, Any]:
    """Return the resources of the process, and the counts of its operations."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return {
        "threads": threading.active_count(),
        "tasks": crew.tasks(),
        "idle": crew.idle,
        "files": len(os.listdir("/proc/self/fd")),
        "objects": sys.getallocatedblocks(),
        "in use": in_use(),
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "done": crew.done,
        "failed": crew.failed,
    }


def main() -> None:
    url, namespace, order = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    crew = Crew(url, namespace, order)
    print(json.dumps(resources(crew)), flush=True)
    crew.start()
    for line in sys.stdin:
        crew.rest()
        time.sleep(float(line))  # for pending releases, and for leases to expire
        print(json.dumps(resources(crew)), flush=True)
        crew.go_on()
    crew.end()
    print(json.dumps(resources(crew)), flush=True)


if __name__ == "__main__":
    main()
