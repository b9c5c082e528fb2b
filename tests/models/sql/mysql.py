"""A model of MySQL and MariaDB: the shipped statements as they are sent, on rows in memory, with locks.

Theory of operation
-------------------
A request is the text of several statements, with all values spelled as literals. They are read back from it, a few
words of MySQL's are put into SQLite's, and SQLite runs each at once and by the model's clock. What SQLite has not is
modelled here: sessions side by side at READ COMMITTED, where a statement sees what is committed when it begins, and a
locking read waits for rows that another has locked (``FOR UPDATE``) or passes them over (``SKIP LOCKED``).

What differs from PostgreSQL: an INSERT of a key that is there waits for the session that locked that row, and while an
INSERT of names waits, it has the counter of ids, for which all others wait (``innodb_autoinc_lock_mode=1``). A wait
that lasts too long (1205) ends the statement and not the transaction, which keeps its locks until it is rolled back; a
deadlock (1213) ends the transaction. A session that waits for a lock does not notice that its client is gone before it
has it. No message is sent to anybody. Our transactions write in their last request only, the one with the COMMIT, which
is carried out in one piece; a model that is asked for more says so.

For ``mode=session`` there are the server's own locks, GET_LOCK, which belong to the session, are waited for in turn,
and go when it ends: because its client is gone, which one that waits notices within a second; because it said nothing
for its ``wait_timeout``; or because another session killed it, which is answered before it is gone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from leasehold.stores._sql.tables import split
from leasehold.stores._sql.transport import Row, Value
from leasehold.stores.mysql.connection.base import DEADLOCK, LOCK_TIMED_OUT, NO_SUCH_SESSION, Refusal
from leasehold.stores.mysql.connection.handshake import ASK, ASK_ENGINES, ASK_SETTINGS, ASK_WRITABLE
from leasehold.stores.mysql.statements import script
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection
from models.sql import server
from models.sql.mysql_dialect import read_back, translated
from models.sql.rows import NAME, Rows, Tables
from models.sql.server import SQLServerModel

IDS = "the counter of ids"
"""What an INSERT of names has locked until it ends."""

NAME_ADDED, CELL_ADDED = "INSERT INTO leasehold_name", "INSERT INTO leasehold_cell"

OPENING = {
    ASK_ENGINES: (),
    ASK_SETTINGS: (("wsrep_on", "OFF"),),
    ASK_WRITABLE.text: ((0,),),
}
"""What is asked on each new connection, and in each transaction, and answered without a look at any table."""


@cache
def _tables() -> Tables:
    return Tables(split(script("schema")), translated)


@dataclass(eq=False)
class Session(server.Session):
    """What serves one connection.

    Attributes:
        lock_wait: seconds that it waits for a row.
        idle: seconds after which it is ended that says nothing.
        began: the tables' clock when a statement began that waits for a row, and is a transaction of its own; else 0.
        batch: what it carries out: its statements, and the rows of those that are done.

    """

    lock_wait: float = 50.0
    idle: float = 28_800.0
    began: int = 0
    batch: Sequence[str] = ()
    done: list[Sequence[Row]] = field(default_factory=list[Sequence[Row]])


class MySQLModel(SQLServerModel[Session]):
    """The server.

    Attributes:
        plain: whether it carries out the statements of the plain case.

    """

    handed = ((1,),)
    plain = True

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "mysql") -> None:
        super().__init__(scheduler, _tables(), rate=rate, name=name)
        self._before = 0  # connections before its last start

    def restart(self, seconds: float, *, back_to: Rows | None = None) -> None:
        super().restart(seconds, back_to=back_to)
        self._before = self.counts.lines

    def _is_deaf(self, session: Session) -> bool:
        return self._locks.waits(session)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Connection, request: bytes) -> None:
        """Carry out statements."""
        session = self._sessions.get(line.number)
        if session is None:
            if not line.open:
                return
            session = self._sessions[line.number] = Session(line)
        self.counts.commands += 1
        session.batch, session.done, session.began = [text.strip() for text in request.decode().split("; ")], [], 0
        session.turns += 1
        self._go_on(session)

    def _go_on(self, session: Session) -> None:
        """Carry out the rest of a request, as far as no lock is in the way."""
        if session.number not in self._sessions:
            return
        self.tables.clock = self.now_us() * 1000
        try:
            while len(session.done) < len(session.batch):
                rows = self._carry_out(session, session.batch[len(session.done)])
                if rows is None:
                    return
                session.done.append(rows)
        except Refusal as error:
            self._answer(session, error)
            return
        self._answer(session, session.done)

    def _answer(self, session: Session, answer: Any) -> None:
        if isinstance(answer, Refusal):
            self.note(f"refuses {session.line.client.name} {answer.code}")
        else:
            counts = " ".join(str(len(rows)) for rows in session.done)
            self.note(f"answers {session.line.client.name} {len(session.batch)} {counts}")
        if session.line.open:
            session.line.tell(answer)
        if session.gone:
            self._ended(session)
        else:
            self._stands_idle(session, session.idle)

    # --- statements --------------------------------------------------------------------------------------------

    def _carry_out(self, session: Session, text: str) -> Sequence[Row] | None:
        """Return the rows of a statement; None if it waits for a lock."""
        if text.startswith("SET SESSION"):
            self._set(session, text)
            return ()
        if text == "START TRANSACTION":
            session.begun = True
            return ()
        if text in ("COMMIT", "ROLLBACK"):
            self._finish(session)
            return ()
        if text == ASK:
            return [(self._shown(session), "10.11.6-MariaDB-model", "leasehold", 0)]
        if text in OPENING:
            return OPENING[text]
        if text.startswith("KILL CONNECTION"):
            number = int(text.rpartition(" ")[2]) + self._before
            if number not in self._sessions:
                raise Refusal(NO_SUCH_SESSION, f"Unknown thread id: {number}", list(session.done))
            self.terminate(self._sessions[number])
            return ()
        if "_LOCK(" in text:
            return self._own_lock(session, *read_back(text))
        commits = "COMMIT" in session.batch
        plain = not session.begun and text.startswith("UPDATE leasehold_name SET")
        if plain and not self.plain:
            raise Refusal(1142, "UPDATE command denied to user for table leasehold_name")
        if (commits or plain) and self._conflict(session):
            self._finish(session)
            raise Refusal(DEADLOCK, "Deadlock found when trying to get lock", list(session.done))
        statement, values = read_back(text)
        if plain:
            return self._plain(session, statement, values)
        if not statement.lstrip().startswith(("SELECT", "(SELECT")):
            if session.begun and not commits:
                raise NotImplementedError("the model of MySQL writes in the request of a commit only")
            if not self._may_add(session, statement, values):
                return None
        rows: list[Row] = self.tables.db.execute(translated(statement), values).fetchall()
        self._go_on_with(self._locks.let_go_of(IDS, session))
        if not session.begun:  # a transaction of its own
            self._finish(session)
            return rows
        if "FOR UPDATE" not in statement or statement.startswith("DELETE"):
            return rows
        if "SKIP LOCKED" in statement:
            return [row for row in rows if self._locks.take(_row_of(statement, row, values), session)]
        if rows and not self._lock(session, _row_of(statement, rows[0], values)):
            return None
        return rows

    def _plain(self, session: Session, statement: str, values: Sequence[Value]) -> Sequence[Row] | None:
        """Return the number of a statement that is a transaction of its own; None if it waits for the name's row."""
        before = statement.partition("WHERE space = ")[0].count("?")
        found = self.tables.db.execute(NAME, values[before : before + 2]).fetchone()
        if found is not None and not self._lock(session, found[0]):
            session.began = session.began or self.tables.clock
            return None
        self.tables.clock = session.began or self.tables.clock  # that of before the wait
        session.began = 0
        number = self.tables.change(translated(statement), values)
        self._finish(session)
        return [(number,)]

    def _own_lock(self, session: Session, text: str, values: Sequence[Value]) -> Sequence[Row] | None:
        """Return what one of the functions for the server's own locks says; None if it waits."""
        users = [self.own.owner(name) for name in values]
        match text:
            case "SELECT GET_LOCK(?, ?)":
                name, wait = values
                if self.own.lock(name, session):
                    return [(1,)]
                if not isinstance(wait, int) or wait == 0:
                    return [(0,)]
                self._wait_own(session, name, wait)
                return None
            case "SELECT RELEASE_LOCK(?)":
                if users == [session]:
                    self.hand_over(self.own.unlock(values[0], session))
                return [(None if users[0] is None else int(users[0] is session),)]
            case "SELECT IS_USED_LOCK(?) = CONNECTION_ID()":
                return [(None if users[0] is None else int(users[0] is session),)]
            case _:
                return [tuple(None if user is None else self._shown(user) for user in users)]

    def _shown(self, session: Session) -> int:
        """Return the number of a session, which the server counts from its last start."""
        return session.number - self._before

    def _wait_own(self, session: Session, name: Value, seconds: float) -> None:
        self.own.wait(name, session)
        turn, session.since = session.turns, self.scheduler.time

        def time_out() -> None:
            if self.own.waits(session) and session.turns == turn:
                self.own.give_up(session)
                session.done.append([(0,)])
                self._go_on(session)

        self.scheduler.at(session.since + seconds, self.machine, time_out)

    def _set(self, session: Session, text: str) -> None:
        for name, value in re.findall(r"(\w+) = (\d+)", text):
            if name == "innodb_lock_wait_timeout":
                session.lock_wait = float(value)
            elif name == "wait_timeout":
                session.idle = float(value)

    def _may_add(self, session: Session, statement: str, values: Sequence[Value]) -> bool:
        """Say whether a statement that adds a row need not wait: for its turn, nor for a row of that key."""
        if statement.startswith(CELL_ADDED):
            return self._lock(session, (values[0], values[1]))
        if not statement.startswith(NAME_ADDED):
            return True
        if not self._lock(session, IDS):
            return False
        found = self.tables.db.execute(NAME, values[:2]).fetchone()
        return found is None or self._lock(session, found[0])

    def _conflict(self, session: Session) -> bool:
        """Say whether the transaction ends here by a deadlock: at the first statement of the request that writes."""
        before = session.batch[len(session.done) - 1] if session.done else "START TRANSACTION"
        if self.scheduler.time >= self.conflicts_until or before != "START TRANSACTION":
            return False
        return self.scheduler.random.random() < 0.5

    # --- locks -------------------------------------------------------------------------------------------------

    def _lock(self, session: Session, row: Hashable) -> bool:
        """Lock a row, or wait for it; return whether it is locked."""
        if self._locks.take(row, session):
            return True
        self._locks.wait(row, session)
        turn, when = session.turns, self.scheduler.time + session.lock_wait
        self.scheduler.at(when, self.machine, lambda: self._lock_timeout(session, turn))
        return False

    def _lock_timeout(self, session: Session, turn: int) -> None:
        if self._locks.waits(session) and session.turns == turn:
            self._locks.give_up(session)
            self._go_on_with(self._locks.let_go_of(IDS, session))
            self._answer(session, Refusal(LOCK_TIMED_OUT, "Lock wait timeout exceeded", list(session.done)))

    def _finish(self, session: Session) -> None:
        """End a transaction: let its locks go, each to who has waited longest."""
        session.begun = False
        self._go_on_with(self._locks.let_go(session))


def _row_of(statement: str, row: Row, values: Sequence[Value]) -> Hashable:
    """Return what names a row that was found: its id, which was read or asked for, or of a cell its key."""
    if "leasehold_cell" in statement:
        return values[0], values[1]
    return row[0] if statement.startswith("SELECT id") else values[0]
