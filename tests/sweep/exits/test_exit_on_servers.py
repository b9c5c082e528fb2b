"""An exception at every step of a call on a real server, as a signal handler can raise it, while the client stays open.

All is free within the lease, and the client goes on. The sweep in memory is in ``test_exit_anywhere``: a server's store
has more steps, and what it shares between calls (a turn, a session, a connection) must not be left half done.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType

import pytest
from test_exit_anywhere import CALLS, LEASE

from leasehold import Client
from support.striking import Striking, ended_by

SERVERS = {
    "etcd": ("etcd_server", ""),
    "zookeeper": ("zookeeper_server", ""),
    "postgresql": ("postgres_server", ""),
    "postgresql-session": ("postgres_server", "?mode=session"),
    "mariadb": ("mariadb_url", ""),
    "mariadb-session": ("mariadb_url", "?mode=session"),
}
"""The fixture of each server, or of its URL, and the options of the URL."""

CASES = [
    *(
        (one, *case)
        for one in ("etcd", "zookeeper")
        for case in (("lock", False), ("semaphore", False), ("lock", True))
    ),
    # By day, `test_exit_on_databases` strikes in the stores of databases alone.
    *(
        pytest.param(one, "lock", False, marks=pytest.mark.nightly)
        for one in ("postgresql", "postgresql-session", "mariadb", "mariadb-session")
    ),
]
"""A server, a call, and whether each call is the first one of a client."""

FREE_WITHIN = LEASE + 4.0
"""Seconds: etcd counts whole seconds, and has a least lease."""

GOES_ON_WITHIN = 5.0
"""Seconds for the next acquire of the client; a turn that was left half done would not come for ever."""


def url_of(server: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a server."""
    fixture, options = SERVERS[server]
    found = request.getfixturevalue(fixture)
    return str(getattr(found, "url", found)) + options


def strikes(call: str, make: Callable[[], Client]) -> dict[str, str]:
    """Strike at each step of a call in turn, by clients as ``make`` returns them; return the names and the places."""
    known, where = dict[CodeType, set[int]](), dict[str, str]()
    for at in itertools.count():
        client, striking = make(), Striking(at, known)
        with ended_by(striking):
            CALLS[call](client, f"name {at}")
        if not striking.where:
            return where
        where[f"name {at}"] = striking.where
        with client.lock("goes on", lease=LEASE, timeout=GOES_ON_WITHIN):
            pass
    raise AssertionError("unreachable")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a connection that was about to be used is dropped
@pytest.mark.leaks(why="threads of a driver whose start was interrupted")
@pytest.mark.parametrize(("server", "call", "first"), CASES)
@pytest.mark.timeout(600)
def test_all_is_free_within_the_lease_and_the_client_goes_on(
    server: str,
    call: str,
    first: bool,
    namespace: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """With ``first`` each call is the first one of a client."""
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    with ExitStack() as stack:
        looker = stack.enter_context(Client.from_url(url_of(server, request), namespace=namespace))
        clients = [stack.enter_context(Client.from_url(url_of(server, request), namespace=namespace))]

        def make() -> Client:
            if first:
                clients.append(Client.from_url(url_of(server, request), namespace=namespace))
                clients[-2].close()
            return clients[-1]

        where = strikes(call, make)
        stack.callback(clients[-1].close)
        until = time.monotonic() + FREE_WITHIN
        while (left := list(looker.holds())) and time.monotonic() < until:
            time.sleep(0.05)
        assert [(info.name, where.get(info.name)) for info in left] == []
    record_property("sum:exits at a step of a server's store", len(where))
    assert len(where) > 300
