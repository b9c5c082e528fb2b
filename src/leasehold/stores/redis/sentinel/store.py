"""The store on servers under Sentinel: the store of one server, on a transport that follows the primary."""

from __future__ import annotations

from dataclasses import replace

from leasehold._model import Finding, Granted, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import MakeTransport, RetryableError
from leasehold.stores.redis.connection.failover import Retries
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import Sentinels, SentinelSettings
from leasehold.stores.redis.store import RedisStore

LEAST = 0.05
"""Seconds: with less time left a claim is not worth sending."""


class SentinelStore(RedisStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(
        self, runtime: Runtime, watched: SentinelSettings, namespace: str, *, make: MakeTransport | None = None
    ) -> None:
        """Make the store; ``make`` makes the transport to each server."""
        self._watched = watched
        self._make = make or single_transport(runtime)
        # After a message of another primary all waiters retry, which verifies it.
        self._sentinels = Sentinels(runtime, watched, self._make, lambda: self._waiters.wake_all())
        super().__init__(
            runtime,
            replace(watched.server, where=watched.where),
            namespace,
            make=lambda runtime, _, channel, on_message, on_silence: PrimaryTransport(
                runtime, self._sentinels, self._make, channel, on_message, on_silence
            ),
        )

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Acquire, with retries during a failover. The lease counts from before the granted attempt was sent."""
        until, lease, strict = self._runtime.now() + within, ticket.terms.lease, self._watched.server.strict
        # Replicas get half of an attempt.
        each = lease / 3 if strict is None else max(lease / 3, min(lease, 2 * strict.longest_wait))
        retries = Retries(self._runtime, until - LEAST)  # of all attempts: a short one makes no pause of its own
        while True:
            left = max(until - self._runtime.now(), 0.001)
            try:
                return await super().try_acquire(name, ticket, join=join, within=min(left, each))
            except RetryableError:
                if not await retries.pause():
                    raise

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.redis.doctor import sentinel
        from leasehold.stores.redis.doctor.strict import adjusted

        found = await super().diagnose()
        make = single_transport(self._runtime)
        group = await sentinel.diagnose(self._runtime, make, self._sentinels, self._watched, self._transport)
        strict = self._watched.server.strict
        return [*found, *(group if strict is None else adjusted(group, strict))]
