"""What the tests of all layouts share: their URLs, the scripts of each, and what may be left on a server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from leasehold import Client
from leasehold.layouts.redis import LAYOUTS

LAYOUT_NAMES = LAYOUTS


class Shape(NamedTuple):
    """An exclusive lock of a layout: the layout's name, that of its scripts, and what makes it."""

    layout: str
    scripts: str
    make: Callable[..., Any]


def lock(client: Any, name: str, **options: Any) -> Any:
    return client.lock(name, **options)


def writer(client: Any, name: str, **options: Any) -> Any:
    return client.rw_lock(name, fair=False, **options).writer()


def permits(client: Any, name: str, **options: Any) -> Any:
    return client.semaphore(name, 2, fair=False, **options).permits(2)


LOCKS = {
    "plain": Shape("plain", "plain", lock),
    "python-redis-lock": Shape("python-redis-lock", "python_redis_lock", lock),
    "spring": Shape("spring", "spring", lock),
    "redisson": Shape("redisson", "redisson", lock),
    "redisson-fair": Shape("redisson", "redisson", partial(lock, fair=True)),
    "redisson-write": Shape("redisson", "redisson_rw", writer),
    "redisson-permits": Shape("redisson", "redisson_permits", permits),
}

FOREVER = {"plain": (), "python-redis-lock": (), "redisson": ("redisson_lock_token:",), "spring": ()}
"""Beginnings of the keys of each layout that have no time to live, since the other library keeps them for ever.

So is the key of a semaphore of Redisson: the number of its permits, two in `LOCKS`.
"""


REQUIRED = {"spring": {"registry": "locks"}}
"""Options without which a layout has no URL."""

BEFORE = {"python-redis-lock": "lock:", "spring": "locks:"}
"""What precedes the namespace in the keys of a layout."""

SIGNAL = "lock-signal:"
"""What precedes it in a list of python-redis-lock, which outlives a release by a second."""


def url_of(url: str, layout: str, **options: str) -> str:
    """Return the URL of a server with a layout."""
    return f"{url}?" + "&".join(
        f"{key}={value}" for key, value in {"layout": layout, **REQUIRED.get(layout, {}), **options}.items()
    )


def assert_clean(server, layout, namespace):
    """Check that nobody holds or waits, that the lock's key is gone, and that the rest ends an hour after a lease."""

    def held():
        with Client.from_url(url_of(server.url, layout), namespace=namespace) as locks:
            return locks.holds()

    with ThreadPoolExecutor(1) as thread:  # a test of asyncio has a running loop here
        assert thread.submit(held).result() == []
    for key in server.command("KEYS", f"*{namespace}:*"):
        if layout == "python-redis-lock" and key.startswith(SIGNAL):
            left = server.command("PTTL", key)
            assert left == -2 or 0 <= left <= 1000
            continue
        permits = layout == "redisson" and server.command("TYPE", key) == "string" and server.command("GET", key) == "2"
        if not permits and not key.startswith(FOREVER[layout]):
            assert key.startswith(f"leasehold:layout:{layout}:{{{BEFORE.get(layout, '')}{namespace}:"), key
            assert key.endswith("}:side"), key
            assert 0 < server.command("PTTL", key) <= 3_600_000 + 30_000
