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
``idle_session_timeout``; or because somebody ended it, who is answered before it is gone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from leasehold.runtimes.virtual import Scheduler
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres.statements import CLOCK, DROP_CELLS, script
from leasehold.stores.sql import schema
from leasehold.testing.models.net import Host, Line
from leasehold.testing.models.postgres_advisory import AdvisoryLocks
from leasehold.testing.models.rows import Locks, Rows, Tables
from leasehold.testing.models.session_locks import ENDED_WITHIN, next_look
from leasehold.wires.postgres.base import WHO
from leasehold.wires.postgres.errors import ServerError
from leasehold.wires.postgres.link import COMMIT
from leasehold.wires.postgres.transaction import BEGIN, LIMITS, ROLLBACK
from leasehold.wires.sql import Row, Statement, Value

VERSION = 150_000

WORDS = (
    (r"\$(\d+)", r"?\1"),
    (r"::(bigint|bytea|text|int)", ""),
    (r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?", ""),
    (r"(?i)\bgreatest\(", "max("),
    (r"\(\s*\(SELECT", "(SELECT * FROM (SELECT"),
    (r"UNION ALL\s*\(SELECT", "UNION ALL SELECT * FROM (SELECT"),
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
    return Tables(schema.split(script()), translated)


@dataclass(eq=False)
class Backend:
    """What serves one connection.

    Attributes:
        begun: whether a transaction is open.
        failed: whether it can only be rolled back.
        gone: whether its client is, which one that waits notices late.
        limit: seconds that a statement of the transaction may take.
        idle: seconds after which it is ended that says nothing in a transaction.
        silent: seconds after which it is ended that says nothing otherwise; 0: never.
        since: when it began to wait for an advisory lock.
        batch: what it carries out: its statements, and the rows of those that are done.
        notes: channels and messages that a commit sends, each once.
        turns: counts what it was asked, so that a time-out knows whether it is still meant.

    """

    line: Line
    pid: int
    begun: bool = False
    failed: bool = False
    gone: bool = False
    limit: float = 0.0
    idle: float = 0.0
    silent: float = 0.0
    since: float = 0.0
    batch: Sequence[Statement] = ()
    done: list[list[Row]] = field(default_factory=list[list[Row]])
    notes: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])
    turns: int = 0


