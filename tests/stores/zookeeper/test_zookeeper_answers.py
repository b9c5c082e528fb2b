"""Requests to ZooKeeper that are sent together: the driver may fail the last of them before an earlier one.

And the end of a client of kazoo that does not end by itself, since the server does not answer.
"""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.zookeeper.connection import session
from leasehold.stores.zookeeper.connection.requests import Request
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine


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


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("ends", [1, 2, 5, 1000])
def test_a_close_takes_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch, up: bool, ends: int) -> None:
    """Without a connection nothing is to be confirmed. ``ends``: how many shutdowns end the client of kazoo."""
    harness, shut = SimulatedHarness(1), list[float]()

    async def body(_: Harness) -> None:
        transport = Transport(
            SimulatedRuntime(harness.scheduler, Machine("c")), Settings((("127.0.0.1", 2181),)), lambda _: None
        )
        transport._kazoo, transport.up = object(), up
        done = list[Any]()

        def shut_down(client: Any) -> None:
            shut.append(harness.now() - began)
            if len(shut) == ends:
                done[0].set()

        monkeypatch.setattr(session, "end_background", lambda client, signal: done.append(signal))
        monkeypatch.setattr(session, "shut_down", shut_down)
        began = harness.now()
        await transport.close()
        took = harness.now() - began
        assert took <= 2.0 + 0.001
        assert took == pytest.approx(shut[-1]) or ends == 1000
        assert (shut[0] < 0.2) is not up

    harness.run(body)
