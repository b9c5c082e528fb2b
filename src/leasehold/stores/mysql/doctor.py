"""What `leasehold doctor` reports of a MySQL or MariaDB server: version, tables, rights, durability, cluster, clock."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.stores._sql import tables
from leasehold.stores._sql.transport import Refused, Row, Statement
from leasehold.stores.mysql.connection.handshake import OLDEST, kind_of
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.connection.transport import MySQLTransport
from leasehold.stores.mysql.statements import CLOCK, DIALECT

WITHIN = 10.0
"""Seconds for each part."""

TABLES = ("leasehold_meta", "leasehold_name", "leasehold_entry", "leasehold_cell")

VARIABLES = (
    *("version", "innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "binlog_format", "wsrep_on"),
    *("transaction_isolation", "tx_isolation", "max_connections", "group_replication_single_primary_mode"),
)

KEY = (b"\xff", b"doctor")
"""A name that no client can use."""

TRIED: Mapping[str, Statement] = {
    "SELECT on leasehold_meta": Statement(DIALECT.clock),
    "UPDATE on leasehold_meta": Statement("UPDATE leasehold_meta SET fence = fence WHERE 1 = 0"),
    "INSERT on leasehold_name": Statement(DIALECT.add_name, KEY),
    "SELECT and UPDATE on leasehold_name": Statement(DIALECT.lock_name, KEY),
    "DELETE on leasehold_name": Statement("DELETE FROM leasehold_name WHERE id = 0"),
    "SELECT on leasehold_entry": Statement(DIALECT.unexpired, (0,)),
    "INSERT on leasehold_entry": Statement("INSERT INTO leasehold_entry SELECT * FROM leasehold_entry WHERE 1 = 0"),
    "UPDATE on leasehold_entry": Statement("UPDATE leasehold_entry SET expires = 0 WHERE ticket = '' AND name_id = 0"),
    "DELETE on leasehold_entry": Statement("DELETE FROM leasehold_entry WHERE ticket = '' AND name_id = 0"),
    "INSERT on leasehold_cell": Statement(DIALECT.add_cell, KEY),
    "SELECT and UPDATE on leasehold_cell": Statement(f"{DIALECT.read_cell} FOR UPDATE", KEY),
    "DELETE on leasehold_cell": Statement("DELETE FROM leasehold_cell WHERE space = x'ff' AND name = x'ff'"),
}
"""A statement of locks for each right that it needs. It is rolled back."""


async def examine(runtime: Runtime, transport: MySQLTransport, settings: Settings) -> list[Finding]:
    """Return all findings; an unreachable server raises as for any other operation."""
    names = ", ".join(f"'{name}'" for name in VARIABLES)
    wanted = ", ".join(f"'{name}'" for name in TABLES)
    settings_rows, engines, cipher, ((now,),) = await _asked(
        transport,
        Statement(f"SHOW VARIABLES WHERE Variable_name IN ({names})"),
        Statement(
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME IN ({wanted})"
        ),
        Statement("SHOW SESSION STATUS LIKE 'Ssl_cipher'"),
        Statement(f"SELECT {CLOCK}"),
    )
    variables = {str(name).lower(): str(value) for name, value in settings_rows}
    there = {str(name).lower(): str(engine) for name, engine in engines}
    tidy = [
        _version(variables["version"]),
        _encryption(settings, str(cipher[0][1] if cipher else "")),
        _isolation(variables),
        _clock(runtime, now),
    ]
    missing = [name for name in TABLES if name not in there]
    if missing:
        words = f"{', '.join(missing)} missing"
        remedy = "create them with: leasehold init URL"
        return [*tidy, Finding(Severity.ERROR, "mysql tables", words, "no lock can be acquired", remedy)]
    layout = await _layout(transport)
    rights = [await _rights(transport)] if layout.severity is Severity.OK else []  # else it lacks columns
    return [*tidy, layout, *_engines(there), *rights, *_logging(variables), *_clusters(variables)]


async def _asked(transport: MySQLTransport, *statements: Statement) -> list[list[Row]]:
    """Run statements in a transaction that is rolled back."""
    return await transport.transact(lambda tx: tx.ask(*statements), within=WITHIN)


def _version(version: str) -> Finding:
    make = kind_of(version)
    oldest = ".".join(map(str, OLDEST[make]))
    return Finding(Severity.OK, "mysql version", f"{make} {version}", f"{oldest} or later is needed")


def _encryption(settings: Settings, cipher: str) -> Finding:
    if cipher:
        return Finding(Severity.OK, "mysql encryption", cipher)
    if settings.local:
        return Finding(Severity.OK, "mysql encryption", "none", "the connection does not leave this host")
    meaning = "anyone who can read the network's traffic sees names and tokens, and can use the locks"
    return Finding(Severity.WARNING, "mysql encryption", "none", meaning, "add ?ssl=true to the URL")


def _isolation(variables: Mapping[str, str]) -> Finding:
    found = variables.get("transaction_isolation") or variables.get("tx_isolation") or "unknown"
    if found == "READ-COMMITTED":
        return Finding(Severity.OK, "mysql isolation", found, "set for each of our sessions")
    meaning = "decisions could be taken from an old view"
    return Finding(Severity.ERROR, "mysql isolation", found, meaning, "look for a proxy that drops SET SESSION")


def _clock(runtime: Runtime, now: int) -> Finding:
    apart = now / 1e9 - runtime.wall_us() / 1e6
    found = f"{abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this host's"
    if abs(apart) < 5:
        return Finding(Severity.OK, "mysql clock", found, "it alone decides when leases end")
    meaning = "it alone decides when leases end; set right with a step, it would end them early or late"
    return Finding(Severity.NOTE, "mysql clock", found, meaning, "run NTP on the server")


async def _layout(transport: MySQLTransport) -> Finding:
    try:
        (found,) = await _asked(transport, Statement(DIALECT.clock))
    except Refused as error:
        return _refusal("mysql tables", error)
    return tables.finding("mysql tables", found[0][1] if found else None)


def _engines(engines: Mapping[str, str]) -> list[Finding]:
    wrong = {name: engine for name, engine in engines.items() if engine.lower() != "innodb"}
    if not wrong:
        return [Finding(Severity.OK, "mysql engine", "InnoDB")]
    found = ", ".join(f"{name}: {engine}" for name, engine in sorted(wrong.items()))
    remedy = "; ".join(f"ALTER TABLE {name} ENGINE = InnoDB" for name in sorted(wrong))
    meaning = "it has no transactions or no row locks: two holders at once"
    return [Finding(Severity.ERROR, "mysql engine", found, meaning, remedy)]


async def _rights(transport: MySQLTransport) -> Finding:
    missing: list[str] = []
    for right, statement in TRIED.items():
        try:
            await _asked(transport, statement)
        except Refused as error:
            if error.code not in ("1142", "1143", "1044"):
                return _refusal("mysql rights", error)
            missing.append(right)
    if not missing:
        return Finding(Severity.OK, "mysql rights", "SELECT, INSERT, UPDATE, DELETE on the tables")
    meaning = "locks fail as soon as they need it"
    return Finding(Severity.ERROR, "mysql rights", f"missing: {'; '.join(missing)}", meaning, "GRANT them to its user")


def _logging(variables: Mapping[str, str]) -> list[Finding]:
    findings: list[Finding] = []
    if variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT":
        meaning = "the server refuses what locks write (error 1665)"
        remedy = "set binlog_format to MIXED or ROW"
        findings.append(Finding(Severity.ERROR, "mysql binlog", "STATEMENT", meaning, remedy))
    flush, sync = variables.get("innodb_flush_log_at_trx_commit", "1"), variables.get("sync_binlog", "1")
    found = f"innodb_flush_log_at_trx_commit={flush} sync_binlog={sync}"
    if flush == "1":
        findings.append(Finding(Severity.OK, "mysql durability", found, "a loss of power takes no grant back"))
    else:
        meaning = "a loss of power may take the last second's grants back: two holders at once, until leases end"
        remedy = "set innodb_flush_log_at_trx_commit to 1"
        findings.append(Finding(Severity.WARNING, "mysql durability", found, meaning, remedy))
    return findings


def _clusters(variables: Mapping[str, str]) -> list[Finding]:
    remedy = "let all clients use the same node"
    if variables.get("wsrep_on") == "ON":
        meaning = "each node has its own clock, and leases are counted by them; mode=session is refused"
        return [Finding(Severity.WARNING, "mysql cluster", "Galera", meaning, remedy)]
    if variables.get("group_replication_single_primary_mode") == "OFF":
        meaning = "each member has its own clock, and leases are counted by them"
        return [Finding(Severity.WARNING, "mysql cluster", "group replication, several primaries", meaning, remedy)]
    meaning = "replicas that take over without the last commits forget grants; tokens still increase"
    return [Finding(Severity.OK, "mysql cluster", "none", meaning)]


def _refusal(subject: str, error: Refused) -> Finding:
    return Finding(Severity.ERROR, subject, f"error {error.code}", error.message)
