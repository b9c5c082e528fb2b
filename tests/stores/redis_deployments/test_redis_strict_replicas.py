"""Strict mode: which replicas an acquire waits for.

It is sent again when there are more than were known, and the second sending may fail. A replica in its full sync is
listed by the server, but `WAIT` never counts it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from strict_mode import LONGEST, NOISE, got, url_of, warm

from leasehold import StoreUnavailable
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._url import parse
from leasehold.stores.redis.connection.base import ReplyError, RetryableError, pack
from leasehold.stores.redis.connection.settings import from_url
from leasehold.stores.redis.connection.transports import WaitTransport
from leasehold.stores.redis.strict.quorum import Strict
from leasehold.stores.redis.strict.strict import Claims
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from support.flavors import both
from support.steps import after_steps

FAILURES: dict[str, Exception] = {
    "no connection": RetryableError("cannot connect"),
    "refused": ReplyError("NOREPLICAS Not enough good replicas to write."),
    "moved": ReplyError("MOVED 1 127.0.0.1:1"),
    "slots migrate": ReplyError("ERR Script attempted to access a non local key in a cluster node"),
}


@both
@pytest.mark.parametrize("failure", FAILURES)
def test_a_grant_whose_second_sending_fails_is_released(
    harness: Harness, namespace: str, redis_server: Any, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, usual = url_of(redis_server.url), Claims._send
    sent = list[str]()

    async def send(self: Claims, *request: Any) -> tuple[Any, Any]:
        """Answer the first sending as if a replica had just come, and fail the others."""
        sent.append(failure)
        if len(sent) == 1:
            reply, acknowledged = await usual(self, *request)
            reply[3] = 1
            return reply, acknowledged
        if isinstance(FAILURES[failure], ReplyError):
            return FAILURES[failure], None
        raise FAILURES[failure]

    async def body(harness: Harness) -> None:
        await warm(harness, url, namespace)
        locks, others = (harness.client(url, namespace=namespace) for _ in range(2))
        await others.ping()
        with monkeypatch.context() as patch:
            patch.setattr(Claims, "_send", send)
            with pytest.raises(StoreUnavailable):
                await locks.lock("x", lease=LONGEST).acquire(timeout=0)
        assert len(sent) >= 2
        began = harness.now()
        hold = await got(others.lock("x", lease=LONGEST), timeout=LONGEST + NOISE)
        assert harness.now() - began < LONGEST / 2
        await hold.release()

    harness.run(body)


@both
def test_a_replica_in_its_full_sync_need_not_acknowledge(harness: Harness, namespace: str) -> None:
    with RedisServer() as primary, RedisServer() as replica:
        for setting in (("repl-diskless-sync", "yes"), ("repl-diskless-sync-delay", "60")):
            primary.command("CONFIG", "SET", *setting)
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        while "state=wait_bgsave" not in (found := str(primary.command("INFO", "replication"))):
            assert "state=online" not in found
            time.sleep(0.02)
        assert "connected_slaves:1" in found
        url = url_of(primary.url)

        async def body(harness: Harness) -> None:
            await warm(harness, url, namespace)
            async with harness.client(url, namespace=namespace) as locks:
                hold = await got(locks.lock("a", lease=LONGEST), timeout=2.0)
                await hold.release()
                (state,) = [found for found in await locks.diagnose() if found.subject == "strict"]
                assert "0 of 0 replicas must acknowledge a grant; 1 more in full sync" in state.found

        harness.run(body)


@pytest.mark.parametrize("turns", [0, 1, 4, None], ids=lambda turns: f"{turns} turns")
def test_a_close_that_is_cancelled_leaves_no_connection(turns: int | None) -> None:
    """As after a failover, when a task is cancelled that closes the connections to the old primary for all."""

    async def body(server: RedisServer) -> None:
        settings = replace(from_url(parse(server.url)), strict=Strict())
        for step in range(1, 9):
            transport = WaitTransport(AsyncioRuntime(), settings, b"channel", lambda _: None, lambda: None)
            await transport.call(pack(b"PING"), within=2.0)
            waits = [pack(b"SET", b"a", b"b"), pack(b"WAIT", b"0", b"50")]
            calls = [asyncio.ensure_future(transport.call_all(waits, within=2.0)) for _ in range(3)]
            if turns is None:
                await asyncio.gather(*calls)
            else:  # they are being connected
                for _ in range(turns):
                    await asyncio.sleep(0)
            closing = asyncio.ensure_future(transport.close())
            await after_steps(step, closing)
            await asyncio.gather(*calls, return_exceptions=True)
            with pytest.raises(StoreUnavailable, match="closed"):
                await transport.call_all(waits, within=2.0)
            end = time.monotonic() + 2.0
            while others := str(server.command("CLIENT", "LIST")).splitlines()[:-1]:
                assert time.monotonic() < end, f"{len(others)} connections, after a cancellation at step {step}"
                await asyncio.sleep(0.01)

    with RedisServer() as server:
        asyncio.run(body(server))
