"""Calls of the store for names with many holders, and what they leave there."""

from __future__ import annotations

import itertools

from leasehold._model import (
    Granted,
    Kind,
    LeaseTerms,
    LockMode,
    Owner,
    ReleaseReason,
    RenewalResult,
    Ticket,
    Wait,
    ticket_id,
)
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer

NAMES = (f"shared:{number}" for number in itertools.count())
ROLES = ("lock", "queue", "beat", "waiters", "holders", "terms")
READER = LockMode(Kind.READ_WRITE, exclusive=False)
WRITER = LockMode(Kind.READ_WRITE)
LEASE = 0.9
NOISE = 0.25


def a_ticket(mode: LockMode = READER, *, lease: float = 30.0, lock_delay: float = 0.0) -> Ticket:
    return Ticket(
        ticket_id(BlockingRuntime.random_bytes(16)), LeaseTerms(mode, Owner("host", 1, "x"), lease, lock_delay)
    )


def permit(limit: int, n: int = 1) -> LockMode:
    return LockMode(Kind.SEMAPHORE, exclusive=False, permits=n, limit=limit)


def claim(store: RedisStore, name: str, ticket: Ticket, *, join: bool = True) -> Granted | Wait:
    return finish(store.try_acquire(name, ticket, join=join, within=5.0))


def leave(store: RedisStore, name: str, ticket: Ticket, reason: ReleaseReason = ReleaseReason.RELEASE) -> bool:
    return finish(store.release(name, ticket, reason=reason, within=5.0))


def renew(store: RedisStore, *those: tuple[str, Ticket]) -> list[RenewalResult]:
    return list(finish(store.renew(those, within=5.0)))


def state(server: RedisServer, name: str) -> list[object]:
    those = keys.shared_keys("default", name)
    return [server.command("DEBUG", "DIGEST-VALUE", *those), *(server.command("PEXPIRETIME", key) for key in those)]


def expire(server: RedisServer, name: str, ticket: Ticket) -> None:
    """Let a holder's lease end now."""
    server.command("ZADD", keys.shared_keys("default", name)[4], "XX", "1", ticket.id)
