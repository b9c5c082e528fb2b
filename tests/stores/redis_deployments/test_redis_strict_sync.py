"""Strict mode while a replica is in its full sync: the server lists it, but `WAIT` never counts it."""

from __future__ import annotations

import time

from strict_mode import LONGEST, got, url_of, warm

from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisServer
from support.flavors import BLOCKING, by_day


@by_day(BLOCKING)
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
