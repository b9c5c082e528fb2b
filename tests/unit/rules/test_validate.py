"""Bad input: a clear error at once, in both flavors, before anything is sent; it names what is allowed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import AsyncClient, Client, _validate
from leasehold.stores.memory import Memory
from leasehold_lab.servers.base import free_port

NAN = math.nan
NOWHERE = f"redis://127.0.0.1:{free_port()}"
"""A store that cannot be reached: a request to it would raise another error."""

NAMES: list[tuple[Any, type[Exception], str]] = [
    ("", ValueError, "is empty"),
    ("x" * 513, ValueError, "has 513 bytes, at most 512"),
    ("é" * 257, ValueError, "has 514 bytes, at most 512"),
    ("x" * 5_000_000, ValueError, "use a hash"),
    ("a\udc80b", ValueError, "lone surrogate"),
    (b"stock", TypeError, "not bytes; decode it first"),
    (bytearray(b"stock"), TypeError, "decode it first"),
    (None, TypeError, "not NoneType"),
    (42, TypeError, "not int"),
    (("a", "b"), TypeError, "not tuple"),
]

DURATIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        ({what: value}, ValueError, what)
        for what in ("lease", "lock_delay", "max_hold", "timeout")
        for value in (-2, -0.1)
    ),
    *(({what: NAN}, ValueError, f"{what} must be a finite") for what in ("lease", "lock_delay", "max_hold", "timeout")),
    *(
        ({what: 10**400}, ValueError, f"{what} must be a finite")
        for what in ("lease", "lock_delay", "max_hold", "timeout")
    ),
    *(({what: True}, TypeError, f"{what} must be seconds") for what in ("lease", "lock_delay", "max_hold", "timeout")),
    *(({what: "10"}, TypeError, f"{what} must be seconds") for what in ("lease", "lock_delay", "max_hold", "timeout")),
    *(({what: Decimal(3)}, TypeError, f"{what} must be") for what in ("lease", "lock_delay", "max_hold", "timeout")),
    *(({what: timedelta(seconds=-5)}, ValueError, what) for what in ("lease", "lock_delay", "max_hold", "timeout")),
    *(({what: math.inf}, ValueError, f"{what} must be a finite") for what in ("lease", "lock_delay", "max_hold")),
    ({"lease": 0}, ValueError, r"from 0\.05 s to 604800 s \(7 days\)"),
    ({"lease": 0.049}, ValueError, "30 s suits most"),
    ({"lease": timedelta(days=8)}, ValueError, "7 days"),
    ({"lease": None}, TypeError, "lease must be seconds"),
    ({"lock_delay": None}, TypeError, "lock_delay must be seconds"),
    ({"lock_delay": 1e300}, ValueError, "lock_delay must be 604800 s at most"),
    ({"max_hold": 0}, ValueError, "max_hold must be above zero"),
    ({"max_hold": 5, "renew": False}, ValueError, "leave one of them out"),
    ({"meta": "x" * 1023}, ValueError, "at most 1024"),
    ({"meta": {"x": "é" * 200}}, ValueError, "store a reference instead"),
    ({"meta": {"x": {1}}}, ValueError, "cannot be written as JSON"),
    ({"meta": {"x": b"bytes"}}, ValueError, "cannot be written as JSON"),
    ({"meta": {"x": NAN}}, ValueError, "cannot be written as JSON"),
    ({"meta": {1: 1, "1": 1}}, ValueError, "cannot be written as JSON"),
    ({"meta": 5}, TypeError, "meta must be a str or a mapping"),
    ({"meta": ["a"]}, TypeError, "meta must be a str or a mapping"),
    ({"meta": b"a"}, TypeError, "meta must be a str or a mapping"),
]


def in_both(use: Callable[[Any], Any]) -> None:
    """Call ``use`` with a client of each flavor."""
    with Client.from_url(NOWHERE) as client:
        use(client)

    async def body() -> None:
        async with AsyncClient.from_url(NOWHERE) as client:
            use(client)

    asyncio.run(body())


@pytest.mark.parametrize(("name", "kind", "words"), NAMES, ids=lambda value: ascii(value)[:30])
def test_names_and_namespaces(name: Any, kind: type[Exception], words: str) -> None:
    def use(client: Any) -> None:
        for make in (client.lock, client.rlock):
            with pytest.raises(kind, match=words) as caught:
                make(name)
            assert len(str(caught.value)) < 200

    in_both(use)
    for make in (Client.from_url, AsyncClient.from_url):
        with pytest.raises(kind, match=f"namespace.*{words}"):
            make(NOWHERE, namespace=name)
    with Client.from_url(NOWHERE) as client:
        for ask in (client.inspect, lambda name: client.force_release(name, 1)):
            with pytest.raises(kind, match=words):
                ask(name)


@pytest.mark.parametrize(("options", "kind", "words"), DURATIONS, ids=lambda value: str(value)[:40])
def test_options_of_a_lock(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    def use(client: Any) -> None:
        for make in (client.lock, client.rlock):
            with pytest.raises(kind, match=words):
                make("x", **options)

    in_both(use)


@pytest.mark.parametrize("value", [0, -1, NAN, math.inf, 1e9, 10**400, "5", True, None, timedelta(0)], ids=str)
def test_the_response_timeout(value: Any) -> None:
    for make in (Client.from_url, AsyncClient.from_url):
        with pytest.raises((ValueError, TypeError), match="response_timeout"):
            make(NOWHERE, response_timeout=value)


ACQUIRES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"blocking": False, "timeout": 1}, ValueError, "leave one of them out"),
    ({"blocking": False, "timeout": 0}, ValueError, "leave one of them out"),
    ({"timeout": -2}, ValueError, "timeout must not be negative"),
    ({"timeout": NAN}, ValueError, "finite"),
    ({"timeout": "1"}, TypeError, "timeout must be seconds"),
    ({"timeout": True}, TypeError, "timeout must be seconds"),
]


MAKERS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("x").acquire,
    "rlock": lambda client: client.rlock("x").acquire,
    "reader": lambda client: client.rw_lock("x").reader().acquire,
    "writer": lambda client: client.rw_lock("x").writer().acquire,
    "upgradeable": lambda client: client.rw_lock("x").upgradeable().acquire,
    "semaphore": lambda client: partial(client.semaphore("x", 1).acquire, 1),
    "permits": lambda client: client.semaphore("x", 2).permits(2).acquire,
    "multi_lock": lambda client: client.multi_lock(["x", "y"]).acquire,
    "election": lambda client: client.election("x").acquire,
    "campaign": lambda client: client.election("x").campaign,
}
"""What has an argument ``blocking``."""

SURPRISING: list[tuple[Any, str]] = [
    (5, r"blocking must be True or False, not 5; did you mean timeout=5\?"),
    (0.5, r"not 0.5; did you mean timeout=0.5\?"),
    (1.0, r"not 1.0; did you mean timeout=1.0\?"),
    (-1, r"not -1; did you mean timeout=-1\?"),
    (timedelta(seconds=5), r"not datetime.timedelta\(seconds=5\); did you mean timeout=datetime"),
    (10**400, "not int$"),
    (None, "not NoneType$"),
    ("no", "not str$"),
]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("blocking", "words"), SURPRISING, ids=lambda value: str(value)[:20])
def test_a_time_in_the_place_of_blocking(make: Callable[[Any], Any], blocking: Any, words: str) -> None:
    """It would count as true, and the acquire would wait for ever."""
    with Client.from_url(NOWHERE) as client:
        for timeout in (None, 0.2):
            with pytest.raises(TypeError, match=words):
                make(client)(blocking, timeout)

    async def body() -> None:
        async with AsyncClient.from_url(NOWHERE) as client:
            for timeout in (None, 0.2):
                with pytest.raises(TypeError, match=words):
                    await make(client)(blocking, timeout)

    asyncio.run(body())


@pytest.mark.parametrize("make", sorted(MAKERS.keys() - {"reader"}))
def test_zero_and_one_count_as_false_and_true(make: str) -> None:
    memory = Memory(f"zero and one {make}")
    with Client(memory) as client, Client(memory) as other, MAKERS[make](client)(1):
        assert MAKERS[make](other)(0) is None
        assert MAKERS[make](other)(1, 0) is None


@pytest.mark.parametrize(("options", "kind", "words"), ACQUIRES, ids=str)
def test_arguments_of_acquire(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with Client.from_url(NOWHERE) as client, pytest.raises(kind, match=words):
        client.lock("x").acquire(**options)

    async def body() -> None:
        async with AsyncClient.from_url(NOWHERE) as client:
            with pytest.raises(kind, match=words):
                await client.lock("x").acquire(**options)

    asyncio.run(body())


def test_accepted_values() -> None:
    assert _validate.lease(timedelta(minutes=1)) == 60.0
    assert _validate.lease(0.05) == 0.05
    assert _validate.timeout(-1) is None
    assert _validate.timeout(math.inf) is None
    assert _validate.timeout(-1, blocking=False) is None
    assert _validate.meta("") == '""'
    assert _validate.meta({"b": 1, "a": "\udc80"}) == '{"a":"\\udc80","b":1}'
    nested: Any = {}
    for _ in range(100_000):
        nested = {"x": nested}
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        _validate.meta(nested)


@given(st.text(min_size=1, max_size=512))
def test_any_text_is_a_name_unless_it_is_too_long_or_no_text(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 10_000
    if size <= 512:
        assert _validate.name(name) == name
    else:
        with pytest.raises(ValueError, match="name"):
            _validate.name(name)


@pytest.mark.parametrize("make", ["lock", "rlock", "rw_lock", "election"])
def test_names_an_unknown_option(make: str) -> None:
    with Client.from_url("memory:") as locks, pytest.raises(TypeError, match=rf"{make}\(\) got .*'leese'"):
        getattr(locks, make)("stock", leese=3)


def test_an_election_refuses_meta() -> None:
    with Client.from_url("memory:") as locks, pytest.raises(TypeError, match="unexpected keyword argument 'meta'"):
        locks.election("scheduler", meta="me")
