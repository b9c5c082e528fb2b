"""The store protocol as the engine needs it: requests may be repeated, late, or about expired tickets."""

from __future__ import annotations

from leasehold._model import Granted, LockMode, ReleaseReason, RenewalResult, Ticket, Wait
from leasehold.client import AsyncClient
from leasehold_lab.conformance.case_context import (
    NAME,
    NOISE,
    SHORT,
    SOON,
    WITHIN,
    CaseContext,
    Variant,
    case,
    ticket,
)

EITHER = (Variant.LOCK, Variant.FAIR_LOCK)


def _ticket(context: CaseContext, client: AsyncClient, *, lease: float = 30.0) -> Ticket:
    return ticket(client, LockMode(fair=context.variant.fair), lease=lease)


async def _claim(client: AsyncClient, mine: Ticket, *, join: bool = True) -> Granted | Wait:
    return await client.store.try_acquire(NAME, mine, join=join, within=WITHIN)


async def _leave(client: AsyncClient, mine: Ticket) -> bool:
    return await client.store.release(NAME, mine, reason=ReleaseReason.RELEASE, within=WITHIN)


async def _granted(client: AsyncClient, mine: Ticket) -> Granted:
    answer = await _claim(client, mine)
    assert isinstance(answer, Granted)
    return answer


@case(EITHER, needs=("hands_over",))
async def try_acquire_may_be_repeated(context: CaseContext) -> None:
    """A repeated `try_acquire` returns the same token to a holder, and keeps the queue entry of a waiter."""
    client = context.client()
    mine, next_, last = (_ticket(context, client) for _ in range(3))
    first = await _granted(client, mine)
    assert (await _granted(client, mine)).token == first.token
    for waiting in (next_, last, next_):
        assert isinstance(await _claim(client, waiting), Wait)
    info = await client.inspect(NAME)
    assert info is not None
    assert (len(info.holders), len(info.waiters)) == (1, 2)
    assert await _leave(client, mine)
    if context.promised.fair:
        assert isinstance(await _claim(client, last), Wait)
    second = await _granted(client, next_)
    assert second.token > first.token
    assert (await _granted(client, next_)).token == second.token
    assert await _leave(client, next_)
    assert await _leave(client, last)
    assert await client.inspect(NAME) is None


@case(EITHER)
async def a_lease_counts_from_before_the_request(context: CaseContext) -> None:
    """`Granted.since` is no later than the request; the lease is the requested one, or the shortest of the store."""
    client = context.client()
    mine = _ticket(context, client, lease=7.0)
    before = context.harness.now()
    answer = await _granted(client, mine)
    assert answer.since <= before + NOISE
    assert answer.since <= context.harness.now()
    assert answer.lease > 0
    assert await _leave(client, mine)


@case(EITHER)
async def try_acquire_without_join_leaves_no_trace(context: CaseContext) -> None:
    """Without ``join``, a ticket that is not granted leaves no queue entry."""
    client = context.client()
    mine, other = _ticket(context, client), _ticket(context, client)
    await _granted(client, mine)
    answer = await _claim(client, other, join=False)
    assert isinstance(answer, Wait)
    assert answer.held_by is not None
    assert str(answer.held_by) == client.owner
    assert not await _leave(client, other)
    assert await _leave(client, mine)


@case(EITHER)
async def release_may_be_repeated(context: CaseContext) -> None:
    """`release` returns whether the ticket existed, and changes no other ticket."""
    client = context.client()
    mine, other = _ticket(context, client), _ticket(context, client)
    assert not await _leave(client, mine)
    await _granted(client, mine)
    assert isinstance(await _claim(client, other), Wait)
    assert await _leave(client, other)
    assert not await _leave(client, other)
    assert await _leave(client, mine)
    await _granted(client, other)
    assert not await _leave(client, mine)
    assert (await client.store.renew([(NAME, other)], within=WITHIN))[0] is RenewalResult.HELD
    assert await _leave(client, other)


