"""A server user with the rights that the page lists can do all; one with fewer is told what to grant."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from functools import partial

import pytest
import redis
from layout_keys import BEFORE, LAYOUT_NAMES, LOCKS, url_of
from layout_rights import commands, rules

from leasehold import StoreRefused, StoreUnavailable
from leasehold.layouts.redis.scripts import COMMAND, Scripts
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.doctor import foreign
from support.flavors import both
from support.patience import until_in

layouts = pytest.mark.parametrize("layout", LAYOUT_NAMES)


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


@both
def test_without_a_namespace_the_key_itself_is_named(redis_server, namespace, harness, user):
    chosen = [rule for rule in rules("plain", namespace) if rule != f"~{namespace}:*"]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "plain")) as locks:
            with pytest.raises(StoreRefused, match=rf"lacks the right ~{namespace}-x; grant "):
                await locks.lock(f"{namespace}-x").acquire(timeout=5)

    harness.run(body)


# --- replies and messages ----------------------------------------------------------------------------------------


def connections(server, user):
    """Return the ids of a user's connections."""
    return set(re.findall(rf"(?m)^id=(\d+) .* user={user} ", str(server.command("CLIENT", "LIST"))))


async def use_beside(harness, server, namespace, locks, denied):
    """Acquire and release in many tasks while something is denied; each reply must reach its own request."""

    async def use(number):
        key = f"{namespace}:stock{number}"
        for _ in range(15):
            hold = await locks.lock(f"stock{number}").acquire(timeout=5)
            assert server.command("HLEN", key) == 1
            await hold.release()
            assert server.command("EXISTS", key) == 0

    before = connections(server, locks_user(locks))
    assert before
    jobs = [harness.spawn(partial(use, number)) for number in range(8)]
    jobs += [harness.spawn(denied) for _ in range(4)]
    for job in jobs:
        await job.result()
    assert before <= connections(server, locks_user(locks)), "a connection that others use was given up"


def locks_user(locks):
    return locks.store._settings.options["username"]


@both
def test_a_denied_channel_of_another_kind_of_lock_disturbs_no_claim(redis_server, namespace, harness, user):
    chosen = [rule for rule in rules("redisson", namespace) if not rule.startswith("&redisson")]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen, "&redisson_lock__*")

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks:
            await (await locks.lock("warm").acquire()).release()

            async def denied():
                for _ in range(5):
                    with pytest.raises(StoreRefused, match=r"lacks the right &redisson_rwlock:\*; grant .*interop.md"):
                        await locks.rw_lock("rw", fair=False).writer().acquire(timeout=5)

            await use_beside(harness, redis_server, namespace, locks, denied)

    harness.run(body)


@both
def test_a_waiter_is_told_that_its_channel_is_denied_and_disturbs_no_claim(redis_server, namespace, harness, user):
    """Rights are asked for each kind of lock, with the first name: another name may have a channel without a right."""
    chosen = [rule for rule in rules("redisson", namespace) if not rule.startswith("&redisson")]
    channels = f"&redisson_lock__channel:{{{namespace}:stock*"
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen, channels)

    async def body(harness):
        async with (
            harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks,
            harness.client(url_of(redis_server.url, "redisson"), namespace=namespace) as others,
        ):
            await (await locks.lock("stock0").acquire()).release()
            hold = await others.lock("stock9", lease=30).acquire()
            assert await locks.lock("stock9").acquire(timeout=0.2) is None  # the subscription is open
            order = await others.lock("order", lease=30).acquire()

            async def denied():
                for _ in range(3):
                    start = harness.now()
                    with pytest.raises(StoreRefused, match=r"lacks the right &redisson_lock__channel:\*; grant .*int"):
                        await locks.lock("order").acquire(timeout=10)
                    assert harness.now() - start < 5

            await use_beside(harness, redis_server, namespace, locks, denied)
            waiter = harness.spawn(lambda: locks.lock("stock9").acquire(timeout=10))
            await harness.sleep(0.3)
            start = harness.now()
            await hold.release()
            await (await waiter.result()).release()
            assert harness.now() - start < 2
            await order.release()

    harness.run(body)


