"""``mode=session``: an interruption at any step leaves a session that the release can end, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._sql.tables import LAYOUT
from leasehold.stores._sql.transport import Refused
from leasehold.stores.mysql.connection.base import Greeting, Refusal, Rows
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.session import MySQLSessionStore

TICKET = Ticket("t1", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=30.0))


class Connection:
    """One where each statement answers 1."""

    greeting = Greeting(session=7, read_only=False, galera=False)

    def __init__(self) -> None:
        self.marker = ""
        self.sent: list[bytes] = []
        self.refuses: Refusal | None = None

    async def run(self, statements: bytes, until: float) -> list[Rows]:
        self.sent.append(statements)
        refuses, self.refuses = self.refuses, None
        if refuses is not None:
            raise refuses
        return [[(1,)] for _ in statements.split(b"; ")]

    def usable(self) -> bool:
        return True


class Pool:
    """One of a single connection."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.given = self.dropped = 0
        self.interrupts = False

    async def take(self, until: float) -> tuple[Connection, bool]:
        return self.connection, False

    async def give(self, connection: Connection) -> None:
        self.given += 1
        if self.interrupts:
            raise KeyboardInterrupt

    def drop(self, connection: Connection) -> None:
        self.dropped += 1


async def writable(answer: Rows) -> None:
    """Take writes."""


class Store(MySQLSessionStore):
    """One without rows."""

    def __init__(self, pool: Pool) -> None:
        transport: Any = SimpleNamespace(pool=pool, where="h/d", database="d", demoted=writable)
        super().__init__(BlockingRuntime(), Settings("h/d", "d"), "n", transport)

    async def _take_token(self, session: Any, until: float) -> tuple[int, int]:
        return 1, LAYOUT

    async def _sweep(self, until: float) -> None:
        pass

    def acquire(self) -> object:
        return finish(self.try_acquire("x", TICKET, join=True, within=5))

    def leave(self) -> bool:
        return finish(self.release("x", TICKET, reason=ReleaseReason.RELEASE, within=5))


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def store(pool: Pool) -> Store:
    return Store(pool)


def test_an_interruption_before_the_token_is_taken_lets_the_release_free_the_lock(
    store: Store, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that was to take the token counted as going on, so that its session was left to it."""
    monkeypatch.setattr(store, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.acquire()
    assert store.leave()
    assert b"RELEASE_LOCK" in pool.connection.sent[-1]
    assert pool.given == 1


def test_an_interruption_after_the_grant_ends_the_session_once(
    store: Store, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._wait_queues, "granted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.acquire()
    assert store.leave()
    assert b"RELEASE_LOCK" in pool.connection.sent[-1]
    assert (pool.given, pool.dropped) == (1, 0)


def test_a_connection_that_was_given_back_is_not_ended_for_its_former_ticket(store: Store, pool: Pool) -> None:
    """It may belong to another hold, which a repeated release would end."""
    assert isinstance(store.acquire(), Granted)
    pool.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        store.leave()
    assert finish(store._broken.end(TICKET.id, 0.0)) is None
    assert pool.dropped == 0


def test_a_release_that_is_interrupted_while_its_session_is_busy_ends_that_session(
    store: Store, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in none of the tables of sessions, and its lock stayed."""
    assert isinstance(store.acquire(), Granted)
    monkeypatch.setattr(store._sessions, "has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.leave()
    assert store._broken._markers == {TICKET.id: pool.connection.marker}
    assert pool.dropped == 1


def test_a_connection_whose_request_for_a_lock_was_refused_is_not_kept(store: Store, pool: Pool) -> None:
    """The refusal may be that of the statement behind GET_LOCK: then the connection has the lock, and nobody knows."""
    pool.connection.refuses = Refusal(1317, "Query execution was interrupted", [[], [(1,)], [(1,)]])
    with pytest.raises(Refused):
        store.acquire()
    assert (pool.given, pool.dropped) == (0, 1)
