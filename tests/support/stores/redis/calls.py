"""Calls of the store of one server, and what they leave there."""

from __future__ import annotations

from leasehold._model import (
    Granted,
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
from leasehold.stores import registry
from leasehold.stores.redis import keys
from leasehold.stores.redis.store import RedisStore
from leasehold_lab.servers import RedisServer


def open_store(url: str) -> RedisStore:
    store = registry.opener(url).open(BlockingRuntime(), "default")
    assert isinstance(store, RedisStore)
    return store


def a_ticket(*, fair: bool = False, lease: float = 30.0, lock_delay: float = 0.0, meta: str = "") -> Ticket:
    terms = LeaseTerms(LockMode(fair=fair), Owner("host", 1, "x"), lease, lock_delay, meta)
    return Ticket(ticket_id(BlockingRuntime.random_bytes(16)), terms)


def claim(store: RedisStore, name: str, ticket: Ticket, *, join: bool = True) -> Granted | Wait:
    return finish(store.try_acquire(name, ticket, join=join, within=5.0))


def leave(store: RedisStore, name: str, ticket: Ticket, reason: ReleaseReason = ReleaseReason.RELEASE) -> bool:
    return finish(store.release(name, ticket, reason=reason, within=5.0))


def renew(store: RedisStore, *those: tuple[str, Ticket]) -> list[RenewalResult]:
    return list(finish(store.renew(those, within=5.0)))


def state(server: RedisServer, name: str) -> list[object]:
    mutex = keys.mutex_keys("default", name)
    return [server.command("DEBUG", "DIGEST-VALUE", *mutex), *(server.command("PEXPIRETIME", key) for key in mutex)]
