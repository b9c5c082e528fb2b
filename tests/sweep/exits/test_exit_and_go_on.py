"""An exception at every step of a wait on Redis, as a signal handler can raise it: the client goes on as before.

`test_exit_anywhere` does the same on a store in memory, for what is left behind. Here the connections are the matter:
they keep who connects or reads for all.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from leasehold import Client
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis.connection import channel, failover
from leasehold.stores.redis.connection.failover import SingleFlight
from support.striking import Striking, ended_by, tracing

CHANNEL, FAILOVER = channel.__file__, failover.__file__

LEASE = 60.0
"""Seconds; a waiter that misses its message learns of its grant at a third of them."""

SOON = LEASE / 6
"""Seconds in which all must be over."""


class StrikingIn(Striking):
    """A tracing function that raises in one file only."""

    def __init__(self, file: str, at: int, known: dict[CodeType, set[int]]) -> None:
        super().__init__(at, known)
        self._file = file

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return super().__call__(frame, event, arg) if frame.f_code.co_filename == self._file else None


def hand_over(looker: Client, client: Client, name: str, tracer: Callable[[], Any] = suppress) -> bool:
    """Let ``client`` wait for a lock until it reads messages, and then release it; return whether it was granted."""
    subscription, over = client.store._transport._subscription, threading.Event()  # type: ignore[attr-defined]
    hold = looker.lock(name, lease=LEASE).acquire()
    assert hold is not None

    def release() -> None:
        while subscription._reading is None and not over.wait(0.001):
            pass
        over.wait(0.01)
        hold.release()

    releasing = threading.Thread(target=release)
    releasing.start()
    try:
        with tracer():
            got = client.lock(name, lease=LEASE).acquire(timeout=SOON)
    finally:
        over.set()
        releasing.join()
    return got is not None and got.release()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # it was about to be kept
@pytest.mark.parametrize("subscribed", [False, True], ids=["the first wait", "a later wait"])
def test_a_client_goes_on_after_an_exception_at_any_step_of_a_wait(
    redis_server: Any, namespace: str, subscribed: bool, record_property: Callable[[str, object], None]
) -> None:
    known, where = dict[CodeType, set[int]](), list[str]()
    with Client.from_url(redis_server.url, namespace=namespace) as looker:
        for at in itertools.count():
            client = Client.from_url(redis_server.url, namespace=namespace)
            if subscribed:
                assert hand_over(looker, client, "before")
            striking = StrikingIn(CHANNEL, at, known)
            with suppress(SystemExit):
                hand_over(looker, client, f"struck {at}", partial(tracing, striking))
            if striking.where:
                assert hand_over(looker, client, "after"), f"{striking.where}: it receives no messages any more"
            closing = threading.Thread(target=client.close, daemon=True)
            closing.start()
            closing.join(SOON)
            assert not closing.is_alive(), f"{striking.where}: the close never ends"
            assert [info.name for info in looker.holds()] == [], striking.where
            if not striking.where:
                break
            where.append(striking.where)
    record_property("sum:exits at a step", len(where))
    assert any("_stop_reading" in one for one in where)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_the_next_caller_finds_the_server_after_an_exception_at_any_step() -> None:
    """Under Sentinel and on a cluster one caller looks for the server, and the others wait for it."""
    known, done, where = dict[CodeType, set[int]](), list[int](), list[str]()

    async def work() -> None:
        done.append(1)

    for at in itertools.count():
        flight, striking = SingleFlight(BlockingRuntime()), StrikingIn(FAILOVER, at, known)
        with ended_by(striking):
            finish(flight.run(work, SOON))
        if not striking.where:
            break
        where.append(striking.where)
        done.clear()
        finish(flight.run(work, 0.001))
        assert done, f"{striking.where}: nobody looks any more"
    assert where
