"""A model of PostgreSQL: the shipped statements, on rows in memory, with the locks of rows and of sessions.

Theory of operation
-------------------
SQLite runs the statements, each at once and by the model's clock, after a few words of PostgreSQL's were put into
SQLite's. What SQLite has not is modelled here: transactions of many connections side by side, at READ COMMITTED, locks
of rows that are waited for in turn (``FOR UPDATE``) or passed over (``SKIP LOCKED``), and their time-outs. Our
transactions write in their last batch only, the one with the COMMIT, which is carried out in one piece; a model that is
asked for more says so.

For ``mode=session`` there are advisory locks of sessions, which are waited for in turn, and go when the session ends:
because its client is gone, which one that waits notices within a second; because it said nothing for its
``idle_session_timeout``; or because another session ended it, which is answered before it is gone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from leasehold.stores._sql.tables import split
from leasehold.stores._sql.transport import Row, Statement, Value
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.connection.base import WHO
from leasehold.stores.postgres.connection.errors import ServerError
from leasehold.stores.postgres.connection.exchange import COMMIT, Alone
from leasehold.stores.postgres.connection.transaction import BEGIN, LIMITS, ROLLBACK
from leasehold.stores.postgres.statements import CLOCK, DROP_CELLS, script
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection
from models.sql.postgres_advisory import VOID, AdvisoryLocks
from models.sql.rows import NAME, Tables
from models.sql.server import Session, SQLServerModel

VERSION = 150_000

WORDS = (
    (r"\$(\d+)", r"?\1"),
    (r"::(bigint|bytea|text|int)", ""),
    (r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?", ""),
    (r"(?i)\bgreatest\(", "max("),
    (r"\(\s*\(SELECT", "(SELECT * FROM (SELECT"),
    (r"UNION ALL\s*\(SELECT", "UNION ALL SELECT * FROM (SELECT"),
    (r"\bstrpos\(", "instr("),
    (r"FROM leasehold_meta ON CONFLICT", "FROM leasehold_meta WHERE true ON CONFLICT"),
    (r"BIGINT GENERATED ALWAYS AS IDENTITY", "INTEGER"),
    (r"BYTEA", "BLOB"),
    (r'COLLATE "C"', ""),
    (r"WITH \(fillfactor = 70\)", ""),
)
"""PostgreSQL's words, and SQLite's."""


@cache
def translated(text: str) -> str:
    """Say a statement in SQLite's words."""
    text = text.replace(CLOCK, "server_clock()")
    for theirs, ours in WORDS:
        text = re.sub(theirs, ours, text)
    return text


@cache
def _tables() -> Tables:
    return Tables(split(script("schema")), translated)


@dataclass(eq=False)
class Backend(Session):
    """What serves one connection.

    Attributes:
        failed: whether its transaction can only be rolled back.
        limit: seconds that a statement of the transaction may take.
        idle: seconds after which it is ended that says nothing in a transaction.
        silent: seconds after which it is ended that says nothing otherwise; 0: never.
        batch: what it carries out: its statements, and the rows of those that are done.
        notes: channels and messages that a commit sends, each once.

    """

    failed: bool = False
    limit: float = 0.0
    idle: float = 0.0
    silent: float = 0.0
    batch: Sequence[Statement] = ()
    done: list[Sequence[Row]] = field(default_factory=list[Sequence[Row]])
    notes: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])


