"""What a PostgreSQL server's settings, and a pooler in front of it, mean for the promises of the locks."""

from __future__ import annotations

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.transport import Row, Statement, Transaction

NAMES = (
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "client_connection_check_interval",
    "tcp_keepalives_idle",
    "max_connections",
    "synchronous_standby_names",
    "transaction_timeout",
)
SETTINGS = Statement(f"SELECT name, setting FROM pg_settings WHERE name IN ({', '.join(map(repr, NAMES))})")

RIGHTS = Statement("""
    SELECT wanted, string_agg(privilege, ', ') FROM (VALUES
        ('leasehold_meta', 'SELECT'), ('leasehold_meta', 'UPDATE'),
        ('leasehold_name', 'SELECT'), ('leasehold_name', 'INSERT'), ('leasehold_name', 'UPDATE'),
        ('leasehold_name', 'DELETE'),
        ('leasehold_entry', 'SELECT'), ('leasehold_entry', 'INSERT'), ('leasehold_entry', 'UPDATE'),
        ('leasehold_entry', 'DELETE'),
        ('leasehold_cell', 'SELECT'), ('leasehold_cell', 'INSERT'), ('leasehold_cell', 'UPDATE'),
        ('leasehold_cell', 'DELETE')
    ) AS needed (wanted, privilege)
    WHERE to_regclass(wanted) IS NOT NULL AND NOT has_table_privilege(wanted, privilege) GROUP BY wanted ORDER BY wanted
""")

TABLES = Statement("""
    SELECT string_agg(wanted, ', ') FROM (VALUES ('leasehold_meta'), ('leasehold_name'), ('leasehold_entry'),
    ('leasehold_cell')) AS needed (wanted) WHERE to_regclass(wanted) IS NULL
""")

WHERE = Statement("""
    SELECT current_setting('server_version'), coalesce(inet_server_addr()::text, 'socket'),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
""")


async def look(tx: Transaction) -> list[list[Row]]:
    """Return the rows that `findings` needs."""
    return await tx.commit(WHERE, SETTINGS, TABLES, RIGHTS)


def findings(
    answers: list[list[Row]],
    runtime: Runtime,
    *,
    pooled: bool,
    past: bool,
    encrypted: bool,
    local: bool,
    read_only: bool,
) -> list[Finding]:
    """Return what the answers mean."""
    ((version, _, clock, clients),), settings, ((missing,),), rights = answers
    values: dict[str, str] = dict(settings)
    return [
        Finding(Severity.OK, "server", f"PostgreSQL {version}"),
        _pooler(pooled, past),
        _encryption(encrypted, local),
        _tables(missing),
        *(_right(table, privileges) for table, privileges in rights),
        *_durability(values),
        _standbys(values),
        *_timeouts(values, version),
        _connections(int(values.get("max_connections", "0")), int(clients)),
        _clock(runtime, int(clock)),
        *([_READ_ONLY] if read_only else []),
    ]


_READ_ONLY = Finding(
    Severity.NOTE,
    "default_transaction_read_only",
    "on",
    "transactions of locks set READ WRITE themselves, so they work",
)


def _pooler(pooled: bool, past: bool) -> Finding:
    if not pooled:
        return Finding(Severity.OK, "pooler", "none", "hand-overs are notified by messages (LISTEN)")
    if past:
        return Finding(
            Severity.OK, "pooler", "in between", "hand-overs are notified by messages that bypass it (listen=)"
        )
    meaning = "no messages come through it, so waiters poll, down to twice a second; mode=session is refused"
    return Finding(
        Severity.NOTE,
        "pooler",
        "in between",
        meaning,
        "name the server itself by listen=host:port where waits are long",
    )


def _encryption(encrypted: bool, local: bool) -> Finding:
    if encrypted:
        return Finding(Severity.OK, "encryption", "TLS", "the server's name is checked only with sslmode=verify-full")
    if local:
        return Finding(Severity.OK, "encryption", "none, on this host")
    meaning = "anyone who can read the network's traffic sees names and owners"
    return Finding(Severity.WARNING, "encryption", "none", meaning, "add sslmode=verify-full and sslrootcert=FILE")


def _tables(missing: str | None) -> Finding:
    if not missing:
        return Finding(Severity.OK, "tables", "complete")
    return Finding(Severity.ERROR, "tables", f"missing: {missing}", "no lock can be acquired", "leasehold init URL")


def _right(table: str, privileges: str) -> Finding:
    remedy = f"GRANT {privileges} ON {table} TO this user"
    return Finding(Severity.ERROR, f"rights on {table}", f"missing: {privileges}", "no lock can be acquired", remedy)


def _durability(values: dict[str, str]) -> list[Finding]:
    found: list[Finding] = []
    for name in ("fsync", "full_page_writes"):
        if values.get(name) == "off":
            meaning = "a crash of the server's host may damage the database, and undo tokens and leases"
            found.append(Finding(Severity.WARNING, name, "off", meaning, f"set {name} = on"))
    commit = values.get("synchronous_commit", "on")
    if commit == "off":
        meaning = "a crash of the server may undo the grants of about the last half second"
        found.append(Finding(Severity.WARNING, "synchronous_commit", commit, meaning, "set it on for the locks' user"))
    return found or [Finding(Severity.OK, "durability", f"fsync on, synchronous_commit {commit}")]


def _standbys(values: dict[str, str]) -> Finding:
    names = values.get("synchronous_standby_names", "")
    if names:
        return Finding(Severity.OK, "synchronous standbys", names, "a failover to one of them keeps grants and tokens")
    meaning = "if it is replicated, a failover may lose the last grants; tokens still increase by the clock"
    return Finding(
        Severity.NOTE, "synchronous standbys", "none", meaning, "name one, where a failover must lose no grant"
    )


def _timeouts(values: dict[str, str], version: str) -> list[Finding]:
    found: list[Finding] = []
    if "idle_session_timeout" not in values:
        meaning = "mode=session: a holder whose host vanishes keeps its lock until TCP's keep-alive, about 20 s"
        found.append(Finding(Severity.NOTE, "idle_session_timeout", f"not in {version}", meaning, "PostgreSQL 14"))
    if values.get("transaction_timeout", "0") != "0" and int(values["transaction_timeout"]) < 1000:
        meaning = "it may end transactions of locks that wait for each other"
        found.append(Finding(Severity.WARNING, "transaction_timeout", values["transaction_timeout"] + " ms", meaning))
    if not found:
        found.append(Finding(Severity.OK, "time limits", "set by leasehold in each transaction and session"))
    return found


def _connections(most: int, now: int) -> Finding:
    text = f"{now} of {most} in use"
    if now > most * 0.9:
        meaning = "a client may get no connection, and then no lock"
        return Finding(Severity.WARNING, "connections", text, meaning, "raise max_connections, or the URL's pool=…")
    return Finding(Severity.OK, "connections", text)


def _clock(runtime: Runtime, clock: int) -> Finding:
    ahead = clock / 1e6 - runtime.wall_us() / 1e6
    meaning = "the server's clock alone decides when leases end; stepping it can end or extend leases"
    return Finding(Severity.OK, "clock", f"{ahead:+.1f} s from this host's", meaning)
