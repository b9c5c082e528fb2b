"""Under aiocache and cashews, a value is computed once by several processes; their own locks do not see to that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from aiocache import Cache, cached, cached_stampede
from cashews import Cache as Cashews

from leasehold import AsyncClient, StoreUnavailable
from leasehold_lab.servers import RedisServer
from support.patience import until
from support.workers import Journal, Worker, working

PROGRAM = """
import asyncio, os
from pathlib import Path
from leasehold import AsyncClient
from support.workers import Journal, note

async def compute(year):
    note("compute")
    first = len(Journal(Path(os.environ["JOURNAL"])).entries("compute")) == 1
    await asyncio.sleep(60 if first and os.environ["HANGS"] else 1)
    return os.getpid()

async def main():
    locks = AsyncClient.from_url(os.environ["LOCKS"])
    one_at_a_time = locks.synchronized("report:{year}", lease=1)
    host, port = "127.0.0.1", int(os.environ["PORT"])
    match os.environ["CACHED"]:
        case "aiocache":
            from aiocache import Cache, cached
            remember = cached(ttl=60, cache=Cache.REDIS, endpoint=host, port=port)
            report = remember(one_at_a_time(remember(compute)))
        case "cashews":
            from cashews import cache
            cache.setup(f"redis://{host}:{port}/0")
            remember = cache(ttl="1m", key="report:{year}")
            report = remember(one_at_a_time(remember(compute)))
        case "cached":
            report = lambda year: locks.cached(f"report:{year}", 60, lambda: compute(year), lease=1).get()
        case "cached_stampede":
            from aiocache import Cache, cached_stampede
            report = cached_stampede(ttl=60, lease=30, cache=Cache.REDIS, endpoint=host, port=port)(compute)
        case "lock=True":
            from cashews import cache
            cache.setup(f"redis://{host}:{port}/0")
            report = cache(ttl="1m", key="report:{year}", lock=True)(compute)
    note("ready")
    while len(Journal(Path(os.environ["JOURNAL"])).entries("ready")) < int(os.environ["ALL"]):
        await asyncio.sleep(0.01)
    note("got", value=await report(2026))
    await locks.close()

asyncio.run(main())
"""

OURS = ["aiocache", "cashews", "cached"]


@contextmanager
def workers(how: str, count: int, folder: Path, hangs: bool = False) -> Iterator[tuple[Journal, list[Worker], str]]:
    """Run processes that all ask for a value at the same moment; yield the URL of the cache, too."""
    journal = Journal(folder / "journal")
    with RedisServer() as locks, RedisServer() as cache, ExitStack() as stack:
        given = {"LOCKS": locks.url, "PORT": str(cache.port), "CACHED": how, "ALL": str(count)}
        given |= {"JOURNAL": str(journal.path), "HANGS": "yes" if hangs else ""}
        started = [
            stack.enter_context(working("-c", PROGRAM, folder=folder, name=str(number), **given))
            for number in range(count)
        ]
        yield journal, started, cache.url


def killed(journal: Journal, started: list[Worker]) -> None:
    """Kill the process that computes."""
    first = journal.until(1, "compute")[0]
    next(each for each in started if each.process.pid == first["pid"]).kill()


@pytest.mark.parametrize("how", OURS)
def test_processes_compute_a_value_once(how: str, tmp_path: Path) -> None:
    with workers(how, 3, tmp_path) as (journal, _, _):
        got = journal.until(3, "got")
        (computed,) = journal.entries("compute")
        assert {each["value"] for each in got} == {computed["pid"]}


@pytest.mark.parametrize("how", OURS)
def test_another_computes_when_the_first_is_killed(how: str, tmp_path: Path) -> None:
    with workers(how, 2, tmp_path, hangs=True) as (journal, started, _):
        killed(journal, started)
        (got,) = journal.until(1, "got")
        assert [each["pid"] for each in journal.entries("compute")][1:] == [got["pid"]] == [got["value"]]


# --- what the locks of the caches do --------------------------------------------------------------------------------


def test_processes_under_cached_stampede_compute_at_once(tmp_path: Path) -> None:
    """aiocache's waiters wait for an event of their own process: those of another process do not wait."""
    with workers("cached_stampede", 2, tmp_path) as (journal, _, _):
        journal.until(2, "got")
        assert len(journal.entries("compute")) == 2


