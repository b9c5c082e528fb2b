"""Cached values: one caller fetches for all; nobody waits while there is an old value; errors reach one caller."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from leasehold.errors import AcquireTimeout
from leasehold.primitives.values.cached import AsyncCachedValue
from leasehold_lab.conformance.case_context import CaseContext, Variant, case, raised

KEY = "partner-token"
CALLERS = 5

CALLED = 0.1
"""The most seconds from the beginning of a value's ``ttl`` to the start of the fetch, which follows it."""


class Source:
    """The source of values: counts its calls, can be slow, can fail."""

    def __init__(self, context: CaseContext, seconds: float = 0.1) -> None:
        self._context = context
        self.seconds = seconds
        self.began = list[float]()
        self.broken = False

    @property
    def fetched(self) -> int:
        return len(self.began)

    def fetch(self) -> Callable[[], Any]:
        """Return the fetch function."""

        async def fetch() -> dict[str, object]:
            self.began.append(self._context.harness.now())
            number = self.fetched
            await self._context.harness.sleep(self.seconds)
            if self.broken:
                raise ZeroDivisionError
            return {"token": number, "expires_in": self._context.at_least_shortest(0.8)}

        return fetch


@case((Variant.LOCK,), needs=("cells",))
async def one_caller_fetches_for_all(context: CaseContext) -> None:
    """Of many concurrent callers one fetches; after the value expires, one of them fetches again."""
    source, ttl = Source(context), context.at_least_shortest(0.8)

    async def get() -> int:
        shared = context.client().cached(KEY, lambda got: got["expires_in"], source.fetch(), early=0)
        return int((await shared.get())["token"])

    for _ in range(2):
        before = source.fetched
        got = await context.harness.gather(*(get() for _ in range(CALLERS)))
        assert source.fetched > before
        assert set(got) == set(range(before + 1, source.fetched + 1))
        await context.harness.sleep(context.expired_after(0.8) + 0.1)
    between = [later - earlier for earlier, later in pairwise(source.began)]
    assert min(between) > ttl - CALLED, "a caller fetched while there was a value"


@case((Variant.LOCK,), needs=("cells",))
async def one_caller_refreshes_early_while_others_use_the_old_value(context: CaseContext) -> None:
    """Late in the value's ``ttl`` one caller fetches; the others return the old value at once."""
    source = Source(context)

    def mine() -> AsyncCachedValue[Any]:
        return context.client().cached(KEY, 30, source.fetch(), early=29.0)

    first, second = mine(), mine()
    assert (await first.get())["token"] == 1
    await context.harness.sleep(context.expired_after(1.0))
    source.seconds = 0.5
    job = context.harness.spawn(lambda: first.get())
    await context.harness.sleep(0.2)
    start = context.harness.now()
    assert (await second.get())["token"] == 1
    assert context.harness.now() - start < 0.3, "the caller waited for the fetch"
    assert (await job.result())["token"] == 2
    assert (await second.get())["token"] == 2
    assert source.fetched == 2


@case((Variant.LOCK,), needs=("cells",))
async def a_failed_early_refresh_keeps_the_old_value(context: CaseContext) -> None:
    """The caller gets the old value, and nobody fetches for a while."""
    source = Source(context, 0.0)
    shared = context.client().cached(KEY, 30, source.fetch(), early=29.9)
    assert (await shared.get())["token"] == 1
    source.broken = True
    await context.harness.sleep(context.expired_after(0.1))
    start = context.harness.now()
    for _ in range(10):
        assert (await shared.get())["token"] == 1
        if context.harness.now() - start > 0.5:  # a slow machine: after a second a caller may fetch again
            break
    assert source.fetched == 2
    source.broken = False
    await context.harness.sleep(context.expired_after(1.0))
    assert (await shared.get())["token"] == 3


@case((Variant.LOCK,), needs=("cells",))
async def a_fetch_slower_than_the_early_window_is_not_repeated_at_once(context: CaseContext) -> None:
    """If the fetch alone takes the whole time before the early refresh, the value is still used for a while."""
    source = Source(context, 0.2)
    shared = context.client().cached(KEY, 30, source.fetch(), early=29.9)
    for _ in range(3):
        assert (await shared.get())["token"] == 1


@case((Variant.LOCK,), needs=("cells",))
async def the_next_caller_retries_a_failed_fetch(context: CaseContext) -> None:
    """Without an old value, the error is raised only to the caller that fetched."""
    source = Source(context, 0.0)
    source.broken = True
    shared = context.client().cached(KEY, 30, source.fetch())
    await raised(ZeroDivisionError, shared.get())
    source.broken = False
    assert (await shared.get())["token"] == 2


@case((Variant.LOCK,), needs=("cells",))
async def a_refused_value_is_replaced_once(context: CaseContext) -> None:
    """All callers that saw the refused value get the new one, which one of them fetched."""
    source = Source(context)
    clients = [context.client().cached(KEY, 30, source.fetch()) for _ in range(CALLERS)]
    old = await clients[0].get()
    got = await context.harness.gather(*(shared.get(refused=old) for shared in clients))
    assert [value["token"] for value in got] == [2] * CALLERS
    assert source.fetched == 2


@case((Variant.LOCK,), needs=("cells",))
async def a_caller_that_waits_for_a_fetch_may_time_out(context: CaseContext) -> None:
    """The timeout ends the wait; the fetch continues."""
    source = Source(context, 0.6)
    job = context.harness.spawn(lambda: context.client().cached(KEY, 30, source.fetch()).get())
    await context.harness.sleep(0.2)
    waiter = context.client().cached(KEY, 30, source.fetch(), timeout=0.1)
    await raised(AcquireTimeout, waiter.get())
    assert (await job.result())["token"] == 1
    assert (await waiter.get())["token"] == 1
