"""Requests to ZooKeeper that are sent together: the driver may fail the last of them before an earlier one."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.zookeeper.connection.requests import Request
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.connection.settings import Settings


class FailsLater:
    """A client of kazoo that still has the first request in its queue when its session ends, and refuses the second."""

    def __init__(self) -> None:
        self.handler = SequentialThreadingHandler()

    def _call(self, form: Any, result: Any) -> None:
        if form == "second":
            result.set_exception(SessionExpiredError())


@pytest.mark.parametrize("first", [lambda value: value[0], lambda value: None], ids=["create", "delete"])
def test_a_request_without_an_answer_is_unknown_when_a_later_one_has_failed(first: Any) -> None:
    runtime = BlockingRuntime()
    transport = Transport(runtime, Settings((("127.0.0.1", 2181),)), lambda _: None)
    transport._kazoo, transport.up = FailsLater(), True
    both = (Request("first", first), Request("second", lambda value: value))
    with pytest.raises(StoreUnavailable, match="has not answered") as failed:
        finish(transport.ask_all(both, runtime.now() + 5))
    assert failed.value.unknown
