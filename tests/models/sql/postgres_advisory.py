"""The advisory locks of a modelled PostgreSQL, and its statements of ``mode=session`` that are no work for SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from leasehold.stores._sql.transport import Row, Value
from leasehold.stores.postgres import advisory
from models.sql.server import Session, SQLServerModel

ENTRY = (
    advisory.GRANT[advisory.GRANT.index("INSERT INTO") : advisory.GRANT.index("RETURNING token")]
    .replace("granted.id", "$8")
    .replace("granted.fence", "$9")
    .replace("FROM granted", "WHERE true")
)
"""What a grant writes down at last: (those of `advisory.GRANT`, id, fence)."""

VOID: list[Row] = [("",)]
"""What a function returns that returns nothing."""


S = TypeVar("S", bound=Session)


class AdvisoryLocks(Generic[S]):
    """Those of one server, which has them as its own."""

    def __init__(self, server: SQLServerModel[S], translated: Callable[[str], str]) -> None:
        self._server = server
        self._entry = translated(ENTRY)
        self._locks = server.own
        self._statements: Mapping[str, Callable[..., list[Row] | None]] = {
            advisory.TRY: self._try,
            advisory.WAIT: self._wait,
            advisory.UNLOCK: self._unlock,
            advisory.GRANT: self._grant,
            advisory.LOCKS: self._known,
            advisory.QUEUED: self._queued,
            advisory.END: self._terminated,
            advisory.END + advisory.OF_SERVER: self._terminated_of,
        }

    def knows(self, text: str) -> bool:
        """Return whether a statement is one of those."""
        return text in self._statements

    def carry_out(self, session: S, text: str, args: Sequence[Value]) -> list[Row] | None:
        """Return the rows of a statement; None if it waits for a lock."""
        return self._statements[text](session, *args)

    # --- statements --------------------------------------------------------------------------------------------

    def _try(self, session: S, key: int) -> list[Row]:
        return [(int(self._locks.lock(key, session)),)]

    def _wait(self, session: S, key: int) -> list[Row] | None:
        if self._locks.lock(key, session):
            return VOID
        self._locks.wait(key, session)
        session.since = self._server.scheduler.time
        return None

    def _unlock(self, session: S, key: int) -> list[Row]:
        had = self._locks.owner(key) is session
        if had:
            self._server.hand_over(self._locks.unlock(key, session))
        return [(int(had),)]

    def _known(self, session: S) -> list[Row]:
        return [(who.number, key, 0) for key, who in self._locks.known()]

    def _queued(self, session: S, pid: int, key: int) -> list[Row]:
        found = [who for known, who in self._locks.known() if known == key and who.number == pid]
        return [(int(self._locks.owner(key) is who),) for who in found]

    def _terminated(self, session: S, pid: int, key: int) -> list[Row]:
        """End a session that has this lock, or waits for it."""
        found = [who for known, who in self._locks.known() if known == key and who.number == pid]
        for who in found:
            self._server.terminate(who)
        return [(1,) for _ in found]

    def _terminated_of(self, session: S, pid: int, key: int, starts: int) -> list[Row]:
        """The same, of a session of this server since its last start."""
        return self._terminated(session, pid, key) if starts == self._server.starts else []

    def _grant(self, session: S, *args: Any) -> list[Row]:
        """Do what the one statement does that changes three tables."""
        execute = self._server.tables.db.execute
        space, name, ticket = args[:3]
        found = execute("SELECT id FROM leasehold_name WHERE space = ? AND name = ?", (space, name)).fetchone()
        if found is None:
            return []
        fence, version = execute("SELECT fence, version FROM leasehold_meta").fetchone()
        execute(
            "UPDATE leasehold_name SET used = server_clock(), fence = max(fence + 1, server_clock() / 1000, ?) "
            "WHERE id = ?",
            (fence + 1, *found),
        )
        (token,) = execute("SELECT fence FROM leasehold_name WHERE id = ?", found).fetchone()
        execute(
            "DELETE FROM leasehold_entry WHERE name_id = ? AND ticket <> ? "
            "AND (place = 0 OR expires + lease < server_clock())",
            (*found, ticket),
        )
        execute(self._entry, (*args, *found, token))
        return [(token, version)]
