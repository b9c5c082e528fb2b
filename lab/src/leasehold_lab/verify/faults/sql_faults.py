"""Faults of PostgreSQL and MariaDB: of the process, of sessions, and of settings."""

from __future__ import annotations

import time

from leasehold_lab.servers import MariaDBServer, PostgresServer, Server
from leasehold_lab.verify.faults.actions import FaultContext, ServerFault, freeze, restart_after


def _restart(server: Server, context: FaultContext) -> None:
    restart_after(server, context, crash=False)


def _crash(server: Server, context: FaultContext) -> None:
    restart_after(server, context)


def _outage(server: Server, context: FaultContext) -> None:
    restart_after(server, context, 1.5)


def _freeze(server: Server, context: FaultContext) -> None:
    freeze(server, context, 0.5)


def _freeze_long(server: Server, context: FaultContext) -> None:
    freeze(server, context, 1.5)


PROCESS = (
    ServerFault("server-restart", "the server is restarted", (), _restart),
    ServerFault("server-crash", "the server is killed (SIGKILL) and started again", (), _crash),
    ServerFault("server-outage", "the server is killed and is down for one and a half leases", (), _outage),
    ServerFault("server-freeze", "the server is paused (SIGSTOP) for half a lease", ("B9",), _freeze),
    ServerFault("server-freeze-long", "the server is paused for one and a half leases", ("B9",), _freeze_long),
)

# --- PostgreSQL --------------------------------------------------------------------------------------------------

OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port > 0 AND pid <> pg_backend_pid()"
"""Ends all sessions over TCP, which are those of the clients."""


def _terminate_backends(server: PostgresServer, context: FaultContext) -> None:
    until = time.monotonic() + context.lease
    while time.monotonic() < until:
        server.query(OTHERS)
        context.sleep(0.1 * context.lease)


def _cancel_statements(server: PostgresServer, context: FaultContext) -> None:
    until = time.monotonic() + context.lease
    while time.monotonic() < until:
        server.query(OTHERS.replace("pg_terminate_backend", "pg_cancel_backend"))
        context.sleep(0.02)


def _set_for_a_while(server: PostgresServer, context: FaultContext, name: str, value: str, usual: str) -> None:
    server.configure(**{name: value})
    try:
        context.sleep(context.lease)
    finally:
        server.configure(**{name: usual})


def _idle_timeout(server: PostgresServer, context: FaultContext) -> None:
    _set_for_a_while(server, context, "idle_session_timeout", "100ms", "0")


def _short_timeouts(server: PostgresServer, context: FaultContext) -> None:
    _set_for_a_while(server, context, "lock_timeout", "5ms", "0")


def _read_only(server: PostgresServer, context: FaultContext) -> None:
    _set_for_a_while(server, context, "default_transaction_read_only", "on", "off")


POSTGRESQL = (
    *PROCESS,
    ServerFault(
        "server-end-sessions",
        "all sessions are ended, for a lease (pg_terminate_backend)",
        ("H1",),
        _terminate_backends,
    ),
    ServerFault(
        "server-cancel", "statements are cancelled, for a lease (pg_cancel_backend)", ("H8",), _cancel_statements
    ),
    ServerFault("server-idle-timeout", "idle sessions are ended after 0.1 s", ("H3",), _idle_timeout),
    ServerFault("server-lock-timeout", "waits for row locks fail after 5 ms", ("H8",), _short_timeouts),
    ServerFault("server-read-only", "transactions are read-only, for a lease", (), _read_only),
)

# --- MariaDB -----------------------------------------------------------------------------------------------------


def _kill_connections(server: MariaDBServer, context: FaultContext) -> None:
    until = time.monotonic() + context.lease
    while time.monotonic() < until:
        server.end_sessions()
        context.sleep(0.1 * context.lease)


def _refuse_writes(server: MariaDBServer, context: FaultContext) -> None:
    server.query("SET GLOBAL read_only = 1")
    try:
        context.sleep(context.lease)
    finally:
        server.query("SET GLOBAL read_only = 0")


def _end_idle(server: MariaDBServer, context: FaultContext) -> None:
    server.query("SET GLOBAL wait_timeout = 1")
    try:
        server.end_sessions()  # new sessions have the new limit
        context.sleep(max(1.5, context.lease))
    finally:
        server.query("SET GLOBAL wait_timeout = 28800")


MARIADB = (
    *PROCESS,
    ServerFault(
        "server-end-sessions", "all connections are killed, for a lease (KILL)", ("I2", "I3"), _kill_connections
    ),
    ServerFault("server-idle-timeout", "connections that are idle for a second are closed", ("I3",), _end_idle),
    ServerFault("server-read-only", "the server refuses writes, for a lease", (), _refuse_writes),
)