class PostgresModel(Host):
    """The server."""

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "postgres") -> None:
        super().__init__(scheduler, rate=rate, name=name)
        self.tables = _tables()
        self.tables.restore(self.tables.first)
        self._backends: dict[int, Backend] = {}
        self._locks = Locks[Backend]()
        self._advisory: AdvisoryLocks[Backend] = AdvisoryLocks(self, translated)
        self._listening: dict[str, dict[int, Backend]] = {}
        self.conflicts_until = 0.0

    # --- what may happen to it ---------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Row]]:
        """Return what is committed now."""
        return self.tables.rows()

    def restart(self, seconds: float, *, back_to: Rows | None = None) -> None:
        """End all connections and transactions, and be away; ``back_to``: come back with older rows."""
        super().restart(seconds)
        for backend in list(self._backends.values()):
            self._end(backend)
        if back_to is not None:
            self.note("lacks its last commits")
            self.tables.restore(back_to)

    def over(self, line: Line) -> None:
        """Take note that a line has ended; a server learns of it when the word arrives."""
        super().over(line)
        backend = self._backends.get(line.number)
        if backend is not None:
            when = self.arrival(line.link, line.link.requests_held, line.sent_until)
            self.scheduler.at(when, self.machine, lambda: self._ended(backend))

    def revoke(self, which: int) -> None:
        """End one of the sessions that have an advisory lock, if there is any."""
        if held := sorted(self._advisory.locks.owners(), key=lambda backend: backend.pid):
            self.terminate(held[which % len(held)])

    def _ended(self, backend: Backend) -> None:
        """Take note that the client is gone."""
        backend.gone = True
        if self._advisory.locks.waits(backend):
            when = next_look(backend.since, self.scheduler.time)
            self.scheduler.at(when, self.machine, lambda: self._end(backend))
        else:
            self._end(backend)

    def _end(self, backend: Backend) -> None:
        """End a session: all that it has is free."""
        if self._backends.pop(backend.line.number, None) is not None:
            for backends in self._listening.values():
                backends.pop(backend.line.number, None)
            self._finish(backend)
            self._advisory.end(backend)

    def terminate(self, backend: Backend) -> None:
        """End a session from outside, whatever it does."""
        self.note(f"ends the session of {backend.line.client.name}")

        def end() -> None:
            backend.line.end(arrives=False)
            self._end(backend)

        when = self.scheduler.time + ENDED_WITHIN * self.scheduler.random.random()
        self.scheduler.at(when, self.machine, end)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Line, request: Sequence[Statement]) -> None:
        """Carry out a batch; one without statements is a greeting, answered with the backend's number."""
        if not request:
            self._backends[line.number] = Backend(line, line.number)
            self._tell(line, line.number)
            return
        backend = self._backends.get(line.number)
        if backend is None:  # it was ended, as by a restart
            return
        self.counts.commands += 1
        backend.batch, backend.done = request, []
        backend.turns += 1
        self._go_on(backend)

    def go_on_with(self, heirs: Sequence[Backend]) -> None:
        """Carry out the rest of what they were asked, who had to wait for a lock."""
        for heir in heirs:
            self.scheduler.at(self.scheduler.time, self.machine, lambda heir=heir: self._go_on(heir))  # type: ignore[misc]

    def _go_on(self, backend: Backend) -> None:
        """Carry out the rest of a batch, as far as no lock is in the way."""
        if backend.line.number not in self._backends:
            return
        self.tables.clock = self.now_us() * 1000
        try:
            while len(backend.done) < len(backend.batch):
                rows = self._carry_out(backend, backend.batch[len(backend.done)])
                if rows is None:
                    return
                backend.done.append(rows)
        except ServerError as error:
            self.note(f"refuses {backend.line.client.name} {error.code}")
            self._fail(backend, error)
            return
        self.note(f"answers {backend.line.client.name} {len(backend.batch)} {_counted(backend.done)}")
        self._answered(backend, backend.done)

    def _answered(self, backend: Backend, answer: Any) -> None:
        self._tell(backend.line, answer)
        if backend.gone:
            self._end(backend)
        elif idle := backend.idle if backend.begun else backend.silent:  # it stands idle from now on
            turn, when = backend.turns, self.scheduler.time + idle
            self.scheduler.at(when, self.machine, lambda: self._time_out(backend, turn))

    def _time_out(self, backend: Backend, turn: int) -> None:
        if backend.turns == turn and backend.line.number in self._backends:
            self.note(f"ends the idle {'transaction' if backend.begun else 'session'} of {backend.line.client.name}")
            backend.line.end(arrives=False)
            self._end(backend)

    def _tell(self, line: Line, answer: Any) -> None:
        if line.open:
            line.tell(answer)

    # --- statements --------------------------------------------------------------------------------------------

    def _carry_out(self, backend: Backend, statement: Statement) -> list[Row] | None:
        """Return the rows of a statement; None if it waits for a lock."""
        text, args = statement
        if text == BEGIN.text:
            backend.begun, backend.failed = True, False
            return []
        if statement is COMMIT or text == ROLLBACK.text:
            for channel, message in backend.notes if statement is COMMIT else ():
                self._notify(channel, message)
            self._finish(backend)
            return []
        if backend.failed:
            raise ServerError("25P02", "current transaction is aborted", fatal=False, in_commit=False)
        if text == LIMITS:
            backend.limit, backend.idle = (float(str(arg).removesuffix("ms")) / 1000 for arg in args)
            return [("", "", "")]
        if text == WHO.text:
            return [(backend.pid, VERSION, 0, 0)]
        if backend.batch[-1] is COMMIT and self._conflict(backend):
            raise ServerError("40001", "could not serialize access", fatal=False, in_commit=False)
        if text.startswith("LISTEN"):
            self._listening.setdefault(text.split('"')[1], {})[backend.line.number] = backend
            return []
        if text.startswith("SELECT pg_notify"):
            backend.notes[str(args[0]), str(args[1])] = None
            return [("",)]
        if text == advisory.IDLE_END:
            backend.silent = float(str(args[0]).removesuffix("ms")) / 1000
            return [("",)]
        if self._advisory.knows(text):
            return self._advisory.carry_out(backend, text, args)
        if "set_config" in text or "pg_advisory_lock_shared" in text:
            return [("",)]
        if "pg_locks" in text:
            return [(channel,) for channel in args[1::2] if self._listening.get(str(channel))]
        if text == DROP_CELLS:
            return self._drop_cells(backend, args)
        rows: list[Row] = self.tables.db.execute(translated(text), args).fetchall()
        if "FOR UPDATE" not in text or text.lstrip().startswith("DELETE"):
            self._check(backend, text)
            return rows
        if "SKIP LOCKED" in text:
            return [row for row in rows if self._locks.take(_row_of(text, row, args), backend)]
        return rows if not rows or self._lock(backend, _row_of(text, rows[0], args)) else None

    def _drop_cells(self, backend: Backend, args: Sequence[Any]) -> list[Row]:
        """Drop cells that nobody has locked."""
        (most,) = args
        asked = "SELECT space, name FROM leasehold_cell WHERE expires < server_clock() ORDER BY expires"
        for space, name in self.tables.db.execute(asked).fetchall():
            if most and self._locks.take((space, name), backend):
                self.tables.db.execute("DELETE FROM leasehold_cell WHERE space = ? AND name = ?", (space, name))
                most -= 1
        return []

    def _check(self, backend: Backend, text: str) -> None:
        if backend.begun and not text.lstrip().startswith("SELECT") and backend.batch[-1] is not COMMIT:
            raise NotImplementedError("the model of PostgreSQL writes in the batch of a commit only")

    def _conflict(self, backend: Backend) -> bool:
        if self.scheduler.time >= self.conflicts_until or backend.done:
            return False
        return self.scheduler.random.random() < 0.5

    def _notify(self, channel: str, message: str) -> None:
        for backend in list(self._listening.get(channel, {}).values()):
            line = backend.line
            self.counts.messages += 1
            if line.link.deaf and self.scheduler.random.random() < line.link.deaf:
                self.counts.lost_messages += 1
            elif line.open:
                line.tell(message, True)

    # --- locks of rows ------------------------------------------------------------------------------------------------

    def _lock(self, backend: Backend, row: Hashable) -> bool:
        """Lock a row, or wait for it; return whether it is locked."""
        if self._locks.take(row, backend):
            return True
        self._locks.wait(row, backend)
        turn, when = backend.turns, self.scheduler.time + backend.limit
        self.scheduler.at(when, self.machine, lambda: self._lock_timeout(backend, turn))
        return False

    def _lock_timeout(self, backend: Backend, turn: int) -> None:
        if self._locks.waits(backend) and backend.turns == turn:
            text = "canceling statement due to statement timeout"  # which is as long, and begins before the wait
            error = ServerError("57014", text, fatal=False, in_commit=False)
            self._fail(backend, error)

    def _fail(self, backend: Backend, error: ServerError) -> None:
        """Refuse a statement: its transaction has nothing locked any more, and can only be rolled back."""
        backend.failed = backend.begun
        self._let_go(backend)
        self._answered(backend, error)

    def _finish(self, backend: Backend) -> None:
        """End a transaction."""
        backend.begun = backend.failed = False
        self._let_go(backend)

    def _let_go(self, backend: Backend) -> None:
        backend.notes.clear()
        self.go_on_with(self._locks.let_go(backend))


def _counted(done: Sequence[Sequence[Row]]) -> str:
    return " ".join(str(len(rows)) for rows in done)


def _row_of(text: str, row: Row, args: tuple[Value, ...]) -> Hashable:
    """Return what names a row that was found: of a cell its key, else its id, which was read or asked for."""
    if "leasehold_cell" in text:
        return args[0], args[1]
    number: Value = row[0] if text.lstrip().startswith("SELECT id") else args[0]
    return number
