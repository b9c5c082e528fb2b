"""What a PostgreSQL server's settings, and a pooler in front of it, mean for the promises of the locks."""

from __future__ import annotations

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.stores._sql import tables
from leasehold.stores._sql.transport import Refused, Statement
from leasehold.stores.postgres.connection.base import PostgresTransport

WITHIN = 5.0
"""Seconds for all statements."""

SETTINGS = Statement("""
    SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes',
    'idle_session_timeout', 'max_connections', 'synchronous_standby_names', 'transaction_timeout')
""")

TABLES = Statement("""
    SELECT string_agg(wanted, ', ') FROM (VALUES ('leasehold_meta'), ('leasehold_name'), ('leasehold_entry'),
    ('leasehold_cell')) AS needed (wanted) WHERE to_regclass(wanted) IS NULL
""")

RIGHTS = Statement("""
    SELECT wanted, string_agg(privilege, ', ')
    FROM unnest(ARRAY['leasehold_meta', 'leasehold_name', 'leasehold_entry', 'leasehold_cell']) AS wanted,
    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
    WHERE to_regclass(wanted) IS NOT NULL AND NOT has_table_privilege(wanted, privilege)
    AND (wanted <> 'leasehold_meta' OR privilege IN ('SELECT', 'UPDATE')) GROUP BY wanted ORDER BY wanted
""")

SERVER = Statement("""
    SELECT current_setting('server_version'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
""")


async def examine(runtime: Runtime, transport: PostgresTransport) -> list[Finding]:
    """Return all findings; an unreachable server raises as for any other operation."""
    answers = await transport.transact(lambda tx: tx.commit(SERVER, SETTINGS, TABLES, RIGHTS), within=WITHIN)
    ((version, clock, clients),), settings, ((missing,),), rights = answers
    values: dict[str, str] = dict(settings)
    found = [
        Finding(Severity.OK, "server", f"PostgreSQL {version}"),
        _pooler(transport),
        _encryption(transport),
        await _tables(transport, missing),
        *(_right(table, privileges) for table, privileges in rights),
        *_durability(values),
        _standbys(values),
        *_timeouts(values, version),
        _connections(int(values.get("max_connections", "0")), int(clients)),
        _clock(runtime, int(clock)),
    ]
    if transport.facts["read_only"]:
        meaning = "transactions of locks set READ WRITE themselves, so they work"
        found.append(Finding(Severity.NOTE, "default_transaction_read_only", "on", meaning))
    return found


def _pooler(transport: PostgresTransport) -> Finding:
    if not transport.facts["pooled"]:
        return Finding(Severity.OK, "pooler", "none", "hand-overs are notified by messages (LISTEN)")
    if transport.settings.subscriptions is not None:
        meaning = "hand-overs are notified by messages that bypass it (listen=)"
        return Finding(Severity.OK, "pooler", "in between", meaning)
    meaning = "no messages come through it, so waiters poll, down to twice a second; mode=session is refused"
    remedy = "name the server itself by listen=host:port where waits are long"
    return Finding(Severity.NOTE, "pooler", "in between", meaning, remedy)


def _encryption(transport: PostgresTransport) -> Finding:
    if transport.facts["encrypted"]:
        return Finding(Severity.OK, "encryption", "TLS", "the server's name is checked only with sslmode=verify-full")
    if transport.settings.local:
        return Finding(Severity.OK, "encryption", "none, on this host")
    meaning = "anyone who can read the network's traffic sees names and owners"
    return Finding(Severity.WARNING, "encryption", "none", meaning, "add sslmode=verify-full and sslrootcert=FILE")


async def _tables(transport: PostgresTransport, missing: str | None) -> Finding:
    if missing:
        remedy = "run: leasehold init URL"
        return Finding(Severity.ERROR, "tables", f"missing: {missing}", "no lock can be acquired", remedy)
    try:
        (found,) = await transport.transact(lambda tx: tx.commit(tables.VERSION), within=WITHIN)
    except Refused as error:
        return Finding(Severity.ERROR, "tables", f"error {error.code}", error.message)
    return tables.finding("tables", found[0][0] if found else None)


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
    remedy = "name one, where a failover must lose no grant"
    return Finding(Severity.NOTE, "synchronous standbys", "none", meaning, remedy)


def _timeouts(values: dict[str, str], version: str) -> list[Finding]:
    found: list[Finding] = []
    if "idle_session_timeout" not in values:
        meaning = "mode=session: a holder whose host vanishes keeps its lock until TCP's keep-alive, about 20 s"
        found.append(Finding(Severity.NOTE, "idle_session_timeout", f"not in {version}", meaning, "PostgreSQL 14"))
    if values.get("transaction_timeout", "0") != "0" and int(values["transaction_timeout"]) < 1000:
        meaning = "it may end transactions of locks that wait for each other"
        found.append(Finding(Severity.WARNING, "transaction_timeout", values["transaction_timeout"] + " ms", meaning))
    return found or [Finding(Severity.OK, "time limits", "set by leasehold in each transaction and session")]


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
