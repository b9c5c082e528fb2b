"""An exception at every step of a database's store, as a signal handler can raise it: the client goes on.

It has a single permit for transactions here, so one that is lost is found at once, as is a connection that nobody
closes. The steps of the engine are those of `test_exit_anywhere`.
"""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from sweeping.places import place_of
from test_exit_anywhere import CALLS, LEASE

from leasehold import Client
from leasehold._runtimes import clock
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._sql.transport import LOOK_AGAIN, Permit, Semaphore
from leasehold.stores.mysql.connection import transport
from support.plugins.leaks import sockets
from support.striking import HOME, Striking, ended_by, tracing

STORES = f"{HOME}/stores/"

GOES_ON_WITHIN = 5.0
"""Seconds for the next acquire of the client; a lost permit would never come back."""

SOON = 10 * LOOK_AGAIN
"""Seconds in which a permit must come, also without a notification."""

NIGHTLY = pytest.mark.nightly

TURNS = {"the first call": 1, "a later call": 2}
"""How often an exception is raised at one place of a call: also as the release runs what the acquire has run."""


class StrikingInStores(Striking):
    """A tracing function that raises in the files of stores only."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return super().__call__(frame, event, arg) if frame.f_code.co_filename.startswith(STORES) else None


def left_open(before: set[str]) -> set[str]:
    """Return the sockets that this process has open, and had not ``before``."""
    if sockets() - before:
        gc.collect()  # the frames of an exception may refer to each other, and one of them to a connection
    return sockets() - before


async def use(semaphore: Semaphore, until: float) -> bool:
    mine: list[Permit] = []
    try:
        return await semaphore.take(until, mine)
    finally:
        mine.clear()
        semaphore.notify()


def use_by_a_waiter(semaphore: Semaphore, striking: Striking) -> None:
    """Use a permit that another thread has, which gives it back as soon as this one waits for it."""
    theirs, over = list[Permit](), threading.Event()
    assert finish(semaphore.take(0.0, theirs))

    def give() -> None:
        while not semaphore._queue and not over.wait(0.001):
            pass
        theirs.clear()
        semaphore.notify()

    giving = threading.Thread(target=give)
    giving.start()
    try:
        with tracing(striking):
            finish(use(semaphore, clock.boottime() + SOON))
    finally:
        over.set()
        giving.join()


def give_to_a_waiter(semaphore: Semaphore, striking: Striking) -> None:
    """Give a permit back for which another thread waits: that one gets it, whatever happens here."""
    got, mine = list[bool](), list[Permit]()
    assert finish(semaphore.take(0.0, mine))
    waiting = threading.Thread(target=lambda: got.append(finish(use(semaphore, clock.boottime() + SOON))))
    waiting.start()
    while not semaphore._queue:
        time.sleep(0.001)
    try:
        with tracing(striking):
            mine.clear()
            semaphore.notify()
    finally:
        waiting.join()
        assert got == [True], striking.where


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("work", [use_by_a_waiter, give_to_a_waiter])
def test_a_permit_comes_back_and_its_waiters_get_it(work: Callable[[Semaphore, Striking], None]) -> None:
    known, where, kept = dict[CodeType, set[int]](), list[str](), list[BaseException]()
    semaphore = Semaphore(BlockingRuntime(), 1)
    for at in itertools.count():
        striking = Striking(at, known)
        try:
            work(semaphore, striking)
        except SystemExit as error:
            kept.append(error)  # with the frames that it came through
        if not striking.where:
            break
        where.append(striking.where)
        assert finish(use(semaphore, clock.boottime() + SOON)), f"{striking.where}: the permit is lost"
    assert len(where) >= 5


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize(
    ("server", "call"),
    [
        *((server, "a later call") for server in ("postgresql", "postgresql-session", "mariadb", "mariadb-session")),
        *((server, "the first call") for server in ("postgresql", "mariadb")),
        *(pytest.param(f"{server}-session", "the first call", marks=NIGHTLY) for server in ("postgresql", "mariadb")),
    ],
)
@pytest.mark.timeout(300)
def test_no_permit_and_no_connection_is_lost(
    server: str,
    call: str,
    namespace: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    monkeypatch.setattr(transport, "AT_ONCE", 1)
    url = place_of(server, request, tmp_path).url
    if server.startswith("postgresql"):
        url += "&pool=1" if "?" in url else "?pool=1"
    known, where = dict[CodeType, set[int]](), dict[str, str]()
    with Client.from_url(url, namespace=namespace) as looker:
        assert list(looker.holds()) == []
        gc.collect()  # earlier tests may have left sockets behind
        before, client = sockets(), Client.from_url(url, namespace=namespace)
        for at in itertools.count():
            striking = StrikingInStores(at, known, turns=TURNS[call])
            with ended_by(striking):
                CALLS["lock"](client, f"name {at}")
            if not striking.where:
                break
            where[f"name {at}"] = striking.where
            with client.lock("goes on", lease=LEASE, timeout=GOES_ON_WITHIN):
                pass
            if call == "the first call":
                client.close()
                assert left_open(before) == set(), striking.where
                client = Client.from_url(url, namespace=namespace)
        client.close()
        assert left_open(before) == set()
        until = time.monotonic() + LEASE + 1.0
        while (left := list(looker.holds())) and time.monotonic() < until:
            time.sleep(0.05)
        assert [(info.name, where.get(info.name)) for info in left] == []
    record_property("sum:exits at a step of a database's store", len(where))
    assert len(where) > 100
