"""Names of locks from path, query and body: what the endpoint gets decides, and not what was sent."""

from __future__ import annotations

import asyncio
import enum
import uuid
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from fastapi import APIRouter, Body, Cookie, Depends, Header, Path, Query
from pydantic import BaseModel
from web_calls import Site

from leasehold import AsyncClient, AsyncHold
from leasehold.integrations.fastapi import get_client, lock


class Color(enum.Enum):
    RED = "red"


class Order(BaseModel):
    customer: int
    lines: list[str] = []


def held(text: Any) -> Any:
    return Annotated[AsyncHold, Depends(lock(text))]


async def of_order(order: Order, shop: int) -> str:
    return f"{shop}:{order.customer}"


def of_header(x_tenant: Annotated[str, Header()]) -> str:
    return f"tenant:{x_tenant}"


async def path(item_id: int, hold: held("stock:{item_id}")) -> str:
    return hold.name


def in_a_thread(item_id: int, hold: held("stock:{item_id}")) -> str:
    return hold.name


async def untyped(item_id, hold: held("stock:{item_id}")) -> str:  # type: ignore[no-untyped-def]
    return hold.name


async def old_style(hold: held("stock:{item_id}"), item_id: int = Path(ge=1), page: int = Query(1, alias="p")) -> str:
    return f"{hold.name} {page}"


async def query(
    hold: held("{shop}:{color}:{kind}:{day}"),
    shop: Annotated[uuid.UUID, Query(alias="s")],
    color: Color = Color.RED,
    kind: Literal["a", "b"] = "a",
    day: Annotated[date, Query()] = date(2026, 1, 2),
) -> str:
    return hold.name


async def several(a: str, b: str, hold: held("{a}:{b}")) -> str:
    return hold.name


async def body(order: Order, shop: int, hold: held(of_order)) -> str:
    assert order.customer
    return hold.name


async def header(hold: held(of_header)) -> str:
    return hold.name


UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

NAMES = [
    (path, "/42", {}, "stock:42"),
    (path, "/042", {}, "stock:42"),
    (path, "/%2042", {}, "stock:42"),
    (path, "/4_2", {}, "stock:42"),
    (in_a_thread, "/042", {}, "stock:42"),
    (untyped, "/042", {}, "stock:042"),
    (old_style, "/042?p=3", {}, "stock:42 3"),
    (query, f"/x?s={UUID.upper()}", {}, f"{UUID}:Color.RED:a:2026-01-02"),
    (query, f"/x?s={UUID}&kind=a&kind=b&day=2026-03-04&color=red", {}, f"{UUID}:Color.RED:b:2026-03-04"),
    (several, "/x?a=1:2&b=3", {}, "1%3A2:3"),
    (several, "/x?a=1&b=2:3", {}, "1:2:3"),
    (body, "/x?shop=7", {"json": {"customer": "042", "lines": ["x"]}}, "7:42"),
    (header, "/x", {"headers": {"X-Tenant": "blue"}}, "tenant:blue"),
]


@pytest.mark.parametrize(("endpoint", "url", "request_", "name"), NAMES)
def test_a_name_is_made_of_what_the_endpoint_gets(
    site: Site, endpoint: Any, url: str, request_: dict[str, Any], name: str
) -> None:
    assert answer(site, endpoint, url, **request_) == (200, name)


INVALID = [
    (path, "/x", {}, ["path", "item_id"]),
    (old_style, "/0", {}, ["path", "item_id"]),
    (query, "/x", {}, ["query", "s"]),
    (query, f"/x?s={UUID}&kind=c", {}, ["query", "kind"]),
    (several, "/x?a=&b=1", {}, ["lock", "name"]),
    (several, f"/x?a={'a' * 600}&b=1", {}, ["lock", "name"]),
    (body, "/x?shop=7", {"json": {}}, ["body", "customer"]),
]


@pytest.mark.parametrize(("endpoint", "url", "request_", "place"), INVALID)
def test_a_value_that_is_not_valid_is_422(
    site: Site, endpoint: Any, url: str, request_: dict[str, Any], place: list[str]
) -> None:
    status, detail = answer(site, endpoint, url, **request_)
    assert (status, detail[0]["loc"]) == (422, place), detail


def unknown(hold: held("stock:{item}"), item_id: int) -> None: ...
def of_a_header(hold: held("{who}"), who: Annotated[str, Header()]) -> None: ...
def of_a_cookie(hold: held("{who}"), who: str = Cookie("x")) -> None: ...
def of_the_body(hold: held("{who}"), who: str = Body()) -> None: ...
def of_a_dependency(hold: held("{who}"), who: Annotated[str, Depends(lambda: "x")]) -> None: ...
def a_float(hold: held("{how}"), how: float) -> None: ...
def a_moment(hold: held("{when}"), when: datetime) -> None: ...
def nothing(hold: held("{what}"), what: str | None = None) -> None: ...
def a_list(hold: held("{what}"), what: Annotated[list[int], Query()]) -> None: ...


MISTAKES = [
    *[(unknown, "needs 'item', but unknown has no such argument; pass a function")],
    *[(each, "neither from the path nor") for each in (of_a_header, of_a_cookie)],
    *[(each, "neither from the path nor") for each in (of_the_body, of_a_dependency)],
    *[(each, "takes it as .*, and not as a str, int, UUID") for each in (a_float, a_moment, nothing, a_list)],
]


@pytest.mark.parametrize(("endpoint", "why"), MISTAKES)
def test_a_name_that_does_not_fit_the_endpoint_says_what_to_do(site: Site, endpoint: Any, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        answer(site, endpoint, "/x", json="x", headers={"who": "x"})


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("", {}, "name"),
        ("{}", {}, "argument"),
        ("{a}{b}", {}, "separator"),
        ("{order.id}", {}, "pass a function that takes it"),
        ("a", {"lease": 0}, "lease"),
        ("a", {"timeout": -5}, "timeout"),
    ],
)
def test_a_mistake_is_reported_when_the_dependency_is_made(name: str, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        lock(name, **options)


OF_SHOP = lock("shop:{shop}")


def test_one_lock_serves_several_endpoints_and_a_router(site: Site) -> None:
    router = APIRouter(prefix="/shops/{shop}", dependencies=[Depends(OF_SHOP)])

    @router.get("/number")
    async def number(shop: int, client: Annotated[AsyncClient, Depends(get_client)]) -> bool:
        return await client.inspect(f"shop:{shop}") is not None

    @router.get("/word")
    async def word(shop: str, hold: Annotated[AsyncHold, Depends(OF_SHOP)]) -> str:
        return hold.name  # acquired once, though it is asked for twice

    site.app.include_router(router)

    async def visit() -> list[Any]:
        async with site.open() as (http, _):
            return [(await http.get(url)).json() for url in ("/shops/07/number", "/shops/07/word")]

    assert asyncio.run(visit()) == [True, "shop:07"]


def answer(site: Site, endpoint: Any, url: str, **request: Any) -> tuple[int, Any]:
    """Return status and body of the answer to one request."""
    method = "POST" if "json" in request else "GET"
    of_path = endpoint in (path, in_a_thread, untyped, old_style)
    site.app.add_api_route("/{item_id}" if of_path else "/x", endpoint, methods=[method], response_model=None)

    async def visit() -> tuple[int, Any]:
        async with site.open() as (http, _):
            got = await http.request(method, url, **request)
            return got.status_code, got.json().get("detail") if got.status_code == 422 else got.json()

    return asyncio.run(visit())
