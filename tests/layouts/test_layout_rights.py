"""A server user with the rights that the page lists can do all; one with fewer is told what to grant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from layout_keys import BEFORE, LAYOUT_NAMES, LOCKS, SIGNAL, url_of

from leasehold import StoreRefused
from support.flavors import both

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"

layouts = pytest.mark.parametrize("layout", LAYOUT_NAMES)


def commands() -> list[str]:
    """Return the commands that the page lists."""
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    (listed,) = re.findall(r"and the commands (.+?)\. ", text)
    return re.findall(r"`([A-Z]+)`", listed)


def rules(layout: str, namespace: str) -> list[str]:
    channels = ["&leasehold:*", f"&redisson_*:{{{namespace}:*", f"&locks-channel:locks:{namespace}:*"]
    redisson = f"~redisson_lock_*:{{{namespace}:*", f"~{{{namespace}:*"
    ours = [f"~{BEFORE.get(layout, '')}{namespace}:*", "~leasehold:layout:*", f"~{SIGNAL}{namespace}:*", *redisson]
    return [*ours, *channels, *(f"+{command.lower()}" for command in commands())]


@pytest.fixture
def user(redis_server, namespace):
    name = f"user-{namespace}"
    yield name
    redis_server.command("ACL", "DELUSER", name)


def url_for(server, user: str, layout: str) -> str:
    return url_of(f"redis://{user}:secret@127.0.0.1:{server.port}", layout)


@both
@pytest.mark.parametrize("lock", LOCKS)
def test_the_listed_rights_are_enough(redis_server, namespace, harness, user, lock):
    layout, _, make = LOCKS[lock]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules(layout, namespace))

    async def body(harness):
        url = url_for(redis_server, user, layout)
        async with (
            harness.client(url, namespace=namespace) as locks,
            harness.client(url, namespace=namespace) as other,
        ):
            for _ in range(2):
                hold = await make(locks, "x", lease=0.6).acquire()
                waiter = harness.spawn(lambda: make(other, "x", lease=0.6).acquire(timeout=10))
                await harness.sleep(0.5)
                assert [info.name for info in await locks.holds()] == ["x"]
                await hold.release()
                await (await waiter.result()).release()

    harness.run(body)


@both
@layouts
def test_a_missing_right_is_named(redis_server, namespace, harness, user, layout):
    chosen = [rule for rule in rules(layout, namespace) if rule != "~leasehold:layout:*"]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
            before = BEFORE.get(layout, "") + re.escape(namespace)
            grant = rf"its user lacks a right; grant ~{before}:\* ~leasehold:layout:\* .*interop.md"
            with pytest.raises(StoreRefused, match=grant):
                await locks.lock("x").acquire(timeout=5)

    harness.run(body)
