"""What a layout is to the store: the other library's table, and the statements that read and write its rows.

A row has a key, a holder, the time since which and the time until which that holder has the lock. One acquisition of
ours is one holder, which has a UUID of version 8 in its name: the UUIDs of Java programs are of version 4. So all can
see which rows are ours. Their times are by the server's clock; those of others are by the clocks of their hosts.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from uuid import UUID

from leasehold._model import Capabilities, Owner, Ticket, ticket_id
from leasehold.layouts.sql.dialect import Dialect
from leasehold.stores._common.names import before
from leasehold.stores._sql.transport import Statement, Value

IDENTIFIER = re.compile(r"([A-Za-z_][A-Za-z0-9_$]*\.)?[A-Za-z_][A-Za-z0-9_$]*")
"""The name of a table, or its beginning, perhaps after a schema: it needs no quotes."""

OURS = "________-____-8___-____-____________"
"""What the UUID of a holder of ours is LIKE."""

_OURS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$")

FOREIGN, MEMBER = "another program", "a client of leasehold"
"""Hosts shown for holders whose rows do not name theirs."""


def us(seconds: float) -> int:
    """Return microseconds."""
    return round(seconds * 1e6)


def uuid_of(ticket: str) -> str:
    """Return the UUID of an acquisition: its ticket's random bits, but for the six that say version 8."""
    raw = a2b_base64(ticket.replace("-", "+").replace("_", "/") + "==")
    return str(UUID(int=int.from_bytes(raw) & ~(0xF000C << 60) | 0x80008 << 60))


