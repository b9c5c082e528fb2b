"""A name that another release keeps in another layout of the keys is refused, shown, and never overwritten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from leasehold import AsyncClient, Client, NameInUse
from leasehold.cli import main
from leasehold_lab.servers import RedisServer

KEEP = 3_600_000
"""Milliseconds for which the key of a lock outlives its lease."""

BLOCKING = [
    pytest.param(lambda locks: locks.lock("stock").acquire(blocking=False), id="lock"),
    pytest.param(lambda locks: locks.lock("stock").acquire(timeout=5), id="lock-that-waits"),
    pytest.param(lambda locks: locks.rw_lock("stock").reader().acquire(timeout=5), id="rw-lock"),
    pytest.param(lambda locks: locks.semaphore("stock", 3).acquire(timeout=5), id="semaphore"),
    pytest.param(lambda locks: locks.multi_lock(["free", "stock"]).acquire(timeout=5), id="multi-lock"),
]


@pytest.fixture(params=["one-holder", "many-holders", "after-one-of-ours", "in-its-lock-delay"])
def key(request: pytest.FixtureRequest, redis_server: RedisServer, namespace: str) -> str:
    """Write what a later release may: a name that is in use for a minute. Return the key."""
    key = f"leasehold:{{{namespace}:stock}}:lock"
    fields = {"k": "layout 2 mutex", "f": "7", "t": "T" * 22, "d": "0", "new": "field"}
    match request.param:
        case "many-holders":
            fields["t"] = ""
        case "after-one-of-ours":
            fields["l"] = "5000"  # of that one: it stays after the release
        case "in-its-lock-delay":
            fields["d"] = "90000"
    redis_server.command("HSET", key, *(part for pair in fields.items() for part in pair))
    redis_server.command("PEXPIRE", key, str(60_000 + KEEP))
    return key


@pytest.mark.parametrize("acquire", BLOCKING)
def test_it_is_refused_while_it_is_held(
    redis_server: RedisServer, namespace: str, key: str, acquire: Callable[[Client], object]
) -> None:
    before = redis_server.command("HGETALL", key)
    with Client.from_url(redis_server.url, namespace=namespace) as locks:
        with pytest.raises(NameInUse, match=r"uses 'stock', in layout 2; this one knows layout 1 .*same version every"):
            acquire(locks)
        assert redis_server.command("HGETALL", key) == before
        assert int(str(redis_server.command("PTTL", key))) > 50_000 + KEEP
        assert locks.lock("free").acquire(blocking=False)  # a multi-lock left nothing


@pytest.mark.usefixtures("key")
def test_it_is_refused_under_asyncio(redis_server: RedisServer, namespace: str) -> None:
    async def both() -> None:
        async with AsyncClient.from_url(redis_server.url, namespace=namespace) as locks:
            for lock in (locks.lock("stock"), locks.semaphore("stock", 3)):
                with pytest.raises(NameInUse, match="in layout 2"):
                    await lock.acquire(timeout=5)

    asyncio.run(both())


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_it_is_free_after_its_lease_and_the_tokens_go_on(
    redis_server: RedisServer, namespace: str, key: str, kind: str
) -> None:
    redis_server.command("HSET", key, "f", str(2**52), "d", "0")
    redis_server.command("PEXPIRE", key, str(KEEP))
    with Client.from_url(redis_server.url, namespace=namespace) as locks:
        lock = locks.lock("stock") if kind == "lock" else locks.semaphore("stock", 3)
        hold = lock.acquire(timeout=5)
        assert hold is not None
        assert hold.token == 2**52 + 1


def test_show_and_doctor_say_so(redis_server: RedisServer, namespace: str, key: str) -> None:
    def call(*words: str) -> str:
        return CliRunner().invoke(main, [*words, "--namespace", namespace, "--url", redis_server.url]).output

    def finding() -> dict[str, str]:
        findings = json.loads(call("doctor", "--json"))["findings"]
        return next(one for one in findings if one["subject"] == "layout of the keys")

    assert "stock" in call("show", "stock")
    assert finding()["severity"] == "warning"
    assert finding()["found"] == "1; 1 of the names have another one, as 'stock', which has 2"
    redis_server.command("DEL", key)
    assert (finding()["severity"], finding()["found"]) == ("ok", "1")
