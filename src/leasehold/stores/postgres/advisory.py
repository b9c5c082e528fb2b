"""The statements of ``mode=session``: PostgreSQL's advisory locks, and the rows that show them."""

from __future__ import annotations

from typing import NamedTuple

from leasehold.stores._sql.advisory_key import key_of as key_of  # noqa: PLC0414  (exported)
from leasehold.stores._sql.queue_snapshot import COLUMNS
from leasehold.stores._sql.transport import Statement
from leasehold.stores.postgres.connection.base import STARTED
from leasehold.stores.postgres.statements import CLOCK

SPACE = b"\xffsession"
"""The suffix of the namespace in rows of session locks: it is not UTF-8, so it differs from that of all lease rows."""

TRY = "SELECT pg_try_advisory_lock($1::bigint)::int"
WAIT = "SELECT pg_advisory_lock($1::bigint)"
UNLOCK = "SELECT pg_advisory_unlock($1::bigint)::int"
SESSION_LIMITS = """
    SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN $1 ELSE '0' END, false) FROM pg_settings
    WHERE name IN ('idle_session_timeout', 'lock_timeout', 'statement_timeout', 'transaction_timeout')
"""
"""(silence): the server ends a session that is silent for the length of the lease (from PostgreSQL 14), and no wait: a
limit of the role or of the database would let a waiter lose its place in the server's queue, each time."""

_SHOWN = "'mutex', 1, 0, 1, 1, 1, $4::bigint, 0, $5, $6, '', $7"

GRANT = f"""
    WITH granted AS (
        UPDATE leasehold_name SET used = {CLOCK},
        fence = greatest(fence + 1, {CLOCK} / 1000, (SELECT meta.fence + 1 FROM leasehold_meta meta))
        WHERE space = $1 AND name = $2 RETURNING id, fence
    ), stale AS (
        SELECT ticket AS whose FROM leasehold_entry JOIN granted ON name_id = granted.id
        WHERE place > 0 AND expires + lease < {CLOCK} FOR UPDATE OF leasehold_entry SKIP LOCKED
    ), gone AS (
        DELETE FROM leasehold_entry USING granted WHERE name_id = granted.id AND ticket <> $3
        AND (place = 0 OR ticket IN (SELECT whose FROM stale))
    )
    INSERT INTO leasehold_entry (name_id, {COLUMNS})
    SELECT granted.id, $3, 0, granted.fence, {CLOCK} + $4::bigint, {_SHOWN} FROM granted
    ON CONFLICT (ticket, name_id) DO UPDATE SET place = 0, token = excluded.token, expires = excluded.expires,
    hint = excluded.hint
    RETURNING token, (SELECT version FROM leasehold_meta)
"""
"""(space, name, ticket, lease, owner, meta, hint) → token, version. Run while the advisory lock is held: it removes the
entries of former holders, and of waiters that were not renewed for two leases."""

QUEUE = f"""
    INSERT INTO leasehold_entry (name_id, {COLUMNS})
    SELECT id, $3, (SELECT coalesce(max(place), 0) + 1 FROM leasehold_entry WHERE name_id = id), NULL,
    {CLOCK} + $4::bigint, {_SHOWN} FROM leasehold_name WHERE space = $1 AND name = $2
    ON CONFLICT (ticket, name_id) DO UPDATE SET hint = excluded.hint, expires = excluded.expires
"""
"""(space, name, ticket, lease, owner, meta, hint): stores a waiter for people to see, and its session if it has one."""

STALE = f"""
    DELETE FROM leasehold_entry WHERE (ticket, name_id) IN (
        SELECT ticket, name_id FROM leasehold_entry JOIN leasehold_name ON id = name_id
        WHERE space = $1 AND name = $2 AND place > 0 AND expires + lease < {CLOCK}
        FOR UPDATE OF leasehold_entry SKIP LOCKED
    )
"""
"""(space, name): removes waiters that were not renewed for two leases."""

RAISE = f"UPDATE leasehold_name SET fence = greatest(fence + 1, {CLOCK} / 1000) WHERE space = $1 AND name = $2"

_KEY = "(classid::bigint << 32) | objid::bigint"
_HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
_OURS = f"FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND {_HERE}"

LOCKS = f"SELECT pid, {_KEY}, objsubid - 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid < 3 AND {_HERE}"
"""→ backend, key, and 1 if that is a pair, of each session that has a lock or waits for it."""

QUEUED = f"SELECT granted::int {_OURS} AND pid = $1::int AND {_KEY} = $2::bigint"
"""(backend, key) → whether a session has this lock; no row if it neither has it nor waits for it."""

END = f"SELECT pg_terminate_backend(pid)::int {_OURS} AND pid = $1::int AND {_KEY} = $2::bigint"
"""(backend, key): ends a session that has this lock or waits for it."""

OF_SERVER = f" AND {STARTED} = $3::bigint"
"""(start time): appended to `END` if the session may belong to an earlier server. After a restart or a failover, the
old process ids belong to other sessions."""

_PAIR = "($1::bigint >> 32)::int, ($1::bigint << 32 >> 32)::int"

_OF_PAIRS = {
    text: text.replace("lock($1::bigint)", f"lock({_PAIR})").replace("objsubid = 1", "objsubid = 2")
    for text in (TRY, WAIT, UNLOCK, QUEUED, END)
}


class Key(NamedTuple):
    """The key of an advisory lock.

    Attributes:
        number: 64 bits, signed. Those of a pair are its two numbers of 32 bits.
        pair: whether the server has it among the pairs, which never equal a single number.
    """

    number: int
    pair: bool = False

    def about(self, text: str, *first: int) -> Statement:
        """Return one of the statements above on the lock with this key; ``first`` are the arguments before the key."""
        return Statement(_OF_PAIRS[text] if self.pair else text, (*first, self.number))