@case(EITHER)
async def renew_returns_a_result_for_each_ticket(context: CaseContext) -> None:
    """One batch of several names returns held, queued or gone for each, in the order of the request."""
    client = context.client()
    mine, waiting, stranger = (_ticket(context, client) for _ in range(3))
    await _granted(client, mine)
    assert isinstance(await _claim(client, waiting), Wait)
    batch = [("nobody's", stranger), (NAME, waiting), (NAME, mine), (NAME, stranger)]
    results = list(await client.store.renew(batch, within=WITHIN))
    assert results == [RenewalResult.GONE, RenewalResult.QUEUED, RenewalResult.HELD, RenewalResult.GONE]
    assert list(await client.store.renew([], within=WITHIN)) == []
    assert await _leave(client, mine)
    assert await _leave(client, waiting)


@case()
async def renew_never_revives_an_expired_lease(context: CaseContext) -> None:
    """A lease renewed in time is kept; an expired one is gone, even if the name was not acquired since."""
    client = context.client()
    lease = context.at_least_shortest(5 * NOISE)
    mine = _ticket(context, client, lease=lease)
    first = await _granted(client, mine)
    for _ in range(2):
        await context.harness.sleep(0.55 * lease)
        assert (await client.store.renew([(NAME, mine)], within=WITHIN))[0] is RenewalResult.HELD
    await context.harness.sleep(1.2 * lease)
    assert (await client.store.renew([(NAME, mine)], within=WITHIN))[0] is RenewalResult.GONE
    await _leave(client, mine)  # the result is not specified
    again = _ticket(context, client)
    assert (await _granted(client, again)).token > first.token
    assert await _leave(client, again)


@case(EITHER)
async def a_queue_entry_that_is_not_renewed_expires(context: CaseContext) -> None:
    """The queue entry of a dead client expires after its lease, and the next waiter is served."""
    client = context.client()
    mine, dead, alive = (
        _ticket(context, client),
        _ticket(context, client, lease=context.short),
        _ticket(context, client),
    )
    await _granted(client, mine)
    assert isinstance(await _claim(client, dead), Wait)
    assert isinstance(await _claim(client, alive), Wait)
    await context.harness.sleep(context.expired_after(SHORT) + 0.1)
    assert await _leave(client, mine)
    await _granted(client, alive)
    assert (await client.store.renew([(NAME, dead)], within=WITHIN))[0] is RenewalResult.GONE
    assert await _leave(client, alive)


@case(EITHER)
async def wait_returns_at_once_after_an_earlier_change(context: CaseContext) -> None:
    """If the name is released between `try_acquire` and `wait`, `wait` returns at once."""
    client, other = context.client(), context.client()
    mine, waiting = _ticket(context, client), _ticket(context, other)
    await _granted(client, mine)
    answer = await _claim(other, waiting)
    assert isinstance(answer, Wait)
    assert answer.ask_again > 0
    assert await _leave(client, mine)
    start = context.harness.now()
    granted = await other.store.wait(NAME, waiting, answer.mark, timeout=20.0)
    assert context.harness.now() - start < SOON
    again = await _granted(other, waiting)
    assert granted is None or granted.token == again.token
    assert await _leave(other, waiting)


@case(EITHER)
async def wait_returns_at_its_timeout(context: CaseContext) -> None:
    """Without a change, `wait` returns None at its timeout."""
    client = context.client()
    mine, waiting = _ticket(context, client), _ticket(context, client)
    await _granted(client, mine)
    answer = await _claim(client, waiting)
    assert isinstance(answer, Wait)
    start = context.harness.now()
    while (left := start + 0.2 - context.harness.now()) > 0:  # it may return early: then it is called again
        assert await client.store.wait(NAME, waiting, answer.mark, timeout=left) is None
    context.ended_within(start, 0.2)
    assert await _leave(client, waiting)
    assert await _leave(client, mine)
