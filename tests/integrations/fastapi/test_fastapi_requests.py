"""The lock of a request: losses, cancellations, threads, WebSockets, and the answers for errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import anyio.to_thread
import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import StreamingResponse
from web_calls import Site, Socket

from leasehold import AsyncClient, AsyncHold
from leasehold.integrations.fastapi import add_exception_handlers, lock

SHORT = 0.9
"""A lease that a test waits for."""

Held = Annotated[AsyncHold, Depends(lock("stock:42", timeout=20, lease=600))]
AtOnce = Annotated[AsyncHold, Depends(lock("stock:42", timeout=0))]
Brief = Annotated[AsyncHold, Depends(lock("stock:42", timeout=20, lease=SHORT))]
Inner = Annotated[AsyncHold, Depends(lock("stock:42", timeout=20))]


async def sell(hold: AtOnce) -> str:
    return hold.name


def sell_in_a_thread(hold: AtOnce) -> str:
    return hold.name


KINDS = pytest.mark.parametrize("endpoint", [sell, sell_in_a_thread])


@KINDS
@pytest.mark.parametrize("busy", [423, 409])
def test_a_lock_that_is_taken_is_answered_by_choice(site: Site, endpoint: Any, busy: int) -> None:
    site.app.add_api_route("/", endpoint)
    add_exception_handlers(site.app, busy_status=busy, retry_after=3)

    async def visit() -> None:
        async with site.open() as (http, rival):
            async with rival.lock("stock:42"):
                answer = await http.get("/")
            assert (answer.status_code, answer.headers["Retry-After"]) == (busy, "3")
            assert (await http.get("/")).status_code == 200

    asyncio.run(visit())
    site.locks.assert_free("stock:42")


@pytest.mark.parametrize("options", [{"busy_status": 500}, {"retry_after": -1}, {"retry_after": 0.5}])
def test_answers_are_checked(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        add_exception_handlers(FastAPI(), **options)


def test_a_lost_lock_ends_a_coroutine_and_is_answered(site: Site) -> None:
    ended = list[BaseException]()

    @site.app.get("/")
    async def endpoint(hold: Held) -> None:
        asyncio.get_running_loop().call_soon(site.locks.expire, hold)
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ended.append(error)
            raise

    answer = visited(site)
    assert (answer.status_code, "Retry-After" in answer.headers) == (409, False)
    assert answer.json() == {"detail": "the lock was lost during the request; its work may be incomplete"}
    assert isinstance(ended[0], asyncio.CancelledError)


def test_a_lost_lock_of_a_thread_is_answered_when_it_has_ended(site: Site) -> None:
    @site.app.get("/")
    def endpoint(hold: Held) -> None:
        site.locks.expire(hold)
        assert hold.lost

    assert visited(site).status_code == 409


def test_a_loss_that_nobody_waits_for_is_noticed_before_the_answer(site: Site) -> None:
    @site.app.get("/")
    async def endpoint(hold: Held) -> str:
        site.locks.expire(hold)
        return "sold"

    assert visited(site).status_code == 409


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_what_the_endpoint_raises_has_priority(site: Site, in_a_thread: bool) -> None:
    def fail(hold: Held) -> None:
        site.locks.expire(hold)
        raise HTTPException(418)

    async def failing(hold: Held) -> None:
        fail(hold)

    site.app.add_api_route("/", fail if in_a_thread else failing)
    assert visited(site).status_code == 418


def test_a_loss_breaks_off_a_stream(site: Site) -> None:
    @site.app.get("/")
    async def endpoint(hold: Held) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"first"
            asyncio.get_running_loop().call_soon(site.locks.expire, hold)
            await asyncio.sleep(60)
            yield b"never"

        return StreamingResponse(body())

    with pytest.raises(RuntimeError, match="already started"):
        visited(site)


@KINDS
def test_a_request_that_is_cancelled_while_it_waits_leaves_the_queue(site: Site, endpoint: Any) -> None:
    def waiting(hold: Held) -> None: ...
    async def waiting_coroutine(hold: Held) -> None: ...

    site.app.add_api_route("/", waiting if endpoint is sell_in_a_thread else waiting_coroutine)

    async def visit() -> None:
        async with site.open() as (http, rival):
            async with rival.lock("stock:42"):
                request = asyncio.create_task(http.get("/"))
                await until(lambda: waiters(rival))
                request.cancel()
                await asyncio.wait([request])
                assert not await waiters(rival)
            assert await rival.lock("stock:42", timeout=0).acquire() is not None

    asyncio.run(visit())


def test_a_thread_that_outlives_its_request_keeps_the_lock(site: Site) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def endpoint() -> None:
        begun.set()
        assert may_end.wait(30)

    site.app.add_api_route("/", endpoint, dependencies=[Depends(lock("stock:42", timeout=20, lease=SHORT))])

    async def visit() -> None:
        async with site.open() as (http, rival):
            request = asyncio.create_task(http.get("/"))
            await asyncio.to_thread(begun.wait, 30)
            request.cancel()
            await asyncio.wait([request])
            del request
            await asyncio.sleep(2 * SHORT)
            assert await is_held(rival)
            may_end.set()
            await until(lambda: is_free(rival))

    asyncio.run(visit())


def test_requests_that_wait_occupy_no_thread(site: Site) -> None:
    count = 0

    @site.app.get("/")
    def endpoint(hold: Held) -> None:
        nonlocal count
        before = count
        anyio.from_thread.run_sync(lambda: None)
        count = before + 1

    async def visit() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with site.open() as (http, _):
            answers = await asyncio.gather(*[http.get("/") for _ in range(20)])
            assert {answer.status_code for answer in answers} == {200}

    asyncio.run(visit())
    assert count == 20


def test_a_second_lock_of_the_same_name_is_refused_and_does_not_wait_for_the_first(site: Site) -> None:
    @site.app.get("/")
    async def endpoint(first: Held, second: Inner) -> None: ...

    with pytest.raises(RuntimeError, match="stock:42"):
        visited(site)
    site.locks.assert_free("stock:42")


def test_a_websocket_holds_its_lock_as_long_as_it_is_open(site: Site) -> None:
    second = Socket("/doc/7")

    @site.app.websocket("/doc/{doc}")
    async def edit(connection: WebSocket, doc: int, hold: Annotated[AsyncHold, Depends(lock("{doc}", timeout=0))]):
        await connection.accept()
        await site.app(second.scope, second.receive, second.send)
        await connection.receive()

    first = Socket("/doc/07")

    async def visit() -> None:
        async with site.open():
            await site.app(first.scope, first.receive, first.send)

    asyncio.run(visit())
    assert [message["type"] for message in first.sent] == ["websocket.accept"]
    (refused,) = second.sent
    assert (refused["type"], refused["code"]) == ("websocket.close", 1013)
    site.locks.assert_free("7")


# ----------------------------------------------------------------------------------------------------------------------


async def is_held(rival: AsyncClient) -> bool:
    return await rival.inspect("stock:42") is not None


async def is_free(rival: AsyncClient) -> bool:
    return not await is_held(rival)


async def waiters(rival: AsyncClient) -> int:
    info = await rival.inspect("stock:42")
    return len(info.waiters) if info else 0


async def until(true: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def visited(site: Site) -> httpx.Response:
    async def visit() -> httpx.Response:
        async with site.open() as (http, _):
            return await http.get("/")

    return asyncio.run(visit())
