"""Shared values: one fetches, all use; nobody waits while there is an old value; failures stay small."""

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
"""Seconds, at most, from where a value's time begins, just before it is fetched, to the start of the fetch."""


class Source:
    """What is fetched from: counts, can be slow, can fail."""

    def __init__(self, context: CaseContext, seconds: float = 0.1) -> None:
        self._context = context
        self.seconds = seconds
        self.began = list[float]()
        self.broken = False

    @property
    def fetched(self) -> int:
        return len(self.began)

    def fetch(self) -> Callable[[], Any]:
        """Return the function to fetch with."""

        async def fetch() -> dict[str, object]:
            self.began.append(self._context.harness.now())
            number = self.fetched
            await self._context.harness.sleep(self.seconds)
            if self.broken:
                raise ZeroDivisionError
            return {"token": number, "expires_in": self._context.kept(0.8)}

        return fetch


@case((Variant.LOCK,), needs=("cells",))
async def one_fetches_for_all(context: CaseContext) -> None:
    """However many ask at the same time; when its time is over, one of them fetches anew."""
    source, ttl = Source(context), context.kept(0.8)

    async def get() -> int:
        shared = context.client().cached(KEY, lambda got: got["expires_in"], source.fetch(), early=0)
        return int((await shared.get())["token"])

    for _ in range(2):
        before = source.fetched
        got = await context.harness.gather(*(get() for _ in range(CALLERS)))
        assert source.fetched > before
        assert set(got) == set(range(before + 1, source.fetched + 1))
        await context.harness.sleep(context.gone(0.8) + 0.1)
    between = [later - earlier for earlier, later in pairwise(source.began)]
    assert min(between) > ttl - CALLED, "one fetched while there was a value"


@case((Variant.LOCK,), needs=("cells",))
async def one_renews_early_while_others_use_the_old(context: CaseContext) -> None:
    """In the last part of its time one caller fetches; the others go on at once with the old value."""
    source = Source(context)

    def mine() -> AsyncCachedValue[Any]:
        return context.client().cached(KEY, 30, source.fetch(), early=29.0)

    first, second = mine(), mine()
    assert (await first.get())["token"] == 1
    await context.harness.sleep(context.gone(1.0))
    source.seconds = 0.5
    job = context.harness.spawn(lambda: first.get())
    await context.harness.sleep(0.2)
    start = context.harness.now()
    assert (await second.get())["token"] == 1
    assert context.harness.now() - start < 0.3, "it waited for the fetch"
    assert (await job.result())["token"] == 2
    assert (await second.get())["token"] == 2
    assert source.fetched == 2


@case((Variant.LOCK,), needs=("cells",))
async def an_early_fetch_that_fails_leaves_the_old_value(context: CaseContext) -> None:
    """The caller gets the old value, and the source is left alone for a while."""
    source = Source(context, 0.0)
    shared = context.client().cached(KEY, 30, source.fetch(), early=29.9)
    assert (await shared.get())["token"] == 1
    source.broken = True
    await context.harness.sleep(context.gone(0.1))
    start = context.harness.now()
    for _ in range(10):
        assert (await shared.get())["token"] == 1
        if context.harness.now() - start > 0.5:  # a slow machine: after a second it may be tried again
            break
    assert source.fetched == 2
    source.broken = False
    await context.harness.sleep(context.gone(1.0))
    assert (await shared.get())["token"] == 3


@case((Variant.LOCK,), needs=("cells",))
async def a_fetch_slower_than_its_bloom_is_not_repeated_at_once(context: CaseContext) -> None:
    """Where so much of the time is early that the fetch alone uses up the rest, the value is still used for a while."""
    source = Source(context, 0.2)
    shared = context.client().cached(KEY, 30, source.fetch(), early=29.9)
    for _ in range(3):
        assert (await shared.get())["token"] == 1


@case((Variant.LOCK,), needs=("cells",))
async def a_fetch_that_fails_is_tried_by_the_next(context: CaseContext) -> None:
    """Without an old value the error is the caller's, and nobody else's."""
    source = Source(context, 0.0)
    source.broken = True
    shared = context.client().cached(KEY, 30, source.fetch())
    await raised(ZeroDivisionError, shared.get())
    source.broken = False
    assert (await shared.get())["token"] == 2


@case((Variant.LOCK,), needs=("cells",))
async def a_value_that_was_refused_is_replaced_once(context: CaseContext) -> None:
    """All who saw it refused get another, which one of them fetched."""
    source = Source(context)
    clients = [context.client().cached(KEY, 30, source.fetch()) for _ in range(CALLERS)]
    old = await clients[0].get()
    got = await context.harness.gather(*(shared.get(refused=old) for shared in clients))
    assert [value["token"] for value in got] == [2] * CALLERS
    assert source.fetched == 2


@case((Variant.LOCK,), needs=("cells",))
async def who_waits_for_the_fetcher_may_give_up(context: CaseContext) -> None:
    """The timeout ends the wait; the fetch goes on."""
    source = Source(context, 0.6)
    job = context.harness.spawn(lambda: context.client().cached(KEY, 30, source.fetch()).get())
    await context.harness.sleep(0.2)
    waiter = context.client().cached(KEY, 30, source.fetch(), timeout=0.1)
    await raised(AcquireTimeout, waiter.get())
    assert (await job.result())["token"] == 1
    assert (await waiter.get())["token"] == 1
