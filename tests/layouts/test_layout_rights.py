"""A server user with the rights that the page lists can do all; for one with fewer, the error names what to grant."""

from __future__ import annotations

import re
import secrets
import time

import pytest
import redis
from layout_keys import BEFORE, LAYOUT_NAMES, LOCKS, url_of
from layout_rights import commands, rules, url_for, user

from leasehold import StoreRefused
from leasehold.layouts.redis.scripts import COMMAND, Scripts
from leasehold.stores.redis.doctor import foreign
from support.flavors import both
from support.patience import until_in

__all__ = ["user"]  # pytest finds the fixtures here

layouts = pytest.mark.parametrize("layout", LAYOUT_NAMES)


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


@both
def test_without_a_namespace_the_key_itself_is_named(redis_server, namespace, harness, user):
    chosen = [rule for rule in rules("plain", namespace) if rule != f"~{namespace}:*"]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "plain")) as locks:
            with pytest.raises(StoreRefused, match=rf"lacks the right ~{namespace}-x; grant "):
                await locks.lock(f"{namespace}-x").acquire(timeout=5)

    harness.run(body)


# --- permits -----------------------------------------------------------------------------------------------------


@both
def test_a_denied_removal_makes_no_further_permits(redis_server, namespace, harness, user):
    """Each change of the count and of the set is made as a whole, or not at all."""
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules("redisson", namespace))
    key = f"{namespace}:x"

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks:
            permits = locks.semaphore("x", 2, fair=False)
            await (await permits.acquire()).release()
            hold = await permits.acquire()
            redis_server.command("ACL", "SETUSER", user, "-zrem")
            await hold.release()  # it is denied, and repeated in the background
            assert redis_server.command("GET", key) == "1"
            redis_server.command("ACL", "SETUSER", user, "+zrem")
            await until_in(harness, lambda: redis_server.command("GET", key) == "2", 15.0)
            with redis.Redis(port=redis_server.port) as client:
                client.delete(f"{{{key}}}:timeout")
                client.zadd(f"{{{key}}}:timeout", {secrets.token_bytes(16): 1000 * time.time() - 5000})
            redis_server.command("SET", key, "1")
            redis_server.command("ACL", "SETUSER", user, "-zremrangebyscore")
            with pytest.raises(StoreRefused, match=r"\+zremrangebyscore"):
                await permits.acquire(timeout=0)
            assert redis_server.command("GET", key) == "1"
            redis_server.command("ACL", "SETUSER", user, "+zremrangebyscore")
            await (await permits.acquire(timeout=5)).release()
            assert redis_server.command("GET", key) == "2"

    harness.run(body)


# --- doctor ------------------------------------------------------------------------------------------------------


@both
@layouts
def test_doctor_says_which_rights_of_the_layout_are_missing(redis_server, namespace, harness, user, layout):
    async def body(harness):
        for changes, expected in (
            ((), "all that locks need"),
            (("-zrem", "resetchannels"), "lacks "),
            (("-scan",), "lacks +scan"),
        ):
            chosen = rules(layout, namespace)
            redis_server.command("ACL", "SETUSER", user, "reset", "on", ">secret", *chosen, *changes)
            async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
                found = await locks.store.diagnose()
            (finding,) = [one for one in found if one.subject == "rights"]
            assert finding.found.startswith(expected)
            if changes[:1] == ("-zrem",):
                assert "+zrem" in finding.found
                assert "&" in finding.found
                assert "~" not in finding.found
            assert [one.subject for one in found].count("layout") == 1
            assert foreign.SUBJECT not in {one.subject for one in found}

    harness.run(body)


# --- the page ----------------------------------------------------------------------------------------------------


PARTS = sorted({(shape.scripts,) for shape in LOCKS.values()})


@pytest.mark.parametrize("parts", [*PARTS, *((*part, "sharded") for part in PARTS if part[0].startswith("redisson"))])
def test_the_page_lists_what_the_scripts_use(parts):
    used = {command.decode() for command in Scripts.of(*parts).commands}
    assert used
    assert used <= set(commands())