@both
@pytest.mark.parametrize("layout", ["redisson", "spring"])
def test_asking_for_rights_wakes_no_waiter_of_the_other_library(redis_server, namespace, harness, user, layout):
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules(layout, namespace))
    channel = {
        "redisson": f"redisson_lock__channel:{{{namespace}:x}}",
        "spring": f"locks-channel:locks:{namespace}:x",
    }[layout]

    async def body(harness):
        with redis.Redis(port=redis_server.port) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(channel)
            listener.get_message(timeout=1)
            async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
                hold = await locks.lock("x").acquire()
                assert listener.get_message(timeout=0.3) is None
                await hold.release()
                assert listener.get_message(timeout=2) is not None

    harness.run(body)


@both
@pytest.mark.parametrize("layout", ["plain", "redisson"])
def test_an_answer_that_says_nothing_of_rights_is_asked_again(redis_server, namespace, harness, user, layout):
    chosen = [rule for rule in rules(layout, namespace) if rule not in ("+publish", "+pttl")]
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *chosen)

    async def body(harness):
        async with harness.client(url_for(redis_server, user, layout), namespace=namespace) as locks:
            transport = locks.store._transport

            async def loading(command, **_):
                return ReplyError("LOADING Redis is loading the dataset in memory")

            transport.call = loading
            with pytest.raises(StoreUnavailable, match="LOADING"):
                await locks.lock("x").acquire(timeout=0)
            del transport.call
            with pytest.raises(
                StoreRefused, match=r"lacks the rights \+pttl \+publish;|lacks the rights \+publish \+pttl"
            ):
                await locks.lock("x").acquire(timeout=5)
            assert not redis_server.command("EXISTS", f"{namespace}:x")

    harness.run(body)


@both
def test_the_right_that_is_named_is_one_of_the_denied_lock(redis_server, namespace, harness, user):
    """Another thread may claim a lock of another kind meanwhile, which needs other rights."""
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules("redisson", namespace))

    async def body(harness):
        async with harness.client(url_for(redis_server, user, "redisson"), namespace=namespace) as locks:
            writer = locks.rw_lock("x", fair=False).writer()
            for lock in (writer, locks.lock("y")):
                await (await lock.acquire()).release()
            redis_server.command("ACL", "SETUSER", user, "-exists")
            transport = locks.store._transport
            call = transport.call

            async def beside(command, *, within):
                transport.call = call
                hold = await harness.spawn(lambda: locks.lock("y").acquire()).result()
                await harness.spawn(hold.release).result()
                return await call(command, within=within)

            transport.call = beside
            with pytest.raises(StoreRefused, match=r"its user lacks the right \+exists; grant"):
                await writer.acquire(timeout=5)

    harness.run(body)


@both
def test_the_rights_and_the_claim_have_one_time_limit(redis_server, namespace, harness, user):
    redis_server.command("ACL", "SETUSER", user, "on", ">secret", "resetkeys", *rules("plain", namespace))

    async def body(harness):
        url = url_for(redis_server, user, "plain")
        async with harness.client(url, namespace=namespace, response_timeout=2.0) as locks:
            store, given = locks.store, list[float]()
            call, call_all = store._transport.call, store._transport.call_all

            async def slow(command, *, within):
                given.append(within)
                await harness.sleep(0.4)
                return await call(command, within=within)

            async def slow_all(those, *, within):
                given.append(within)
                await harness.sleep(0.4)
                return await call_all(those, within=within)

            store._transport.call, store._transport.call_all = slow, slow_all
            hold = await locks.lock("x").acquire()
            assert given[0] <= 2.0
            assert len(given) >= 2
            assert all(later < earlier - 0.35 for earlier, later in itertools.pairwise(given[:3]))
            del store._transport.call, store._transport.call_all
            await hold.release()

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
