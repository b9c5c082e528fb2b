"""The types that users see: read by mypy and pyright in strict mode, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from leasehold import (
    AcquireTimeout,
    AsyncBarrier,
    AsyncCachedValue,
    AsyncClient,
    AsyncHold,
    AsyncLatch,
    AsyncLeadership,
    AsyncLock,
    AsyncMultiHold,
    AsyncOnce,
    AsyncRLock,
    AsyncVersionedCell,
    Barrier,
    BrokenBarrier,
    CachedValue,
    Client,
    Contender,
    Hold,
    Latch,
    Leader,
    Leadership,
    LeaseLost,
    Lock,
    LockInfo,
    MultiHold,
    Once,
    RLock,
    StoreUnavailable,
    Versioned,
    VersionedCell,
    tick_of,
)


def blocking() -> None:
    with Client.from_url("redis://localhost:6379", namespace="shop", response_timeout=2) as locks:
        assert_type(locks, Client)
        lock = locks.lock("stock:42", lease=timedelta(minutes=1), lock_delay=5, timeout=1.5, meta={"job": "nightly"})
        assert_type(lock, Lock)
        assert_type(locks.rlock("stock:42", fair=True, max_hold=60), RLock)
        with lock as hold:
            assert_type(hold, Hold)
            assert_type(hold.token, int)
            assert_type(hold.name, str)
            assert_type(hold.lost, bool)
            assert_type(hold.remaining, float)
            assert_type(hold.release(), bool)
            hold.on_lost(told)
        maybe = lock.acquire(timeout=2)
        assert_type(maybe, Hold | None)
        if maybe:
            with maybe as again:
                assert_type(again, Hold)
        assert_type(lock.locked(), bool)
        assert_type(locks.inspect("stock:42"), LockInfo | None)
        infos = locks.holds("stock:")
        assert_type(infos, list[LockInfo])
        assert_type(infos[0].holders, tuple[Contender, ...])
        assert_type(locks.force_release("stock:42", 7), bool)


async def awaiting() -> None:
    async with AsyncClient.from_url() as locks:
        assert_type(locks, AsyncClient)
        lock = locks.lock("stock:42", renew=False)
        assert_type(lock, AsyncLock)
        assert_type(locks.rlock("stock:42"), AsyncRLock)
        async with lock as hold:
            assert_type(hold, AsyncHold)
            assert_type(hold.remaining, float)
            assert_type(await hold.release(), bool)
            await hold.renew()
            hold.on_lost(told)
        maybe = await lock.acquire(blocking=False)
        assert_type(maybe, AsyncHold | None)
        if maybe:
            async with maybe as again:
                assert_type(again, AsyncHold)
        assert_type(await lock.locked(), bool)
        assert_type(await locks.inspect("stock:42"), LockInfo | None)
        assert_type(await locks.holds(), list[LockInfo])
        assert_type(await locks.force_release("stock:42", 7), bool)


def told(error: LeaseLost) -> None:
    assert_type(error.token, int | None)
    assert_type(error.name, str | None)


def errors() -> None:
    try:
        blocking()
    except AcquireTimeout as error:
        assert_type(error.waited, float | None)
        timeout: TimeoutError = error
        print(timeout)
    except StoreUnavailable as error:
        assert_type(error.unknown, bool)
        connection: ConnectionError = error
        print(connection)


def together(locks: Client) -> None:
    latch = locks.latch("import:7", 3, ttl=timedelta(hours=1))
    assert_type(latch, Latch)
    assert_type(latch.count_down(2), int)
    assert_type(latch.wait(timeout=timedelta(seconds=1)), bool)
    assert_type(latch.count(), int)
    assert_type(latch.total, int)
    barrier = locks.barrier("phase", 3, drop_dead=True, lease=5, timeout=timedelta(minutes=1))
    assert_type(barrier, Barrier)
    try:
        assert_type(barrier.wait(timeout=1), int)
    except BrokenBarrier as error:
        runtime: RuntimeError = error
        print(runtime)
    with barrier as index:
        assert_type(index, int)
    assert_type(barrier.broken(), bool)
    assert_type(barrier.n_waiting(), int)
    assert_type(barrier.parties, int)


async def together_awaiting(locks: AsyncClient) -> None:
    latch = locks.latch("import:7", 3)
    assert_type(latch, AsyncLatch)
    assert_type(await latch.count_down(), int)
    assert_type(await latch.wait(), bool)
    barrier = locks.barrier("phase", 3)
    assert_type(barrier, AsyncBarrier)
    assert_type(await barrier.enter(), int)
    await barrier.leave(timeout=1)
    async with barrier as index:
        assert_type(index, int)


def plain(order: int, *, fast: bool = False) -> str:
    return f"{order} {fast}"


async def coroutine(order: int) -> str:
    return str(order)


def answer() -> dict[str, float]:
    return {"expires_in": 7200.0}


async def awaited_answer() -> dict[str, float]:
    return answer()


def everyday(locks: Client) -> None:
    ship = locks.synchronized("order:{order}", timeout=timedelta(seconds=5))(plain)
    assert_type(ship(7, fast=True), str)
    assert_type(locks.versioned("views"), VersionedCell[Any])
    views: VersionedCell[int] = locks.versioned("views")
    assert_type(views.get(), Versioned[int | None])
    assert_type(views.put(1, if_version=0), int)
    assert_type(views.update(lambda count: (count or 0) + 1), Versioned[int])
    assert_type(views.update(lambda count: (count or 0) + 1).value, int)
    views.put("1")  # type: ignore[arg-type]
    receipt: Once[str] = locks.once("payment", ttl=60)
    assert_type(receipt.run(plain, 7, fast=True), str)
    receipt.run(plain, "7")  # type: ignore[arg-type]
    assert_type(locks.once("payment", ttl=timedelta(days=1)).done(), bool)
    assert_type(locks.scheduled("mail", at_least=60, at_most=600).run(plain, 7, fast=True), bool)
    assert_type(locks.scheduled("mail", at_most=600)(plain)(7, tick=tick_of(300)), bool)
    token = locks.cached("token", lambda answer: answer["expires_in"], answer, early=600)
    assert_type(token, CachedValue[dict[str, float]])
    assert_type(token.get(), dict[str, float])
    ship("7")  # type: ignore[arg-type]
    ship(7, slow=True)  # type: ignore[call-arg]


async def everyday_awaited(locks: AsyncClient) -> None:
    ship = locks.synchronized("order:{order}")(coroutine)
    assert_type(await ship(order=7), str)
    locks.synchronized("order:{order}")(plain)  # type: ignore[arg-type]
    views: AsyncVersionedCell[int] = locks.versioned("views")
    assert_type(await views.get(), Versioned[int | None])
    assert_type(await views.update(lambda count: (count or 0) + 1), Versioned[int])
    receipt: AsyncOnce[str] = locks.once("payment", ttl=60)
    assert_type(await receipt.run(coroutine, 7), str)
    assert_type(await receipt.run(plain, 7), str)
    token = locks.cached("token", 7200, awaited_answer)
    assert_type(token, AsyncCachedValue[dict[str, float]])
    assert_type(await token.get(), dict[str, float])
    assert_type(await locks.once("payment", ttl=60).done(), bool)
    assert_type(await locks.scheduled("mail", at_least=60, at_most=600).run(coroutine, 7), bool)
    assert_type(await locks.scheduled("mail", at_most=600)(coroutine)(7, tick=tick_of(300)), bool)


def several(locks: Client) -> None:
    lock = locks.multi_lock(["a", locks.rlock("b"), locks.semaphore("c", 3), locks.rw_lock("d").reader()], timeout=5)
    with lock as hold:
        assert_type(hold, MultiHold)
        assert_type(hold.tokens, dict[str, int])
        assert_type(hold.names, tuple[str, ...])
    assert_type(lock.acquire(timeout=0), MultiHold | None)
    assert_type(locks.lock("nightly")(plain)(7, fast=True), str)


async def several_awaited(locks: AsyncClient) -> None:
    async with locks.multi_lock(["a", locks.rlock("b")]) as hold:
        assert_type(hold, AsyncMultiHold)
    assert_type(await locks.lock("nightly")(coroutine)(7), str)


def elected(leadership: Leadership) -> int:
    return leadership.token


def election(locks: Client) -> None:
    candidate = locks.election("scheduler", {"host": "a"}, fair=True)
    with candidate as leadership:
        assert_type(leadership, Leadership)
        leadership.proclaim("b")
        assert_type(leadership.resign(), bool)
    assert_type(candidate.campaign(timeout=1), Leadership | None)
    assert_type(candidate.leader(), Leader | None)
    for seen in candidate.observe(every=timedelta(seconds=2)):
        assert_type(seen, Leader | None)
    candidate.run(elected)


async def election_awaited(locks: AsyncClient) -> None:
    async with locks.election("scheduler") as leadership:
        assert_type(leadership, AsyncLeadership)
    async for seen in locks.election("scheduler").observe():
        assert_type(seen, Leader | None)


def mistakes(locks: Client) -> None:
    """Each line is an error to both checkers; a comment that hides nothing is an error as well."""
    locks.lock(42)  # type: ignore[arg-type]
    locks.lock("a", lease="30")  # type: ignore[arg-type]
    locks.lock("a", 30)  # type: ignore[call-arg, arg-type]
    locks.multi_lock([7])  # type: ignore[list-item]
    locks.election("a", 7)  # type: ignore[arg-type]
    locks.lock("a").acquire().release()  # type: ignore[union-attr]
