"""An exception at every step of a call on Redis, as a signal handler can raise it: the client goes on as before.

`test_exit_anywhere` does the same on a store in memory, for what is left behind. Here the connections are the matter:
they keep who connects or reads for all. A Redlock keeps which of its nodes have not answered.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from leasehold import Client
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import LeaseholdError
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection import channel, failover, pipelining, replies
from leasehold.stores.redis.connection.failover import SingleFlight
from leasehold.stores.redis.redlock import node, nodes, quorum_call
from leasehold_lab.servers import RedlockNodes
from support.striking import Striking, ended_by, tracing

CHANNEL, FAILOVER = [channel.__file__], [failover.__file__]

QUORUM = [module.__file__ for module in (node, nodes, quorum_call, pipelining, replies)]
"""Where a caller sends to the nodes of a Redlock, and reads their answers."""

LEASE = 60.0
"""Seconds; a waiter that misses its message learns of its grant at a third of them."""

SOON = LEASE / 6
"""Seconds in which all must be over."""


class StrikingIn(Striking):
    """A tracing function that raises in some files only."""

    def __init__(
        self, files: Sequence[str], at: int, known: dict[CodeType, set[int]], *, turns: int = sys.maxsize
    ) -> None:
        super().__init__(at, known, turns=turns)
        self._files = files

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return super().__call__(frame, event, arg) if frame.f_code.co_filename in self._files else None


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
        assert done, f"{striking.where}: no check runs any more"
    assert where


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # it was about to be kept
def test_each_node_is_asked_after_an_exception_at_any_step_of_an_acquire_and_a_release(
    namespace: str, record_property: Callable[[str, object], None]
) -> None:
    """A request whose end was not recorded must not keep its node from being asked for ever."""
    known, where = dict[CodeType, set[int]](), ["the start"]
    with RedlockNodes(3) as group, Client.from_url(group.url, namespace=namespace, response_timeout=1.0) as locks:
        for at in itertools.count():
            start = time.monotonic()
            while not asks_all(locks, group, namespace, f"after {at}"):
                assert time.monotonic() - start < SOON, f"{where[-1]}: a node is not asked any more"
            striking = StrikingIn(QUORUM, at, known, turns=2)
            with suppress(SystemExit, LeaseholdError), tracing(striking):
                locks.lock(f"struck {at}", lease=LEASE).acquire(timeout=SOON).release()
            if not striking.where:
                break
            where.append(striking.where)
    record_property("sum:exits at a step", len(where))
    assert any(place.endswith(" in post") for place in where)
    assert any(place.endswith(" in end_request") for place in where)


def asks_all(locks: Client, group: RedlockNodes, namespace: str, name: str) -> bool:
    """Acquire and release a lock; return whether all nodes voted for it without further ado."""
    key, given_up = keys.node_keys(namespace, name)[0], time.monotonic() + 0.1
    with locks.lock(name, lease=LEASE, timeout=SOON):
        while not all(each.command("EXISTS", key) for each in group.nodes):
            if time.monotonic() > given_up:
                return False
    return True