def test_waiters_of_cached_stampede_all_pass_when_its_lease_ends() -> None:
    async def main() -> None:
        computed = list[int]()

        @cached_stampede(ttl=60, lease=0.1)
        async def report(year: int) -> int:
            computed.append(year)
            await asyncio.sleep(0.5)
            return year

        await asyncio.gather(*(report(2026) for _ in range(4)))
        assert len(computed) == 4

    asyncio.run(main())


def test_a_killed_process_keeps_the_lock_of_cashews_for_the_time_of_the_value(tmp_path: Path) -> None:
    with workers("lock=True", 2, tmp_path, hangs=True) as (journal, started, cache):
        killed(journal, started)
        import redis

        with redis.Redis.from_url(cache) as raw:
            (key,) = raw.keys("lock*")
            assert 30 < raw.ttl(key) <= 60
            before = raw.info("commandstats")["cmdstat_set"]["calls"]
            until(
                lambda: raw.info("commandstats")["cmdstat_set"]["calls"] > before + 200
            )  # a waiter asks without a pause


@pytest.mark.filterwarnings("ignore:Call to deprecated close")
def test_the_lock_of_cashews_lets_all_pass_when_its_store_is_down() -> None:
    async def main() -> None:
        with RedisServer() as server:
            cache = Cashews()
            cache.setup(server.url)
            await cache.set("k", 1)
            server.kill()
            inside = most = 0

            @cache.locked(ttl=10, key="report:{year}")
            async def report(year: int) -> None:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.3)
                inside -= 1

            await asyncio.gather(*(report(2026) for _ in range(2)))
            assert most == 2
            await cache.close()

    asyncio.run(main())


def test_cached_stampede_raises_the_error_of_redis_when_it_is_down() -> None:
    async def main() -> None:
        with RedisServer() as server:

            @cached_stampede(ttl=60, cache=Cache.REDIS, endpoint="127.0.0.1", port=server.port)
            async def report(year: int) -> int:
                return year

            assert await report(2026) == 2026
            server.kill()
            with pytest.raises(redis.ConnectionError):
                await report(2027)

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:Call to deprecated close")
def test_the_lock_of_cashews_ends_with_the_time_of_the_value() -> None:
    async def main() -> None:
        cache = Cashews()
        cache.setup(server.url)
        computed = list[int]()

        @cache(ttl=1, key="report:{year}", lock=True, protected=False)
        async def report(year: int) -> int:
            computed.append(year)
            await asyncio.sleep(2)
            return year

        await asyncio.gather(report(2026), report(2026))
        assert len(computed) == 2
        await cache.close()

    with RedisServer() as server:
        asyncio.run(main())


# --- what becomes of the caller when a store is down ----------------------------------------------------------------


def test_a_good_value_is_returned_without_the_store_of_the_locks() -> None:
    async def main() -> None:
        with RedisServer() as server:
            async with AsyncClient.from_url(server.url, response_timeout=0.5) as locks:
                remember = cached(ttl=60)
                computed = list[int]()

                @remember
                @locks.synchronized("report:{year}")
                @remember
                async def report(year: int) -> int:
                    computed.append(year)
                    return year

                assert await report(2026) == 2026
                assert (
                    await report(year=2026) == 2026
                )  # another value for aiocache: its key has the arguments as written
                server.kill()
                assert await report(2026) == 2026
                with pytest.raises(StoreUnavailable):
                    await report(2027)
                assert computed == [2026, 2026]

    asyncio.run(main())


def test_without_the_store_of_the_cache_it_is_computed_one_at_a_time() -> None:
    async def main() -> None:
        with RedisServer() as server:
            async with AsyncClient.from_url("memory:caches-without-a-cache") as locks:
                remember = cached(ttl=60, cache=Cache.REDIS, endpoint="127.0.0.1", port=server.port)
                inside = most = calls = 0

                @remember
                @locks.synchronized("report:{year}")
                @remember
                async def report(year: int) -> int:
                    nonlocal inside, most, calls
                    inside, calls = inside + 1, calls + 1
                    most = max(most, inside)
                    await asyncio.sleep(0.05)
                    inside -= 1
                    return year

                server.kill()
                assert await asyncio.gather(*(report(2026) for _ in range(3))) == [2026] * 3
                assert (most, calls) == (1, 3)

    asyncio.run(main())
