"""The client of an app, its readiness check, an app of Starlette alone, and the example."""

from __future__ import annotations

import asyncio
import runpy
import socket
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from web_calls import connected

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost
from leasehold.integrations import starlette
from leasehold.integrations.fastapi import get_client, leasehold_lifespan, lock, readiness
from leasehold.testing import TestClient

EXAMPLE = Path(__file__).parents[3] / "examples" / "integrations" / "fastapi" / "shop.py"


async def sell(hold: Annotated[AsyncHold, Depends(lock("stock:42", timeout=0))]) -> str:
    return hold.name


def test_the_client_lives_around_the_lifespan_of_the_app() -> None:
    log = list[str]()

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        await app.state.leasehold.ping()
        yield {"shop": "open"}
        await app.state.leasehold.ping()
        log.append("ended")

    app = FastAPI(lifespan=leasehold_lifespan("memory:", lifespan=own))

    @app.get("/")
    async def endpoint(request: Request, client: Annotated[AsyncClient, Depends(get_client)]) -> str:
        async with client.lock("nightly", timeout=0):
            assert client is starlette.client_of(request)
            return "done"

    async def visit() -> None:
        for _ in range(2):  # an app may start again
            async with app.router.lifespan_context(app) as state, connected(app) as http:
                assert state == {"shop": "open"}
                assert (await http.get("/")).json() == "done"

    asyncio.run(visit())
    assert log == ["ended", "ended"]


def test_a_mounted_app_gets_the_client_of_its_parent() -> None:
    child = FastAPI()
    child.add_api_route("/", sell)

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        child.state.leasehold = app.state.leasehold
        yield

    app = FastAPI(lifespan=leasehold_lifespan("memory:", lifespan=own))
    app.mount("/child", child)

    async def visit() -> None:
        async with app.router.lifespan_context(app), connected(app) as http:
            assert (await http.get("/child/")).json() == "stock:42"

    asyncio.run(visit())


def test_an_app_without_its_lifespan_says_so() -> None:
    app = FastAPI()
    app.add_api_route("/", sell)

    async def visit() -> None:
        async with connected(app) as http:
            await http.get("/")

    with pytest.raises(RuntimeError, match=r"lifespan=leasehold_lifespan\(url\)"):
        asyncio.run(visit())


def test_a_mistake_in_the_store_is_reported() -> None:
    with pytest.raises(ValueError, match="scheme"):
        leasehold_lifespan("rediss")
    with Client.from_url("memory:") as wrong, pytest.raises(TypeError, match="AsyncClient, not a Client"):
        asyncio.run(start(leasehold_lifespan(lambda: wrong)))  # type: ignore[arg-type, return-value]


def test_the_password_is_in_no_traceback() -> None:
    @asynccontextmanager
    async def failing(app: FastAPI) -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    try:
        asyncio.run(start(leasehold_lifespan("redis://:hush@127.0.0.1:1", lifespan=failing)))
    except ValueError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        ours = [str(frame.locals) for frame in shown.stack if "leasehold" in frame.filename]
        assert ours
        assert "hush" not in "".join(ours)


async def start(lifespan: Any) -> None:
    app = FastAPI(lifespan=lifespan)
    async with app.router.lifespan_context(app):
        pass


def test_the_example_sells_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", "memory:")
    monkeypatch.chdir(tmp_path)
    app = runpy.run_path(str(EXAMPLE))["app"]

    async def visit() -> list[int]:
        async with app.router.lifespan_context(app), connected(app) as http:
            answers = await asyncio.gather(*[http.post("/stock/7/sell") for _ in range(12)])
            return sorted(answer.status_code for answer in answers)

    assert asyncio.run(visit()) == [200] * 10 + [410] * 2


# --- readiness, and Starlette alone -----------------------------------------------------------------------------------


async def sell_by_hand(request: Request) -> PlainTextResponse:
    async with starlette.client_of(request).lock(f"stock:{request.path_params['item_id']}", timeout=0) as hold:
        if "lose" in request.query_params:
            await starlette.client_of(request).force_release(hold.name, hold.token)
            with pytest.raises(LeaseLost):
                await hold.renew()
        return PlainTextResponse(hold.name)


def test_starlette_needs_no_fastapi() -> None:
    with TestClient() as locks:
        app = Starlette(
            routes=[Route("/stock/{item_id:int}", sell_by_hand), Route("/ready", starlette.readiness())],
            lifespan=starlette.leasehold_lifespan(locks.async_client),
        )
        starlette.add_exception_handlers(app)

        async def visit() -> None:
            async with app.router.lifespan_context(app), connected(app) as http:
                assert (await http.get("/ready")).json() == {"ready": True}
                assert (await http.get("/stock/7")).text == "stock:7"
                assert (await http.get("/stock/7?lose")).status_code == 409
                async with locks.async_client() as rival, rival.lock("stock:7"):
                    assert (await http.get("/stock/7")).status_code == 423

        asyncio.run(visit())


def test_a_store_that_refuses_or_does_not_answer_or_cannot_promise_locks_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refuses, waits = "redis://127.0.0.1:1", f"redis://127.0.0.1:{silent.getsockname()[1]}"
        for url, within in ((refuses, 30), (waits, 0.2), (f"sqlite:{tmp_path}", 30)):

            async def visit(url: str = url, within: float = within) -> httpx.Response:
                app = FastAPI(lifespan=leasehold_lifespan(url))
                app.add_api_route("/ready", readiness(within))
                async with app.router.lifespan_context(app), connected(app) as http:
                    return await http.get("/ready")

            answer = asyncio.run(visit())
            assert (answer.status_code, answer.json()) == (503, {"ready": False})
