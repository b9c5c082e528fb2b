"""Processes of both flavors that hand over one lock to each other; a line of JSON reports how long it took.

    python handover_client.py URL NAMESPACE '{"handovers": 1000, "fair": true, "lease": 3.0, "deaf": 0}'

Each is forked from a process that has imported all modules. They share a few cells of memory, which only the holder
reads and writes. So they also check that never two hold the lock, and that tokens increase. A hand-over counts if the
next holder is another process. It lasts from just before the release is called until the next acquire has returned.
With `deaf`, a process misses one message in so many.
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
from leasehold.stores.redis.waiting import Waiting
from leasehold.stores.registry import factory
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

CONTENDERS = 6

STUCK = 60.0
"""Seconds after which a waiter is stuck."""

INSIDE, LAST, TOKEN, FREED, HANDED, READY, CELLS = range(7)
"""The holder, the holder before it, its token, the time of its release, the count of hand-overs.

From `READY` on there is a cell for each contender that has connected.
"""


def contend(url: str, namespace: str, order: dict[str, Any], cells: Any, me: int) -> list[tuple[float, float]]:
    """Acquire the lock again and again, for the number of hand-overs; return their begins and ends."""
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
            assert hold.token > cells[TOKEN], "tokens rise"
            cells[INSIDE], cells[TOKEN] = me, hold.token
            if cells[LAST] not in (0, me):
                spans.append((cells[FREED], had))
                cells[HANDED] += 1
            cells[INSIDE], cells[LAST], cells[FREED] = 0, me, boottime()
            await hold.release()

    harness = BlockingHarness() if me % 2 else AsyncioHarness()
    harness.run(body)
    return spans


def hard_of_hearing(each: int) -> None:
    """Let waiters of this process miss one message in so many."""
    heard, numbers = Waiting.heard, itertools.count(1)

    def hearing(self: Waiting, message: bytes) -> None:
        if next(numbers) % each:
            heard(self, message)

    Waiting.heard = hearing  # type: ignore[method-assign]


def forked(url: str, namespace: str, order: dict[str, Any], cells: Any, me: int) -> int:
    """Start a contender; return the end of a pipe from which its spans, or its error, can be read."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        code, said = 1, dict[str, Any]()
        try:
            os.close(reads)
            if order["deaf"]:
                hard_of_hearing(order["deaf"])
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
    pipes = [forked(url, namespace, order, cells, me) for me in range(1, CONTENDERS + 1)]
    said = list[dict[str, Any]]()
    for pipe in pipes:
        with os.fdopen(pipe) as answer:
            said.append(json.load(answer))
    errors = [one["error"] for one in said if "error" in one]
    spans = [span for one in said for span in one.get("spans", ())]
    print(json.dumps({"errors": errors, "spans": spans, "took": time.monotonic() - began}))


if __name__ == "__main__":
    main()
