"""Lost requests and replies of writes to values, on both transports:

each write is applied once, and the writer knows whether it was.
"""

from __future__ import annotations

import pytest

from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.scripts import CELL
from leasehold_lab.proxy.proxy import FaultProxy
from support.flavors import both


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.port) as running:
        yield running


@both
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_update_with_lost_bytes_counts_once(redis_server, proxy, namespace, harness, lost, nth):
    """The first request reads, the second writes."""

    async def body(harness):
        url = f"redis://127.0.0.1:{proxy.port}"
        async with (
            harness.client(url, namespace=namespace) as through,
            harness.client(redis_server.url, namespace=namespace) as clean,
        ):
            value = through.versioned("views")
            await value.put(5)
            lose = proxy.drop_reply if lost == "reply" else proxy.cut_at
            fault = lose(where=CELL.digest, nth=nth)
            assert tuple(await value.update(lambda seen: seen + 1)) == (6, 2)
            assert fault.hits == 1
            assert tuple(await clean.versioned("views").get()) == (6, 2)

    harness.run(body)


@both
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_put_without_a_version_is_not_repeated(redis_server, proxy, namespace, harness, lost):
    """The value is either there, or the writer gets an error with an unknown outcome."""

    async def body(harness):
        url = f"redis://127.0.0.1:{proxy.port}"
        async with (
            harness.client(url, namespace=namespace) as through,
            harness.client(redis_server.url, namespace=namespace) as clean,
        ):
            value = through.versioned("views")
            await value.put("first")
            lose = proxy.drop_reply if lost == "reply" else proxy.cut_at
            fault = lose(where=CELL.digest)
            if lost == "reply":
                assert await value.put("second") == 2
            else:
                with pytest.raises(StoreUnavailable) as told:
                    await value.put("second")
                assert told.value.unknown
            assert fault.hits == 1
            assert tuple(await clean.versioned("views").get()) == (("second", 2) if lost == "reply" else ("first", 1))

    harness.run(body)


@both
def test_once_is_recorded_though_the_reply_is_lost(redis_server, proxy, namespace, harness):
    """The work is not repeated, and its caller gets no error."""

    async def body(harness):
        url = f"redis://127.0.0.1:{proxy.port}"
        done = []
        async with (
            harness.client(url, namespace=namespace) as through,
            harness.client(redis_server.url, namespace=namespace) as clean,
        ):

            def work():
                done.append(1)
                proxy.drop_reply(where=CELL.digest)
                return "done"

            assert await through.once("payment", ttl=60).run(work) == "done"
            assert await clean.once("payment", ttl=60).run(work) == "done"
            assert done == [1]

    harness.run(body)
