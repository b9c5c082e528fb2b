"""Cached values: one caller fetches for all; no caller waits while there is an old value; errors reach one caller."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from leasehold._runtimes.base import Signal
from leasehold.errors import AcquireTimeout
from leasehold.primitives.values.cached import RETRY_PAUSE, AsyncCachedValue
from leasehold_lab.conformance.case_context import LASTING, NOISE, SOON, CaseContext, Variant, case, raised

KEY = "partner-token"
CALLERS = 5

FRESH = 2.0
"""Seconds for which a value is used before a caller refreshes it early."""


class Source:
    """The source of values: counts its calls, can be slow or wait for a sign, can fail."""

    def __init__(self, context: CaseContext, seconds: float = 0.1) -> None:
        self._context = context
        self.seconds = seconds
        self.began = list[float]()
        self.broken = False
        self.fetching = context.harness.event()
        self.go_on: Signal | None = None

    @property
    def fetched(self) -> int:
        return len(self.began)

    def fetch(self) -> Callable[[], Any]:
        """Return the fetch function."""

        async def fetch() -> dict[str, object]:
            self.began.append(self._context.harness.now())
            number = self.fetched
            self.fetching.set()
            if self.go_on is not None:
                assert await self.go_on.wait(SOON), "nobody let it go on"
            await self._context.harness.sleep(self.seconds)
            if self.broken:
                raise ZeroDivisionError
            return {"token": number, "expires_in": self._context.lasting}

        return fetch


@case((Variant.LOCK,), needs=("cells",))
async def one_caller_fetches_for_all(context: CaseContext) -> None:
    """Of many concurrent callers one fetches; after the value expires, one of them fetches again."""
    source, ttl = Source(context), context.lasting

    async def get() -> int:
        shared = context.client().cached(KEY, lambda got: got["expires_in"], source.fetch(), early=0)
        return int((await shared.get())["token"])

    for _ in range(2):
        before = source.fetched
        got = await context.harness.gather(*(get() for _ in range(CALLERS)))
        assert source.fetched > before
        assert set(got) == set(range(before + 1, source.fetched + 1))
        await context.harness.sleep(context.expired_after(LASTING) + 0.1)
    between = [later - earlier for earlier, later in pairwise(source.began)]
    assert min(between) > ttl - NOISE, "a caller fetched while there was a value"  # its ``ttl`` began before the fetch


@case((Variant.LOCK,), needs=("cells",))
async def one_caller_refreshes_early_while_others_use_the_old_value(context: CaseContext) -> None:
    """Late in the value's ``ttl`` one caller fetches; the others return the old value at once."""
    source = Source(context)

    def mine() -> AsyncCachedValue[Any]:
        return context.client().cached(KEY, 30, source.fetch(), early=30 - FRESH)

    first, second = mine(), mine()
    assert (await first.get())["token"] == 1
    await context.harness.sleep(context.expired_after(FRESH))
    source.fetching, source.go_on = context.harness.event(), context.harness.event()
    job = context.harness.spawn(lambda: first.get())
    assert await source.fetching.wait(SOON)
    assert (await second.get())["token"] == 1
    assert not job.done(), "the caller waited for the fetch"
    source.go_on.set()
    assert (await job.result())["token"] == 2
    assert (await second.get())["token"] == 2
    assert source.fetched == 2


@case((Variant.LOCK,), needs=("cells",))
async def a_failed_early_refresh_keeps_the_old_value(context: CaseContext) -> None:
    """The caller gets the old value, and no caller fetches for a while."""
    source = Source(context, 0.0)
    shared = context.client().cached(KEY, 30, source.fetch(), early=30 - FRESH)
    assert (await shared.get())["token"] == 1
    source.broken = True
    await context.harness.sleep(context.expired_after(FRESH))
    for _ in range(10):
        assert (await shared.get())["token"] == 1
    failed = source.began[1:]
    assert failed
    assert all(later - earlier > 0.99 * RETRY_PAUSE for earlier, later in pairwise(failed))
    source.broken = False
    await context.harness.sleep(context.expired_after(RETRY_PAUSE))
    assert (await shared.get())["token"] == len(failed) + 2


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
    source = Source(context, 0.0)
    source.go_on = context.harness.event()
    job = context.harness.spawn(lambda: context.client().cached(KEY, 30, source.fetch()).get())
    assert await source.fetching.wait(SOON)
    waiter = context.client().cached(KEY, 30, source.fetch(), timeout=0.1)
    await raised(AcquireTimeout, waiter.get())
    source.go_on.set()
    assert (await job.result())["token"] == 1
    assert (await waiter.get())["token"] == 1
