"""A model of MySQL and MariaDB for lease rows: the shipped statements as they are sent, on rows in memory, with locks.

Theory of operation
-------------------
A request is the text of several statements, with all values spelled as literals. They are read back from it, a few
words of MySQL's are put into SQLite's, and SQLite runs each at once and by the model's clock. What SQLite has not is
modelled here: sessions side by side at READ COMMITTED, where a statement sees what is committed when it begins, and a
locking read waits for rows that another has locked (``FOR UPDATE``) or passes them over (``SKIP LOCKED``).

What differs from PostgreSQL: an INSERT of a key that is there waits for whoever has locked that row, and while an
INSERT of names waits, it has the counter of ids, for which all others wait (``innodb_autoinc_lock_mode=1``). A wait
that lasts too long (1205) ends the statement and not the transaction, which keeps its locks until it is rolled back; a
deadlock (1213) ends the transaction. A session that waits for a lock does not notice that its client is gone before it
has it. No message is sent to anybody. Our transactions write in their last request only, the one with the COMMIT, which
is carried out in one piece; a model that is asked for more says so.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from leasehold.runtimes.virtual import Scheduler
from leasehold.stores.mysql.statements import CLOCK, script
from leasehold.stores.sql import schema
from leasehold.testing.models.net import Host, Line
from leasehold.testing.models.rows import Locks, Rows, Tables
from leasehold.wires.mysql.base import DEADLOCK, LOCK_TIMED_OUT, Refusal
from leasehold.wires.mysql.settings import ASK, ASK_ENGINES, ASK_SETTINGS
from leasehold.wires.sql import Row, Value

WORDS = (
    (r"FOR UPDATE( SKIP LOCKED)?", ""),
    (r"FORCE INDEX \(\w+\)", ""),
    (r"\bGREATEST\(", "max("),
    (r"(meta\s+)ON DUPLICATE KEY UPDATE [\w.]+ = [\w.]+", r"\1WHERE true ON CONFLICT DO NOTHING"),
    (r"ON DUPLICATE KEY UPDATE [\w.]+ = [\w.]+", "ON CONFLICT DO NOTHING"),
    (r"^\s*\(SELECT", "SELECT * FROM (SELECT"),
    (r"\(\s*\(SELECT", "(SELECT * FROM (SELECT"),
    (r"UNION ALL\s*\(SELECT", "UNION ALL SELECT * FROM (SELECT"),
    (r"BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"),
    (r"UNIQUE KEY \w+ \(", "UNIQUE ("),
    (r",\s*KEY \w+ \([\w, ]+\)", ""),
    (r"CHARACTER SET \w+ COLLATE \w+", ""),
    (r"VARBINARY\(\d+\)|MEDIUMBLOB", "BLOB"),
    (r"ENGINE = InnoDB( ROW_FORMAT = DYNAMIC)?", ""),
    (r"INSERT IGNORE", "INSERT OR IGNORE"),
)
"""MySQL's words, and SQLite's."""

LITERAL = re.compile(
    r"_utf8mb4 x'(?P<hex>[0-9a-f]*)'|\bx'(?P<blob>[0-9a-f]*)'|'(?P<plain>[^']*)'|(?<![\w.])(?P<int>-?\d+)\b"
)
"""A value as `wires.mysql.base.spell` spells it."""

IDS = "the counter of ids"
"""What an INSERT of names has locked until it ends."""

NAME_ADDED, CELL_ADDED = "INSERT INTO leasehold_name", "INSERT INTO leasehold_cell"

OPENING = {
    ASK_ENGINES: (),
    ASK_SETTINGS: (("wsrep_on", "OFF"),),
}
"""What is asked on each new connection, and answered without a look at any table."""


@cache
def translated(text: str) -> str:
    """Say a statement in SQLite's words."""
    for theirs, ours in WORDS:
        text = re.sub(theirs, ours, text)
    return text


