"""A server user with the rights that the page lists can do all; one with fewer is told what to grant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from layout_keys import BEFORE, LAYOUT_NAMES, LOCKS, SIGNAL, url_of

from leasehold import StoreRefused
from leasehold.layouts.redis.scripts import COMMAND, Scripts
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


def claim_commands(lock: str) -> list[str]:
    """Return the commands in the script that acquires, which has no others where nobody waits."""
    found = COMMAND.findall(Scripts.of(LOCKS[lock].scripts).claim.text)
    return sorted({command.decode() for command in found})


@both
@pytest.mark.parametrize("lock", LOCKS)
def test_a_missing_right_is_named_before_the_first_claim(redis_server, namespace, harness, user, lock):
    layout, scripts, make = LOCKS[lock]
    channel = {"spring": "&locks-channel:*", "redisson": "&redisson_"}.get(layout, "&leasehold:")
    outside = ["EVAL", "EVALSHA", *(["SUBSCRIBE", "UNSUBSCRIBE"] if layout in ("spring", "redisson") else [])]
    used = [command.decode() for command in Scripts.of(scripts).commands]
    key = f"~{BEFORE.get(layout, '')}{namespace}:*"
    cases = [(f"+{command.lower()}", f"-{command.lower()}", f"+{command.lower()}") for command in [*used, *outside]]
    cases += [(channel, "resetchannels", "allchannels"), (key, "resetkeys", "allkeys")]

    async def body(harness):
        for lacking, revoke, grant in cases:
            redis_server.command(
                "ACL", "SETUSER", user, "reset", "on", ">secret", *rules(layout, namespace), "allkeys", revoke
            )
            async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
                right = rf"its user lacks the rights? [^;]*{re.escape(lacking)}.*docs/interop.md"
                with pytest.raises(StoreRefused, match=right):
                    await make(locks, "x").acquire(timeout=5)
                assert not redis_server.command("KEYS", f"*{namespace}:x*"), lacking
                redis_server.command("ACL", "SETUSER", user, grant)
                await (await make(locks, "y").acquire(timeout=5)).release()

    harness.run(body)


@both
@pytest.mark.parametrize("lock", LOCKS)
def test_a_claim_that_is_denied_a_right_leaves_no_lock_behind(redis_server, namespace, harness, user, lock):
    layout, _, make = LOCKS[lock]

    async def body(harness):
        redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules(layout, namespace))
        async with (
            harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks,
            harness.client(url_of(redis_server.url, layout), namespace=namespace) as others,
        ):
            await (await make(locks, "x").acquire()).release()
            for command in claim_commands(lock):
                redis_server.command("ACL", "SETUSER", user, f"-{command.lower()}")
                hold, said = None, f"+{command.lower()}"
                try:
                    hold = await make(locks, "x", lease=60).acquire(timeout=0)
                except StoreRefused as error:
                    said = str(error)
                redis_server.command("ACL", "SETUSER", user, f"+{command.lower()}")
                if hold is not None:  # nobody waits, so this command was not run
                    await hold.release()
                assert f"+{command.lower()}" in said
                await (await make(others, "x").acquire(timeout=0)).release()

    harness.run(body)


@both
@layouts
def test_a_missing_right_to_keys_is_named(redis_server, namespace, harness, user, layout):
    chosen = [rule for rule in rules(layout, namespace) if rule != "~leasehold:layout:*"]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
            with pytest.raises(StoreRefused, match=r"lacks the right ~leasehold:layout:\*; grant .*interop.md"):
                await locks.lock("x").acquire(timeout=5)

    harness.run(body)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_page_lists_what_the_scripts_use(lock):
    used = {command.decode() for command in Scripts.of(LOCKS[lock].scripts).commands}
    assert used <= set(commands())
