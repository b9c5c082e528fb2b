"""Hazelcast's first connection: members that accept it and do not answer, time limits, and what is left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.hazelcast.connection import driver
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import BLOCKING, both
from support.patience import until
from support.stores.hazelcast_store import driver_of

SOON = 4.0
"""Seconds within which a request with a limit of a second has failed, on a busy machine, too."""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A member that accepts connections and never answers: it was stopped, or its Java collects garbage."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON)
        yield server


def url_of(*servers: socket.socket) -> str:
    return "hazelcast://" + ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in servers)


def of_the_driver() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("hazelcast")}


@both
def test_a_member_that_never_answers_a_login_blocks_nobody(harness: Harness, silent: socket.socket) -> None:
    """The first connection has the time limit of the request, and closing ends it; no thread is left."""

    async def body(harness: Harness) -> None:
        client = harness.client(url_of(silent))
        for _ in range(2):
            start = harness.now()
            with pytest.raises(StoreUnavailable, match="no member answered") as refused:
                await client.lock("x").acquire(timeout=1.0)
            assert harness.now() - start < SOON
            assert not refused.value.unknown
        start = harness.now()
        await client.close()
        assert harness.now() - start < SOON

    before = of_the_driver()
    worker = threading.Thread(target=harness.run, args=(body,), daemon=True)
    worker.start()
    worker.join(4 * SOON)
    assert not worker.is_alive(), "it is blocked"
    until(lambda: not of_the_driver() - before, SOON)


@both
def test_a_client_that_is_closed_while_it_connects_ends_its_requests(harness: Harness, silent: socket.socket) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(url_of(silent))
        asks = harness.spawn(lambda: client.store.inspect("x"))
        await harness.sleep(0.3)
        start = harness.now()
        await client.store.close()
        with pytest.raises(StoreUnavailable):
            await asks.result()
        assert harness.now() - start < SOON

    harness.run(body)


def test_a_login_without_an_answer_is_ended_so_that_the_next_member_is_tried(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tries one member after another, and has no limit for a login."""
    monkeypatch.setattr(driver, "CONNECT_WITHIN", 2.0)
    monkeypatch.setattr(driver, "LOGIN_AT_LEAST", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(SOON)

        async def body(harness: Harness) -> None:
            asks = harness.spawn(lambda: harness.client(url_of(silent, other)).store.inspect("x"))
            for server in (silent, other):
                end, _ = server.accept()
                with end:
                    end.settimeout(SOON)
                    said = b""
                    while more := end.recv(4096):
                        said += more
                    assert said.startswith(b"CP2")
            await harness.clients()[0].store.close()
            assert isinstance(await _ended(asks), StoreUnavailable)

        async def _ended(job: Any) -> BaseException | None:
            await job.join(SOON)
            error: BaseException | None = job.exception()
            return error

        BLOCKING.run(body)


@both
def test_hosts_that_drop_packets_share_the_time_of_the_request(harness: Harness) -> None:
    """Their backlog is full: the kernel drops what else wants to connect."""
    servers, taken = list[socket.socket](), list[socket.socket]()
    for _ in range(3):
        server = socket.create_server(("127.0.0.1", 0), backlog=0)
        servers.append(server)
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(server.getsockname())
            taken.append(one)

    async def body(harness: Harness) -> None:
        client = harness.client(url_of(*servers))
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await client.lock("x").acquire(timeout=1.0)
        assert harness.now() - start < 2.5

    try:
        harness.run(body)
    finally:
        for each in (*servers, *taken):
            each.close()


def test_who_waits_for_a_connection_is_told_when_the_driver_gives_up() -> None:
    """And not at the end of the time that the request had."""
    runtime, answers = BlockingRuntime(), [True, False]
    ours = driver_of(runtime)
    ours._client = SimpleNamespace(
        _connection_manager=SimpleNamespace(active_connections={}),
        lifecycle_service=SimpleNamespace(is_running=lambda: answers.pop(0)),
    )
    start = runtime.now()
    with pytest.raises(StoreUnavailable):
        run_sync(ours.connected(start + 60.0))
    assert runtime.now() - start < SOON


@both
def test_the_members_are_known_only_some_time_after_the_connection(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        lists = [[], [], ["member"]]
        ours = driver_of(harness.runtime)
        ours._client = SimpleNamespace(
            _connection_manager=SimpleNamespace(active_connections={"m": 1}, initialized_on_cluster=lambda: True),
            lifecycle_service=SimpleNamespace(is_running=lambda: True),
            cluster_service=SimpleNamespace(get_members=lambda: lists.pop(0)),
        )
        assert await ours.members(harness.now() + SOON) == ["member"]

    harness.run(body)
