"""PostgreSQL: waiters of a client whose connection for messages is refused, as by a server that has too many, poll."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold.stores._sql import rows, waiting
from leasehold.stores.postgres.connection import notifications
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.flavors import both

WAITERS = 10

WATCHED_FOR = 2.0


@pytest.fixture
def messages_by(postgres_server: PostgresServer) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy through which only the connection for messages goes, and the URL."""
    with FaultProxy(postgres_server.port) as proxy:
        yield proxy, f"{postgres_server.url}?listen=127.0.0.1:{proxy.port}"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tickets of transactions that lock a name's row to take a step."""
    taken, original = list[str](), rows.advance

    async def counted(tx: Any, dialect: Any, targets: Any, take: Any) -> Any:
        taken.extend(ticket for _, ticket in targets)
        return await original(tx, dialect, targets, take)

    monkeypatch.setattr(rows, "advance", counted)
    return taken


async def comes(harness: Harness, what: Callable[[], object], limit: float = 20.0) -> None:
    until = harness.now() + limit
    while not what():
        assert harness.now() < until
        await harness.sleep(0.02)


async def waiters(harness: Harness, client: Any, count: int) -> None:
    until = harness.now() + 20.0
    while (info := await client.inspect("x")) is None or len(info.waiters) != count:
        assert harness.now() < until, info
        await harness.sleep(0.02)


@both
def test_waiters_without_a_subscription_poll(
    messages_by: tuple[FaultProxy, str], namespace: str, harness: Harness, steps: list[str]
) -> None:
    """They do not claim again and again, each under the row's lock; and each gets the name when it is free."""
    proxy, url = messages_by
    proxy.stop()

    async def body(harness: Harness) -> None:
        holder, client = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x", lease=30.0).acquire(timeout=5)
        assert hold is not None

        async def turn() -> bool:
            got = await client.lock("x", lease=30.0).acquire(timeout=40)
            if got is not None:
                await got.release()
            return got is not None

        jobs = [harness.spawn(turn) for _ in range(WAITERS)]
        await waiters(harness, holder, WAITERS)
        steps.clear()
        await harness.sleep(WATCHED_FOR)
        assert len(steps) <= 2 * WAITERS
        await hold.release()
        assert [await job.result() for job in jobs] == [True] * WAITERS

    harness.run(body)


@both
def test_a_subscription_is_tried_again(
    messages_by: tuple[FaultProxy, str], namespace: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever more seldom; when it succeeds, the next message comes there, and nobody polls any more."""
    proxy, url = messages_by
    proxy.stop()
    seen, original = list[float](), waiting.Waiting._refused

    def noted(self: waiting.Waiting) -> None:
        original(self)
        seen.append(self._pause)

    monkeypatch.setattr(waiting.Waiting, "_refused", noted)

    async def body(harness: Harness) -> None:
        holder, client = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x", lease=30.0).acquire(timeout=5)
        assert hold is not None
        job = harness.spawn(lambda: client.lock("x", lease=30.0).acquire(timeout=60))
        await comes(harness, lambda: len(seen) >= 3)
        assert seen[:3] == [waiting.FIRST_PAUSE, 2 * waiting.FIRST_PAUSE, 4 * waiting.FIRST_PAUSE]
        store: Any = client.store
        assert store._waiting._poller._watched
        proxy.start()
        await comes(harness, lambda: store._transport.channel)
        await comes(harness, lambda: not store._waiting._poller._watched)
        await hold.release()
        got = await job.result()
        assert got is not None
        await got.release()
        assert store._waiting._pause == 0.0

    harness.run(body)


@contextlib.contextmanager
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port where connections are accepted and never answered, and these."""
    listener, accepted = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listener.getsockname()[1], accepted
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for link in (listener, *accepted):
            link.close()


@both
def test_who_tries_to_subscribe_again_gets_the_name_meanwhile(
    postgres_server: PostgresServer, namespace: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the other end is silent, an attempt takes its whole time, and a hand-over does not wait for it."""
    monkeypatch.setattr(waiting, "LISTEN_WITHIN", 0.2)
    monkeypatch.setattr(notifications, "LISTEN_WITHIN", 0.2)

    async def body(harness: Harness, port: int, accepted: list[socket.socket]) -> None:
        url = f"{postgres_server.url}?listen=127.0.0.1:{port}"
        holder, client = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x", lease=60.0).acquire(timeout=5)
        assert hold is not None
        jobs = [harness.spawn(lambda: client.lock("x", lease=60.0).acquire(timeout=60)) for _ in range(3)]
        await waiters(harness, holder, 3)
        store: Any = client.store
        await comes(harness, lambda: store._waiting._pause)
        for module in (waiting, notifications):
            monkeypatch.setattr(module, "LISTEN_WITHIN", 20.0)
        before = len(accepted)
        await comes(harness, lambda: len(accepted) > before)
        await harness.sleep(2 * waiting.FIRST_PAUSE)  # the time for others to try, too
        start = harness.now()
        await hold.release()
        for _ in range(3):
            await comes(harness, lambda: any(job.done() for job in jobs))
            (job, *_) = [job for job in jobs if job.done()]
            jobs.remove(job)
            got = await job.result()
            assert got is not None
            await got.release()
        assert harness.now() - start < 15.0
        for link in accepted:
            link.shutdown(socket.SHUT_RDWR)  # ends the attempt

    with silent() as (port, accepted):
        harness.run(lambda harness: body(harness, port, accepted))
