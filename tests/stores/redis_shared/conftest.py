"""A server of its own for each file, and a store on it that is subscribed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = registry.opener(server.url).open(BlockingRuntime(), "default")
    assert isinstance(opened, RedisStore)
    finish(opened._transport.listen(5.0))
    yield opened
    finish(opened.close())
