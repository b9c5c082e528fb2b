"""``mode=session``: a session belongs to one call at a time, and is looked after from its grant on."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from leasehold import AsyncClient, Cancellation, Client
from leasehold._runtimes.base import finish
from leasehold._url import parse
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.session import sessions
from leasehold.stores._sql.transport import Permit
from leasehold_lab.proxy.faults import Fault
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import MariaDBServer, PostgresServer
from support.flavors import both


class Database:
    """A server, what locks the rows of a namespace's names, and what ends its sessions that have a lock."""

    def __init__(
        self,
        url: str,
        connect: Callable[[], Any],
        lock_rows: Callable[[str], str],
        end_holders: Callable[[], object],
        sent: Callable[[str], bytes] = str.encode,
    ) -> None:
        self.url = f"{url}?mode=session"
        self.sent = sent  # what our client sends for a text
        self.end_holders = end_holders
        self._connect = connect
        self._lock_rows = lock_rows

    @contextmanager
    def names_locked(self, namespace: str) -> Iterator[None]:
        """Lock the rows of the names: no session can take a token meanwhile."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            cursor.execute("BEGIN")
            cursor.execute(self._lock_rows(namespace))
            assert cursor.fetchall()
            yield
            connection.rollback()
        finally:
            connection.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        ends = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
        rows = "SELECT id FROM leasehold_name WHERE position('{}'::bytea IN space) > 0 FOR UPDATE"
        return Database(
            server.url, lambda: psycopg.connect(server.url, autocommit=True), rows.format, lambda: server.query(ends)
        )
    url: str = request.getfixturevalue("mariadb_url")
    maria: MariaDBServer = request.getfixturevalue("mariadb_server")
    rows = "SELECT id FROM leasehold_name WHERE LOCATE('{}', space) FOR UPDATE"
    return Database(url, maria.connect, rows.format, maria.end_sessions, lambda text: text.encode().hex().encode())


def sessions_of(client: Client) -> Any:
    store: Any = client._core._engine.store
    return store._sessions


@both
def test_a_cancellation_while_the_token_is_taken_lets_only_one_in(
    database: Database, harness: Harness, namespace: str
) -> None:
    """Its release comes while another call uses the session; both gave the connection back, so two had it."""

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, namespace=namespace)
        await (await client.lock("x").acquire(timeout=5)).release()
        stop = Cancellation()
        with database.names_locked(namespace):
            job = harness.spawn(lambda: client.lock("x").acquire(timeout=20, cancel=stop))
            await harness.sleep(0.5)
            stop.cancel()
            await harness.sleep(0.5)
        assert await job.result() is None
        first = await client.lock("x").acquire(timeout=5)
        assert first is not None
        assert await client.lock("x").acquire(timeout=0.3) is None
        assert await first.release()
        assert await (await client.lock("x").acquire(timeout=5)).release()

    harness.run(body)


async def marks(client: AsyncClient) -> list[Any]:
    view = await client.inspect("x")
    return [] if view is None else [waiter.meta for waiter in view.waiters]


async def hit(fault: Fault) -> None:
    async with asyncio.timeout(10.0):
        while not fault.hits:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("cancelled", [0, 2], ids=["who writes", "for whom another writes"])
def test_the_row_of_a_cancelled_wait_is_removed(
    database: Database, namespace: str, cancelled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was still on its way when the release removed it in vain: people saw a waiter that had gone."""
    monkeypatch.setattr("leasehold.stores._sql.session.waiter_table.GRACE", 30.0)
    port = parse(database.url).hosts[0][1]

    async def body(proxy: FaultProxy) -> None:
        url = database.url.replace(f":{port}/", f":{proxy.port}/")
        async with (
            AsyncClient.from_url(url, namespace=namespace) as locks,
            AsyncClient.from_url(database.url, namespace=namespace) as others,
        ):
            hold = await others.lock("x").acquire(timeout=5)
            assert hold is not None
            first, second = (proxy.hold(where=database.sent(mark), nth=1) for mark in ("mark-0", "mark-2"))
            waits = list[asyncio.Task[Any]]()
            for number in range(3):
                lock = locks.lock("x", lease=60, meta=f"mark-{number}")
                waits.append(asyncio.ensure_future(lock.acquire(timeout=20)))
                await hit(first)  # who writes; the next one then writes its own row and that of the last one
            if cancelled:
                await asyncio.sleep(0.2)  # both wait for their turn
                first.remove()
                await hit(second)
            waits[cancelled].cancel()
            await asyncio.sleep(0.1)
            proxy.heal()
            with pytest.raises(asyncio.CancelledError):
                await waits[cancelled]
            limit = asyncio.get_running_loop().time() + 10.0
            while "mark-1" not in (found := await marks(others)) or f"mark-{cancelled}" in found:
                if asyncio.get_running_loop().time() > limit:
                    break
                await asyncio.sleep(0.05)
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
            await hold.release()
        assert "mark-1" in found
        assert f"mark-{cancelled}" not in found

    with FaultProxy(port) as proxy:
        asyncio.run(body(proxy))


