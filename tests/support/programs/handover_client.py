"""Processes of both flavors hand over one lock to each other; one line of JSON reports how long that took.

    python handover_client.py URL NAMESPACE '{"handovers": 1000, "fair": true, "lease": 3.0, "ignore_messages": 0}'

Each process is forked from one that has imported the modules. They share a few cells of memory, which only the holder
reads and writes. With these they also check that no two hold at the same time, and that tokens increase.

A hand-over counts if the lock goes to another process. It lasts from just before the release of one until the acquire
of the other has returned. With ``"ignore_messages": n``, each process drops every n-th message.
"""

from __future__ import annotations

import gc
import itertools
import json
import mmap
import os
import sys
import time
from typing import Any

from leasehold._runtimes.clock import boottime
from leasehold.stores.redis.handover import Waiters
from leasehold.stores.registry import factory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

CONTENDERS = 6

STUCK = 60.0
"""Seconds after which a waiter is stuck."""

INSIDE, LAST, TOKEN, FREED, HANDED, READY, CELLS = range(7)
"""Cells: the current holder, the holder before, its token, when it released, the number of hand-overs. From `READY` on,
there is one cell for each contender, which is set when it has connected."""


def contend(url: str, namespace: str, order: dict[str, Any], cells: Any, me: int) -> list[tuple[float, float]]:
    """Acquire and release until there were enough hand-overs; return when each began and ended."""
    spans = list[tuple[float, float]]()

    async def body(harness: Harness) -> None:
        client = harness.client(url, namespace=namespace)
        lock = client.lock("x", fair=order["fair"], lease=order["lease"])
        await client.inspect("x")
        cells[READY + me] = 1
        while sum(cells[READY + 1 :]) < CONTENDERS:
            await harness.sleep(0.01)
        while cells[HANDED] < order["handovers"]:
            hold = await lock.acquire(timeout=STUCK)
            had = boottime()
            assert hold is not None, "stuck"
            assert not cells[INSIDE], "two are inside"
            assert hold.token > cells[TOKEN], "tokens increase"
            cells[INSIDE], cells[TOKEN] = me, hold.token
            if cells[LAST] not in (0, me):
                spans.append((cells[FREED], had))
                cells[HANDED] += 1
            cells[INSIDE], cells[LAST], cells[FREED] = 0, me, boottime()
            await hold.release()

    harness = BlockingHarness() if me % 2 else AsyncioHarness()
    harness.run(body)
    return spans


def drop_messages(each: int) -> None:
    """Make the waiters of this process drop each ``each``-th message."""
    receive, numbers = Waiters.receive, itertools.count(1)

    def receive_some(self: Waiters, message: bytes) -> None:
        if next(numbers) % each:
            receive(self, message)

    Waiters.receive = receive_some  # type: ignore[method-assign]


def fork_contender(url: str, namespace: str, order: dict[str, Any], cells: Any, me: int) -> int:
    """Start a contender; return the descriptor of a pipe from which its spans, or its error, can be read."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        code, said = 1, dict[str, Any]()
        try:
            os.close(reads)
            if order["ignore_messages"]:
                drop_messages(order["ignore_messages"])
            said, code = {"spans": contend(url, namespace, order, cells, me)}, 0
        except BaseException as error:
            said = {"error": repr(error)}
            raise
        finally:
            with os.fdopen(writes, "w") as answer:
                json.dump(said, answer)
            os._exit(code)
    os.close(writes)
    return reads


def main() -> None:
    url, namespace, order = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    factory(url.partition(":")[0])
    gc.freeze()
    cells = memoryview(mmap.mmap(-1, 8 * (CELLS + CONTENDERS))).cast("d")
    began = time.monotonic()
    pipes = [fork_contender(url, namespace, order, cells, me) for me in range(1, CONTENDERS + 1)]
    said = list[dict[str, Any]]()
    for pipe in pipes:
        with os.fdopen(pipe) as answer:
            said.append(json.load(answer))
    errors = [one["error"] for one in said if "error" in one]
    spans = [span for one in said for span in one.get("spans", ())]
    print(json.dumps({"errors": errors, "spans": spans, "took": time.monotonic() - began}))


if __name__ == "__main__":
    main()