def read_back(statement: str) -> tuple[str, list[Value]]:
    """Return a statement with ``?`` for each literal, and their values."""
    values = list[Value]()

    def value(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "hex":
                values.append(bytes.fromhex(found["hex"]).decode())
            case "blob":
                values.append(bytes.fromhex(found["blob"]))
            case "plain":
                values.append(found["plain"])
            case _:
                values.append(int(found["int"]))
        return "?"

    return LITERAL.sub(value, statement.replace(CLOCK, "server_clock()")), values


@cache
def _tables() -> Tables:
    return Tables(schema.split(script()), translated)


@dataclass(eq=False)
class Session:
    """What serves one connection.

    Attributes:
        begun: whether a transaction is open.
        gone: whether its client is, which is noticed when it waits no longer.
        lock_wait: seconds that it waits for a row.
        idle: seconds after which it is ended that says nothing.
        batch: what it carries out: its statements, and the rows of those that are done.
        turns: counts what it was asked, so that a time-out knows whether it is still meant.

    """

    line: Line
    begun: bool = False
    gone: bool = False
    lock_wait: float = 50.0
    idle: float = 28_800.0
    batch: Sequence[str] = ()
    done: list[Sequence[Row]] = field(default_factory=list[Sequence[Row]])
    turns: int = 0


class MySQLModel(Host):
    """The server."""

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "mysql") -> None:
        super().__init__(scheduler, rate=rate, name=name)
        self._tables = _tables()
        self._tables.restore(self._tables.first)
        self._sessions: dict[int, Session] = {}
        self._locks = Locks[Session]()
        self.conflicts_until = 0.0

    # --- what may happen to it ---------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Row]]:
        """Return what is committed now."""
        return self._tables.rows()

    def restart(self, seconds: float, *, back_to: Rows | None = None) -> None:
        """End all connections and transactions, and be away; ``back_to``: come back with older rows."""
        super().restart(seconds)
        self._sessions.clear()
        self._locks = Locks[Session]()
        if back_to is not None:
            self.note("lacks its last commits")
            self._tables.restore(back_to)

    def over(self, line: Line) -> None:
        """Take note that a line has ended; a server learns of it when the word arrives."""
        super().over(line)
        session = self._sessions.get(line.number)
        if session is not None:
            when = self.arrival(line.link, line.link.requests_held, line.sent_until)
            self.scheduler.at(when, self.machine, lambda: self._ended(session))

    def _ended(self, session: Session) -> None:
        session.gone = True
        if not self._locks.waits(session) and self._sessions.pop(session.line.number, None) is not None:
            self._finish(session)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Line, request: bytes) -> None:
        """Carry out statements."""
        session = self._sessions.get(line.number)
        if session is None:
            if not line.open:
                return
            session = self._sessions[line.number] = Session(line)
        self.counts.commands += 1
        session.batch, session.done = request.decode().split("; "), []
        session.turns += 1
        self._go_on(session)

    def _go_on(self, session: Session) -> None:
        """Carry out the rest of a request, as far as no lock is in the way."""
        if session.line.number not in self._sessions:
            return
        self._tables.clock = self.now_us() * 1000
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
        elif session.begun:  # it stands idle from now on
            turn, when = session.turns, self.scheduler.time + session.idle
            self.scheduler.at(when, self.machine, lambda: self._time_out(session, turn))

    def _time_out(self, session: Session, turn: int) -> None:
        if session.begun and session.turns == turn and session.line.number in self._sessions:
            self.note(f"ends the idle session of {session.line.client.name}")
            session.line.end(arrives=False)
            self._ended(session)

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
            return [(session.line.number, "10.11.6-MariaDB-model", "leasehold", 0)]
        if text in OPENING:
            return OPENING[text]
        commits = "COMMIT" in session.batch
        if commits and self._conflict(session):
            self._finish(session)
            raise Refusal(DEADLOCK, "Deadlock found when trying to get lock", list(session.done))
        statement, values = read_back(text.strip())
        if not statement.lstrip().startswith(("SELECT", "(SELECT")):
            if not commits:
                raise NotImplementedError("the model of MySQL writes in the request of a commit only")
            if not self._may_add(session, statement, values):
                return None
        rows: list[Row] = self._tables.db.execute(translated(statement), values).fetchall()
        self._go_on_with(self._locks.let_go_of(IDS, session))
        if "FOR UPDATE" not in statement or statement.startswith("DELETE"):
            return rows
        if "SKIP LOCKED" in statement:
            return [row for row in rows if self._locks.take(_row_of(statement, row, values), session)]
        if rows and not self._lock(session, _row_of(statement, rows[0], values)):
            return None
        return rows

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
        asked = "SELECT id FROM leasehold_name WHERE space = ? AND name = ?"
        found = self._tables.db.execute(asked, values[:2]).fetchone()
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

    def _go_on_with(self, heirs: Sequence[Session]) -> None:
        for heir in heirs:
            self.scheduler.at(self.scheduler.time, self.machine, lambda heir=heir: self._go_on(heir))  # type: ignore[misc]


def _row_of(statement: str, row: Row, values: Sequence[Value]) -> Hashable:
    """Return what names a row that was found: its id, which was read or asked for, or of a cell its key."""
    if "leasehold_cell" in statement:
        return values[0], values[1]
    return row[0] if statement.startswith("SELECT id") else values[0]
