"""The statements of ``mode=session``: GET_LOCK, and the rows of holders and waiters.

GET_LOCK alone makes a holder. The rows show the holder to people, keep the token, and name the session to end.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Mapping, Sequence

from leasehold._model import QueueEntry, Ticket
from leasehold.stores._sql.dialect import ID
from leasehold.stores._sql.queue_snapshot import COLUMNS, Key, ns, row_of
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql.statements import CLOCK

SHOWN_FOR = 30 * 86_400 * 10**9
"""Nanoseconds after which the rows of a crashed holder may be dropped."""

MARK = b"\xff"
"""The prefix of the namespace in rows of this mode; no UTF-8 text has that byte."""

PREFIX = "leasehold_"


def lock_name(database: str, key: Key) -> str:
    """Return the name of a lock on the server: 42 caseless characters, a hash of database, namespace and name."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (database.encode(), *key):
        digest.update(len(part).to_bytes(4, "big") + part)
    return PREFIX + b32encode(digest.digest()).decode().lower()


def new_marker(random: bytes) -> str:
    """Return a name for the lock that one connection has for good."""
    return f"{PREFIX}session_{random.hex()}"


def ttl(seconds: int) -> Statement:
    """Return what sets after how many seconds of silence the server ends the session."""
    return Statement(f"SET SESSION wait_timeout = {seconds}")


def get_lock(name: str, wait: int) -> Statement:
    """Return what asks for the lock: 1 is acquired, 0 is taken, NULL is an error."""
    return Statement("SELECT GET_LOCK($1, $2)", (name, wait))


def has_lock(name: str) -> Statement:
    """Return what asks whether this session has the lock."""
    return Statement("SELECT IS_USED_LOCK($1) = CONNECTION_ID()", (name,))


def release_lock(name: str) -> Statement:
    """Return what releases the lock: 1 if this session had it."""
    return Statement("SELECT RELEASE_LOCK($1)", (name,))


def lock_holders(names: Sequence[str]) -> Statement:
    """Return what asks which session has each lock."""
    return Statement(f"SELECT {', '.join(f'IS_USED_LOCK(${i})' for i in range(1, 1 + len(names)))}", tuple(names))


def kill(session: int) -> Statement:
    """Return what ends a session of our own user."""
    return Statement(f"KILL CONNECTION {session:d}")


def used_by_leases(key: Key) -> Statement:
    """Return what asks whether lease rows use the name; ``key`` is that of the rows."""
    text = f"""
        SELECT 1 FROM leasehold_name WHERE space = $1 AND name = $2 AND holder <> '' AND holder_expires > {CLOCK}
        UNION ALL SELECT 1 FROM leasehold_entry WHERE name_id = {ID} AND expires > {CLOCK} LIMIT 1
    """
    return Statement(text, key)


def raise_token(key: Key) -> Statement:
    """Return what raises the token above all earlier ones, and the server's clock in microseconds; adds the name."""
    return Statement(
        f"""
        INSERT INTO leasehold_name (space, name, fence, blocked_until, used)
        SELECT $1, $2, GREATEST(meta.fence + 1, {CLOCK} DIV 1000), 0, {CLOCK} FROM leasehold_meta meta
        ON DUPLICATE KEY UPDATE
        leasehold_name.fence = GREATEST(leasehold_name.fence + 1, meta.fence + 1, {CLOCK} DIV 1000),
        leasehold_name.used = {CLOCK}
        """,
        key,
    )


def store_holder(key: Key, ticket: Ticket, session: int) -> list[Statement]:
    """Return what stores the holder, and removes former holders and waiters not renewed for two leases."""
    gone = f"(ticket = $3 OR place = 0 OR expires + lease < {CLOCK})"
    drop = f"DELETE FROM leasehold_entry WHERE name_id = {ID} AND {gone}"
    values = {"expires": f"{CLOCK} + {SHOWN_FOR}", "token": "named.fence", "place": "0"}
    return [Statement(drop, (*key, ticket.id)), _entry(key, ticket, str(session), values)]


def store_waiter(key: Key, ticket: Ticket) -> list[Statement]:
    """Return what stores a waiter, or renews its row."""
    last = "(SELECT COALESCE(MAX(place), 0) + 1 FROM leasehold_entry others WHERE others.name_id = named.id)"
    values = {"expires": f"{CLOCK} + {ns(ticket.terms.lease)}", "token": "NULL", "place": last}
    entry = _entry(key, ticket, "", values)
    beat = f"UPDATE leasehold_entry SET expires = {CLOCK} + lease WHERE name_id = {ID} AND ticket = $3"
    there = "SELECT 1 FROM leasehold_entry mine WHERE mine.name_id = named.id AND ticket = $3"
    new = f"{entry.text} AND NOT EXISTS ({there})"
    return [Statement(beat, (*key, ticket.id)), Statement(new, entry.args)]


def _entry(key: Key, ticket: Ticket, hint: str, values: Mapping[str, str]) -> Statement:
    row = list(row_of(QueueEntry(ticket, 0, 0.0), 0, hint))
    columns = {name.strip(): f"${3 + at}" for at, name in enumerate(COLUMNS.split(","))} | dict(values)
    text = f"""
        INSERT INTO leasehold_entry (name_id, {", ".join(columns)})
        SELECT named.id, {", ".join(columns.values())} FROM leasehold_name named WHERE space = $1 AND name = $2
    """
    return Statement(text, (*key, *row))


def remove_stale(key: Key) -> Statement:
    """Return what removes waiters that were not renewed for two leases."""
    text = f"DELETE FROM leasehold_entry WHERE name_id = {ID} AND place > 0 AND expires + lease < {CLOCK}"
    return Statement(text, key)


def token(key: Key) -> Statement:
    """Return what reads the token, and the layout of the tables."""
    text = "SELECT fence, (SELECT version FROM leasehold_meta) FROM leasehold_name WHERE space = $1 AND name = $2"
    return Statement(text, key)