def test_a_session_that_was_returned_is_left_alone(database: Database, namespace: str) -> None:
    """A renewal, or the look whether its connection has ended, may have begun before the release."""
    with Client.from_url(database.url, namespace=namespace) as client:
        hold = client.lock("a").acquire(timeout=5)
        assert hold is not None
        (old,) = sessions_of(client)._holds.values()
        hold.release()
        hold = client.lock("b").acquire(timeout=5)
        assert hold is not None
        (new,) = sessions_of(client)._holds.values()
        assert new.connection is old.connection
        with pytest.raises(StoreUnavailable):
            finish(sessions_of(client).ask(old, time.monotonic() + 5))
        sessions_of(client).lost(old)
        sessions_of(client).close(old)
        hold.renew()
        assert hold.release()


class Struck(BaseException):
    """An exception of a signal handler."""


def in_use(client: Client) -> list[Any]:
    """Return the connections of a client that are not idle."""
    gc.collect()
    store: Any = client._core._engine.store
    if hasattr(store, "mysql"):
        return list(store.mysql.pool._used)
    return [one for one in store._postgres._connections if one not in (*store._postgres._sessions, *idle(store))]


def idle(store: Any) -> list[Any]:
    return [one for pool in (store._postgres._pool, store._postgres._reserved) for one in pool._idle]


def strike_after(owner: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the next call of a method raise, after it has done its work, as a handler may at the end of any call."""
    call, struck = getattr(owner, method), list[bool]()

    def stroke(*args: Any, **options: Any) -> Any:
        result = call(*args, **options)
        if not struck:
            struck.append(True)
            if inspect.iscoroutine(result):
                finish(result)
            raise Struck
        return result

    monkeypatch.setattr(owner, method, stroke)
    return struck


@pytest.mark.parametrize("step", ["taken", "granted", "asked", "tried"])
def test_an_exit_between_two_steps_loses_neither_lock_nor_connection(
    database: Database, namespace: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame alone had the session then, and its connection was kept open for as long as the client lived."""
    lease = 60.0
    with (
        Client.from_url(database.url, namespace=namespace) as client,
        Client.from_url(database.url, namespace=namespace) as other,
    ):
        client.lock("first").acquire(timeout=5).release()  # type: ignore[union-attr]
        of = sessions_of(client)
        if step in ("taken", "asked"):
            hold = client.lock("x", lease=lease).acquire(timeout=5)
            assert hold is not None
            struck = strike_after(of, "take" if step == "taken" else "ask", monkeypatch)
            with pytest.raises(Struck):
                hold.release()
        else:
            store: Any = client._core._engine.store
            struck = strike_after(*((of, "try_lock") if step == "tried" else (store, "_granted")), monkeypatch)
            with pytest.raises(Struck):
                client.lock("x", lease=lease).acquire(timeout=5)
        assert struck
        assert in_use(client) == []
        hold = other.lock("x", lease=lease).acquire(timeout=5)
        assert hold is not None
        assert hold.release()


def test_a_hold_is_watched_that_is_granted_as_the_watch_of_the_last_one_ends(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that finds no hold left is stopped there: a grant took it for one that goes on."""
    any_held, slow = sessions.Sessions.any_held, threading.Event()

    def slowly(mine: Any) -> bool:
        held = any_held(mine)
        if not held and slow.is_set():
            time.sleep(0.5)
        return held

    monkeypatch.setattr(sessions.Sessions, "any_held", slowly)
    with Client.from_url(database.url, namespace=namespace) as client:
        hold = client.lock("a").acquire(timeout=5)
        assert hold is not None
        slow.set()
        hold.release()
        time.sleep(0.2)
        hold = client.lock("b", lease=60).acquire(timeout=5)
        assert hold is not None
        slow.clear()
        lost = threading.Event()
        hold.on_lost(lambda error: lost.set())
        time.sleep(0.6)
        database.end_holders()
        assert lost.wait(5), "it learns of that at a third of its lease"


def test_a_release_during_a_renewal_does_not_take_its_answer_for_the_end_of_the_session(
    mariadb_url: str, namespace: str
) -> None:
    with Client.from_url(f"{mariadb_url}?mode=session", namespace=namespace) as client:
        hold = client.lock("x", lease=60).acquire(timeout=5)
        assert hold is not None
        (session,) = sessions_of(client)._holds.values()
        mine = list[Permit]()
        assert finish(session.mutex.take(time.monotonic() + 5, mine))
        raw = session.connection._connection
        raw._execute_command(3, b"SELECT 1")  # the answer arrives, and its reader has not had its turn
        time.sleep(0.2)
        released: list[object] = []

        def release() -> None:
            try:
                released.append(hold.release())
            except Exception as error:
                released.append(error)

        thread = threading.Thread(target=release)
        thread.start()
        thread.join(0.5)
        raw._read_query_result()
        mine.clear()
        session.mutex.notify()
        thread.join()
        assert released == [True]