@dataclass(frozen=True, kw_only=True)
class Format:
    """The rows of one library on one kind of server.

    Attributes:
        name: as in the URL.
        of: the library, for messages.
        capabilities: what its locks promise.
        dialect: that of the server.
        table: its name.
        key, holder, since, until: names of the columns.
        fixed: further columns of the key, with their values.
        key_of: a name, with its namespace, to the key.
        named: whether the key is the name; else it is made from it, and cannot be read.
        with_host: whether the holder begins with its host.
        keeps_rows: whether a release leaves the row, with the end of its lease.
        margin: seconds by which the clocks of the other programs may differ from the server's.
        schema: the SQL that makes the table, as the library documents it.
    """

    name: str
    of: str
    capabilities: Capabilities
    dialect: Dialect
    table: str
    key: str
    holder: str
    since: str
    until: str
    key_of: Callable[[str], str]
    named: bool
    with_host: bool
    keeps_rows: bool
    margin: float
    schema: str
    fixed: dict[str, str] = field(default_factory=dict[str, str])

    # --- keys and holders ----------------------------------------------------------------------------------------

    def row_key(self, namespace: str, name: str) -> str:
        """Return the key of a lock."""
        return self.key_of(before(namespace) + name)

    def id_of(self, ticket: Ticket) -> str:
        """Return the holder for a ticket."""
        return f"{ticket.terms.owner.host[:200]}-{uuid_of(ticket.id)}" if self.with_host else uuid_of(ticket.id)

    def owner_of(self, holder: str) -> tuple[str, Owner, bool]:
        """Return a ticket, an owner to show, and whether the holder is one of ours."""
        found = _OURS.search(holder)
        if found is None:
            return holder, Owner(*((holder, 0, "") if self.with_host else (FOREIGN, 0, holder[:8]))), False
        host = holder[: found.start()].removesuffix("-") or MEMBER
        return ticket_id(UUID(found[0]).bytes), Owner(host, 0, found[0][:8]), True

    def wrong_table(self, code: str) -> str:
        """Return what is wrong with the table, by the server's error code; empty if that is no error of the table."""
        if code == self.dialect.missing[0]:
            return f"there is no table {self.table}; {self.of} makes it, or run: leasehold init URL"
        if code == self.dialect.missing[1]:
            return f"the table {self.table} is not that of {self.of}: it lacks a column"
        return ""

    # --- statements: arguments in the order of their placeholders; times are microseconds --------------------------

    def look(self, key: str) -> Statement:
        """→ holder, since, until, the server's clock."""
        return Statement(f"SELECT {self._columns} FROM {self.table} WHERE {self._row}", self._args(key))

    def lock(self, key: str, *, wait: bool = True) -> Statement:
        """The same, and locks the row; without ``wait`` it skips a locked one."""
        text, args = self.look(key)
        return Statement(f"{text} FOR UPDATE{'' if wait else ' SKIP LOCKED'}", args)

    def take(self, key: str, me: str, length: int) -> Statement:
        """Make ``me`` the holder where the row's lease has ended, or the row is its own already."""
        at, dialect = len(self._args(key)), self.dialect
        mine, us = f"${at + 1}", dialect.number(f"${at + 2}")
        set_since = f"CASE WHEN {self.holder} = {mine} THEN {self.since} ELSE {dialect.now} END"
        text = f"""
            UPDATE {self.table} SET {self.since} = {set_since}, {self.until} = {dialect.plus(dialect.now, us)},
            {self.holder} = {mine}
            WHERE {self._row} AND ({self.holder} = {mine} OR {self._ends} < {dialect.now})
        """
        return Statement(text, (*self._args(key), me, length))

    def add(self, key: str, me: str, length: int) -> Statement:
        """Add a row with this holder, unless there is one; wait for another transaction that adds it, too."""
        values, dialect = self._args(key), self.dialect
        places = [f"${number}" for number in range(1, len(values) + 2)]
        until = dialect.plus(dialect.now, dialect.number(f"${len(values) + 2}"))
        text = f"""
            INSERT INTO {self.table} ({", ".join([self.key, *self.fixed])}, {self.holder}, {self.since}, {self.until})
            VALUES ({", ".join(places)}, {dialect.now}, {until}) {dialect.ignore(self.holder)}
        """
        return Statement(text, (*values, me, length))

    def renew(self, key: str, me: str, length: int, at_least: int) -> Statement:
        """Set the end of a holder's lease; its row is locked, and was looked at."""
        at, dialect = len(self._args(key)), self.dialect
        plus, number = dialect.plus, dialect.number
        ends = plus(dialect.now, number(f"${at + 2}")), plus(self.since, number(f"${at + 3}"))
        text = f"""
            UPDATE {self.table} SET {self.until} = GREATEST({ends[0]}, {ends[1]})
            WHERE {self._row} AND {self.holder} = ${at + 1}
        """
        return Statement(text, (*self._args(key), me, length, at_least))

    def free(self, key: str, me: str, at_least: int) -> Statement:
        """Free the row if ``me`` is its holder; where rows are kept, not before ``at_least``."""
        if self.keeps_rows:
            return self.renew(key, me, 0, at_least)
        return Statement(
            f"DELETE FROM {self.table} WHERE {self._row} AND {self.holder} = ${len(self._args(key)) + 1}",
            (*self._args(key), me),
        )

    def look_at(self, key: str | None = None) -> Statement:
        """→ key, holder, since, until, the server's clock; of all rows, or the one with this key."""
        columns, values = ([], ()) if key is None else ([self.key], (key,))
        where = _equal([*columns, *self.fixed]) or "TRUE"
        return Statement(
            f"SELECT {self.key}, {self._columns} FROM {self.table} WHERE {where}", (*values, *self.fixed.values())
        )

    @cached_property
    def clock(self) -> Statement:
        """→ the server's clock, and its version."""
        return Statement(f"SELECT {self.dialect.micros(self.dialect.now)}, ({self.dialect.version})")

    # --- inside ----------------------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> str:
        micros = self.dialect.micros
        times = ", ".join(map(micros, (self.since, self.until, self.dialect.now)))
        return f"COALESCE({self.holder}, ''), {times}"

    @cached_property
    def _ends(self) -> str:
        """The time from which others may take a row: for those of other programs with a margin."""
        like = f"'%-{OURS}'" if self.with_host else f"'{OURS}'"
        margin = f"CASE WHEN {self.holder} LIKE {like} THEN 0 ELSE {us(self.margin)} END"
        return self.dialect.plus(self.until, margin)

    @cached_property
    def _row(self) -> str:
        return _equal([self.key, *self.fixed])

    def _args(self, key: str) -> tuple[Value, ...]:
        return key, *self.fixed.values()


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"{column} = ${number}" for number, column in enumerate(columns, 1))
