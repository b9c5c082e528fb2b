"""One transaction: it begins in the batch of its first statements, with time limits of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.transport import Outcome, Row, Statement
from leasehold.stores.postgres.connection.errors import Broken, ServerError, outcome_of
from leasehold.stores.postgres.connection.exchange import COMMIT, Alone, Connection, Steps

T = TypeVar("T")

STALL = 5.0
"""Seconds after which the server ends an idle transaction."""

BEGIN = Statement("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
ROLLBACK = Statement("ROLLBACK")
LIMITS = (
    "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true), "
    "set_config('idle_in_transaction_session_timeout', $2, true)"
)


OF_POOLERS = ("08", "58")
"""Prefixes of the codes of a pooler that has lost its server: the outcome of the request is unknown."""

READ_ONLY = "25006"
"""The session may only read, unless a transaction says otherwise."""


class Run(Protocol):
    """Drives an exchange to its end, before a deadline on the boot-time clock."""

    async def __call__(self, steps: Steps[T], until: float | None) -> T: ...


class PostgresTransaction:
    """See `leasehold.stores._sql.transport.Transaction`.

    Attributes:
        committing: whether the server may have committed.
        stale: whether the connection broke at the first statements, so that nothing was done.
    """

    def __init__(self, runtime: Runtime, run: Run, connection: Connection, until: float) -> None:
        self._runtime = runtime
        self._run = run
        self._connection = connection
        self._until = until
        self._begun = False
        self._over = False
        self.committing = self.stale = False

    async def ask(self, *statements: Statement) -> list[list[Row]]:
        return await self._batch(statements)

    async def commit(self, *statements: Statement) -> list[list[Row]]:
        self.committing = True
        results = await self._batch((*statements, COMMIT))
        self._over, self.committing = True, False
        return results[:-1]

    async def alone(self, statement: Statement) -> int | None:
        self.committing = True
        try:
            (rows,) = await self._run(self._connection.exchange([Alone(*statement)]), self._until)
        except ServerError as error:
            error.in_commit = error.in_commit or error.code.startswith(OF_POOLERS)
            outcome = outcome_of(error.code, in_commit=error.in_commit)
            if error.fatal or outcome is Outcome.UNKNOWN:
                raise
            self.committing = False
            lasts = (outcome is Outcome.LASTING and not error.stale) or error.code == READ_ONLY
            return None if lasts else 0
        self.committing = False
        number: int = rows[0][0] if rows else 0
        return number

    async def end(self) -> None:
        """Roll back what was not committed."""
        if self._begun and not self._over:
            await self._run(self._connection.exchange([ROLLBACK]), self._until)

    async def abort(self, error: ServerError | None) -> bool:
        """Roll back after an error; return whether the connection may be used again."""
        if not self._begun or self._over:
            return error is None
        if error is not None and error.fatal:
            return False
        try:
            await self._run(self._connection.exchange([ROLLBACK]), self._until)
        except (TimeoutError, Broken, ServerError):
            return False
        return True

    async def _batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        if self._begun:
            return await self._run(self._connection.exchange(statements), self._until)
        self._begun = True
        left = max(int((self._until - self._runtime.now()) * 900), 1)
        limits = Statement(LIMITS, (f"{left}ms", f"{int(STALL * 1000)}ms"))
        try:
            return (await self._run(self._connection.exchange([BEGIN, limits, *statements]), self._until))[2:]
        except Broken:
            self.stale = not self.committing
            raise
