"""The same work for many leases or keys, with a limited number of requests at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold._runtimes.base import Flavor, Runtime

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 16
"""Requests at the same time under threads: each takes a thread and a connection."""

AT_ONCE_OF_TASKS = 128
"""Requests at the same time under asyncio: each takes a connection."""


async def for_each(
    runtime: Runtime, some: Sequence[S], work: Callable[[S], Coroutine[Any, Any, T]]
) -> list[T | BaseException]:
    """Do something with each, a limited number at a time; return each result or its exception, in order.

    The next one begins when any of them ends. So one that gets no response does not delay the others.
    """
    results: list[T | BaseException] = [RuntimeError("not run")] * len(some)
    left = deque(range(len(some)))

    async def lane() -> None:
        while (number := _next(left)) is not None:
            try:
                results[number] = await work(some[number])
            except BaseException as error:
                results[number] = error
                if not isinstance(error, Exception):  # cancelled: the next one must not begin
                    raise

    most = AT_ONCE if runtime.flavor is Flavor.SYNC else AT_ONCE_OF_TASKS
    await runtime.gather(*(lane() for _ in range(min(most, len(some)))))
    return results


def _next(left: deque[int]) -> int | None:
    try:
        return left.popleft()
    except IndexError:  # another thread may have taken the last one
        return None
