"""Helpers of the tests with faults on PostgreSQL: who waits, and the sessions of our clients."""

from __future__ import annotations

from leasehold_lab.servers import PostgresServer

NOISE = 1.0
"""Seconds that a busy machine may be late."""


def backends(server: PostgresServer) -> int:
    return server.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND pid <> pg_backend_pid()"
    )[0][0]


def terminate(server: PostgresServer) -> int:
    """End all our backends, as an operator does; return how many there were."""
    return len(
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'")
    )
