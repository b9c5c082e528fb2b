"""The guard for a key of Redis."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
import redis.crc

from leasehold.guards import Stale
from leasehold.guards.redis import awrite, fence_key, write
from leasehold_lab.servers import RedisServer


def test_a_key_is_set_by_newer_holders_only(redis_server: RedisServer, namespace: str) -> None:
    key = f"{namespace}:report"
    with redis.Redis(port=redis_server.port) as client:
        for token, value in ((9, "a"), (9, "b"), (10, "c"), (2**53 + 1, "d"), (2**53 + 2, "e")):
            write(client, key, value, token=token)
        for token in (1, 10, 2**53, 2**53 + 1):  # the last two are one number to a script that counts in doubles
            with pytest.raises(Stale) as stale:
                write(client, key, "late", token=token)
            assert stale.value.fence == 2**53 + 2
        assert client.get(key) == b"e"
        assert client.ttl(key) == -1
        write(client, key, b"f", token=2**53 + 2, ttl=60)
        assert 0 < client.ttl(key) <= 60
        assert 0 < client.ttl(fence_key(key)) <= 60

    async def body() -> None:
        async with redis.asyncio.Redis(port=redis_server.port) as client:
            await awrite(client, key, "g", token=2**53 + 3)
            with pytest.raises(Stale):
                await awrite(client, key, "late", token=5)
            assert await client.get(key) == b"g"

    asyncio.run(body())


@pytest.mark.parametrize("key", ["stock", "stock:42", "{stock}:42", "a{b}c{d}", "{a}{", "ünï"])
def test_a_fence_is_in_the_slot_of_its_key(key: str) -> None:
    assert redis.crc.key_slot(fence_key(key).encode()) == redis.crc.key_slot(key.encode())
    assert fence_key(key) != key


@pytest.mark.parametrize("key", ["", "{}", "a}b", "{}x", "a{b"])
def test_a_key_whose_fence_would_be_in_another_slot_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="hash tag"):
        fence_key(key)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl"):
        write(None, "x", "v", token=1, ttl=0)
    with pytest.raises(TypeError, match="token"):
        write(None, "x", "v", token="1")  # type: ignore[arg-type]