class PostgresModel(SQLServerModel[Backend]):
    """The server.

    Attributes:
        plain: whether it carries out the statements of the plain case.

    """

    handed = VOID
    plain = True

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "postgres") -> None:
        super().__init__(scheduler, _tables(), rate=rate, name=name)
        self._advisory: AdvisoryLocks[Backend] = AdvisoryLocks(self, translated)
        self._listening: dict[str, dict[int, Backend]] = {}

    def _end(self, session: Backend) -> None:
        for backends in self._listening.values():
            backends.pop(session.number, None)
        super()._end(session)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Connection, request: Sequence[Statement]) -> None:
        """Carry out a batch; one without statements is a greeting, answered with the session's number."""
        if not request:
            self._sessions[line.number] = Backend(line)
            self._tell(line, line.number)
            return
        session = self._sessions.get(line.number)
        if session is None:  # it was ended, as by a restart
            return
        self.counts.commands += 1
        session.batch, session.done = request, []
        session.turns += 1
        self._go_on(session)

    def _go_on(self, session: Backend) -> None:
        """Carry out the rest of a batch, as far as no lock is in the way."""
        if session.number not in self._sessions:
            return
        self.tables.clock = self.now_us() * 1000
        try:
            while len(session.done) < len(session.batch):
                rows = self._carry_out(session, session.batch[len(session.done)])
                if rows is None:
                    return
                session.done.append(rows)
        except ServerError as error:
            self.note(f"refuses {session.line.client.name} {error.code}")
            self._fail(session, error)
            return
        self.note(f"answers {session.line.client.name} {len(session.batch)} {_counted(session.done)}")
        self._answered(session, session.done)

    def _answered(self, session: Backend, answer: Any) -> None:
        self._tell(session.line, answer)
        if session.gone:
            self._end(session)
        elif seconds := session.idle if session.begun else session.silent:
            self._stands_idle(session, seconds)

    def _tell(self, line: Connection, answer: Any) -> None:
        if line.open:
            line.tell(answer)

    # --- statements --------------------------------------------------------------------------------------------

    def _carry_out(self, session: Backend, statement: Statement) -> list[Row] | None:
        """Return the rows of a statement; None if it waits for a lock."""
        text, args = statement
        if text == BEGIN.text:
            session.begun, session.failed = True, False
            return []
        if statement is COMMIT or text == ROLLBACK.text:
            for channel, message in session.notes if statement is COMMIT else ():
                self._notify(channel, message)
            self._finish(session)
            return []
        if session.failed:
            raise ServerError("25P02", "current transaction is aborted", fatal=False, in_commit=False)
        if text == LIMITS:
            session.limit, session.idle = (float(str(arg).removesuffix("ms")) / 1000 for arg in args)
            return [("", "", "")]
        if text == WHO.text:
            return [(session.number, VERSION, 0, 0, self.starts)]
        alone = isinstance(statement, Alone)
        if (session.batch[-1] is COMMIT or alone) and self._conflict(session):
            raise ServerError("40001", "could not serialize access", fatal=False, in_commit=False)
        if alone:
            return self._plain(session, text, args)
        if text.startswith("LISTEN"):
            self._listening.setdefault(text.split('"')[1], {})[session.number] = session
            return []
        if text.startswith("SELECT pg_notify"):
            session.notes[str(args[0]), str(args[1])] = None
            return [("",)]
        if text == advisory.SESSION_LIMITS:
            session.silent = float(str(args[0]).removesuffix("ms")) / 1000
            return [("",)]
        if self._advisory.knows(text):
            return self._advisory.carry_out(session, text, args)
        if "set_config" in text or "pg_advisory_lock_shared" in text:
            return [("",)]
        if "pg_locks" in text:
            return [(channel,) for channel in args[1::2] if self._listening.get(str(channel))]
        if text == DROP_CELLS:
            return self._drop_cells(session, args)
        rows: list[Row] = self.tables.db.execute(translated(text), args).fetchall()
        if "FOR UPDATE" not in text or text.lstrip().startswith("DELETE"):
            self._check(session, text)
            return rows
        if "SKIP LOCKED" in text:
            return [row for row in rows if self._locks.take(_row_of(text, row, args), session)]
        return rows if not rows or self._lock(session, _row_of(text, rows[0], args)) else None

    def _plain(self, session: Backend, text: str, args: Sequence[Any]) -> list[Row]:
        """Return the rows of a statement that is a transaction of its own; it passes over a locked row."""
        if not self.plain:
            raise ServerError("42501", "permission denied", fatal=False, in_commit=False)
        found = self.tables.db.execute(NAME, args[:2]).fetchone()
        if found is not None and not self._locks.take(found[0], session):
            return []
        rows: list[Row] = self.tables.db.execute(translated(text), args).fetchall()
        self._finish(session)
        return rows

    def _drop_cells(self, session: Backend, args: Sequence[Any]) -> list[Row]:
        """Drop cells that are not locked."""
        (most,) = args
        asked = "SELECT space, name FROM leasehold_cell WHERE expires < server_clock() ORDER BY expires"
        for space, name in self.tables.db.execute(asked).fetchall():
            if most and self._locks.take((space, name), session):
                self.tables.db.execute("DELETE FROM leasehold_cell WHERE space = ? AND name = ?", (space, name))
                most -= 1
        return []

    def _check(self, session: Backend, text: str) -> None:
        if session.begun and not text.lstrip().startswith("SELECT") and session.batch[-1] is not COMMIT:
            raise NotImplementedError("the model of PostgreSQL writes in the batch of a commit only")

    def _conflict(self, session: Backend) -> bool:
        if self.scheduler.time >= self.conflicts_until or session.done:
            return False
        return self.scheduler.random.random() < 0.5

    def _notify(self, channel: str, message: str) -> None:
        for session in list(self._listening.get(channel, {}).values()):
            line = session.line
            self.counts.messages += 1
            if line.link.deaf and self.scheduler.random.random() < line.link.deaf:
                self.counts.lost_messages += 1
            elif line.open:
                line.tell(message, True)

    # --- locks of rows ------------------------------------------------------------------------------------------------

    def _lock(self, session: Backend, row: Hashable) -> bool:
        """Lock a row, or wait for it; return whether it is locked."""
        if self._locks.take(row, session):
            return True
        self._locks.wait(row, session)
        turn, when = session.turns, self.scheduler.time + session.limit
        self.scheduler.at(when, self.machine, lambda: self._lock_timeout(session, turn))
        return False

    def _lock_timeout(self, session: Backend, turn: int) -> None:
        if self._locks.waits(session) and session.turns == turn:
            text = "canceling statement due to statement timeout"  # which is as long, and begins before the wait
            error = ServerError("57014", text, fatal=False, in_commit=False)
            self._fail(session, error)

    def _fail(self, session: Backend, error: ServerError) -> None:
        """Refuse a statement: its transaction has nothing locked any more, and can only be rolled back."""
        session.failed = session.begun
        self._let_go(session)
        self._answered(session, error)

    def _finish(self, session: Backend) -> None:
        """End a transaction."""
        session.begun = session.failed = False
        self._let_go(session)

    def _let_go(self, session: Backend) -> None:
        session.notes.clear()
        self._go_on_with(self._locks.let_go(session))


def _counted(done: Sequence[Sequence[Row]]) -> str:
    return " ".join(str(len(rows)) for rows in done)


def _row_of(text: str, row: Row, args: tuple[Value, ...]) -> Hashable:
    """Return what names a row that was found: of a cell its key, else its id, which was read or asked for."""
    if "leasehold_cell" in text:
        return args[0], args[1]
    number: Value = row[0] if text.lstrip().startswith("SELECT id") else args[0]
    return number
