"""The transport of lease rows on MySQL and MariaDB: transactions, each on a connection from the pool.

Theory of operation
-------------------
A transaction is one request for each decision: its first statements go out with those that begin it, its last ones with
the commit. Nothing lasts before the commit is sent, so any earlier failure means "not applied". If no answer to the
commit comes, the outcome is unknown. But the server keeps the rows locked until it has decided, so the next request for
the same name waits for the outcome and finds it.

A client that is stopped or cut off in a transaction would keep a row locked until the server notices. So each
transaction sets the time after which the server ends a silent session to little more than the call may take. The
commit sets it back.

A connection with an unread reply is closed. A connection that the server closed while it was idle is noticed before it
is used. If it breaks at the first statement all the same, that is sent once more on a new connection.

A planned switch-over makes the primary read-only and leaves its connections open, while its name leads to another
server. Administrators could still write there. So each transaction asks in its first request whether the server takes
writes. If not, all connections are closed, and the transaction is run once more on a new one. Where the first request
is that of the commit, an administrator's writes stay on the old primary, but their answer counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._sql.transport import Outcome, Permit, Refused, Row, Semaphore, Statement, Transaction
from leasehold.stores.mysql.connection.base import (
    READ_ONLY_MODE,
    READ_ONLY_TRANSACTION,
    Connection,
    NoAnswer,
    Refusal,
    Rows,
    bind,
    is_read_only,
    joined,
    no_answer,
    refused,
)
from leasehold.stores.mysql.connection.handshake import ALONE_LIMITS, ASK_WRITABLE, is_off
from leasehold.stores.mysql.connection.pool import Pool
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.registry import load

T = TypeVar("T")

BEGIN, COMMIT, ROLLBACK = Statement("START TRANSACTION"), Statement("COMMIT"), Statement("ROLLBACK")

IDLE_LIFE = 300
"""Seconds after which the server may close an idle connection."""

GRACE = 1
"""Seconds that a session may be silent in a transaction, beyond the time limit of the call."""

RESTORE_TIMEOUT = Statement(f"SET SESSION wait_timeout = {IDLE_LIFE}, {ALONE_LIMITS}")

ROLL_BACK_WITHIN = 1.0
"""Seconds that a rollback may take; after that the connection is closed."""


READ_ONLY_NOW = "it runs in read-only mode"

AT_ONCE = 16
"""Transactions at a time, besides reserved ones; later calls wait."""


def limits(seconds: float) -> Statement:
    """Return what limits a transaction: its waits for locks of rows and tables, and its silence."""
    wait = max(int(seconds), 1)
    return Statement(
        f"SET SESSION innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}, wait_timeout = {wait + 1 + GRACE}"
    )


class MySQLTransport:
    """See `leasehold.stores._sql.transport.SQLTransport`. It has no messages: waiters poll."""

    channel = ""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime = runtime
        self._settings = settings
        self.where = settings.where
        self.database = settings.database
        self.pool = Pool(runtime, self.connect, settings.where)
        self._permits = Semaphore(runtime, AT_ONCE)
        self._driver: Any = None
        if runtime.flavor is not Flavor.SIMULATED:
            module = "blocking" if runtime.flavor is Flavor.SYNC else "aio"
            self._driver = load(f"leasehold.stores.mysql.connection.{module}")

    async def connect(self, within: float) -> Connection:
        """Open a connection to a server that takes writes.

        A read-only one is refused: administrators could write even so, and lose it, since it is a replica.
        """
        connection: Connection = await self._driver.connect(self._settings, self._runtime, within)
        if connection.greeting.read_only:
            connection.abort()
            raise refused(self.where, Refusal(READ_ONLY_MODE, READ_ONLY_NOW))
        return connection

    async def transact(
        self, work: Callable[[Transaction], Coroutine[Any, Any, T]], *, within: float, reserved: bool = False
    ) -> T:
        until = self._runtime.now() + within
        if reserved:
            return await self._transact(work, until)
        permits, mine = self._permits, list[Permit]()
        try:
            if not await permits.take(until, mine):
                raise no_answer(self.where, f"all {AT_ONCE} connections of this client are busy", unknown=False)
            return await self._transact(work, until)
        finally:
            mine.clear()
            permits.notify()

    async def _transact(self, work: Callable[[Transaction], Coroutine[Any, Any, T]], until: float) -> T:
        moved = False
        while True:
            connection, new = await self.pool.take(until)
            one = ConnectionTransaction(connection, self.where, until, max(until - self._runtime.now(), 0.001))
            try:
                result = await work(one)
            except BaseException as error:
                read_only = is_read_only(error)
                one.broken = one.broken or read_only
                await self._end(one, error)
                if read_only:
                    await self.pool.retire()
                    again, moved = not moved, True
                elif again := not new and one.stale and isinstance(error, StoreUnavailable):
                    await self.pool.forget_idle()
                if not again:
                    raise
                continue
            await self._end(one, None)
            return result

    async def _end(self, one: ConnectionTransaction, error: BaseException | None) -> None:
        """Roll back what was not committed, and return the connection to the pool if it can be used again."""
        usable = False
        try:
            if isinstance(error, Exception | None) and not one.broken:  # not after an interrupt, which must not wait
                if one.open:
                    await one.connection.run(
                        joined((ROLLBACK, RESTORE_TIMEOUT)), self._runtime.now() + ROLL_BACK_WITHIN
                    )
                usable = True
        except (Refusal, NoAnswer):
            pass
        finally:
            if not usable:
                self.pool.drop(one.connection)
        if usable:
            await self.pool.give(one.connection)

    async def demoted(self, answer: Rows) -> Refused | None:
        """Return an error if the server takes no writes any more, by its answer to `ASK_WRITABLE`.

        Locks of its sessions exclude nobody on the new primary. None of the connections is used by another call again.
        """
        if is_off(answer[0][0]):
            return None
        await self.pool.retire()
        return refused(self.where, Refusal(READ_ONLY_MODE, READ_ONLY_NOW))

    async def listen(self, within: float) -> int:
        return 0

    def generation(self) -> int:
        return 0

    async def close(self) -> None:
        await self.pool.close()

    def after_fork(self) -> None:
        self.pool.after_fork()
        self._permits = Semaphore(self._runtime, AT_ONCE)


class ConnectionTransaction:
    """See `leasehold.stores._sql.transport.Transaction`.

    Attributes:
        open: whether it began and is not known to have ended.
        broken: whether its connection cannot be used any more.
        stale: whether the connection broke at the first request, so that nothing was done.
    """

    def __init__(self, connection: Connection, where: str, until: float, within: float) -> None:
        self.connection = connection
        self.open = self.broken = self.stale = False
        self._where = where
        self._until = until
        self._within = within

    async def ask(self, *statements: Statement) -> list[list[Row]]:
        before = self._beginning()
        first, self.open = not self.open, True
        try:
            answers = await self._run(joined((*before, *statements)), unknown=False)
        except Refusal as error:
            raise refused(self._where, error) from error
        except StoreUnavailable:
            self.stale = first
            raise
        self._check_writable(answers[: len(before)])
        return _lists(answers[len(before) :])

    async def commit(self, *statements: Statement) -> list[list[Row]]:
        before = self._beginning()
        self.open = True
        last = len(before) + len(statements)
        try:
            answers = await self._run(joined((*before, *statements, COMMIT, RESTORE_TIMEOUT)), unknown=True)
        except Refusal as error:
            if len(error.answers) <= last:
                raise refused(self._where, error, committing=len(error.answers) == last) from error
            self.broken = True  # a node of Galera may confirm a commit and then report an error
            raise refused(self._where, error, committed=True) from error
        self.open = False
        self._check_writable(answers[: len(before)])
        return _lists(answers[len(before) : last])

    async def alone(self, statement: Statement) -> int | None:
        try:
            await self._run(bind(statement), unknown=True)
        except Refusal as error:
            failure = refused(self._where, error, committing=True)  # it may be that of the commit
            if failure.outcome is Outcome.UNKNOWN:
                self.broken = True
                raise failure from error
            if is_read_only(failure) and error.code != READ_ONLY_TRANSACTION:
                raise failure from error
            return None if failure.outcome is Outcome.LASTING or error.code == READ_ONLY_TRANSACTION else 0
        return self.connection.number()

    async def _run(self, request: bytes, *, unknown: bool) -> list[Rows]:
        """Send a request; without an answer the connection is broken, and ``unknown`` whether it was carried out.

        Raises:
            Refusal: an error reply.
            StoreUnavailable: no answer.
        """
        try:
            return await self.connection.run(request, self._until)
        except Refusal:
            raise
        except NoAnswer as error:
            self.broken = True
            raise no_answer(self._where, error, unknown=unknown) from error
        except BaseException:
            self.broken = True
            raise

    def _beginning(self) -> tuple[Statement, ...]:
        return () if self.open else (limits(self._within), BEGIN, ASK_WRITABLE)

    def _check_writable(self, beginning: Sequence[Rows]) -> None:
        """Raise an error if the server takes no writes, by its answers to the beginning, if they came just now."""
        if beginning and not is_off(beginning[-1][0][0]):
            raise refused(self._where, Refusal(READ_ONLY_MODE, READ_ONLY_NOW))


def _lists(answers: Sequence[Rows]) -> list[list[Row]]:
    return [list(rows) for rows in answers]
