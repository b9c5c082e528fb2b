"""The Redis store: one server that speaks the protocol (Redis 6.2 or later, Valkey)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold.runtimes.base import Colour, Runtime
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.url import StoreURL
from leasehold.wires.redis import settings
from leasehold.wires.redis.settings import Settings


@dataclass(frozen=True)
class Redis:
    """Opens the locks of one server."""

    settings: Settings

    def open(self, runtime: Runtime, namespace: str) -> RedisStore:
        """Open the store; it connects at the first use."""
        return RedisStore(runtime, self.settings, namespace)


def from_url(url: StoreURL) -> Redis:
    """Read a URL: ``redis://``, ``rediss://``, ``unix://``, ``valkey://`` or ``valkeys://``."""
    return Redis(settings.from_url(url))


def adopt(client: Any, colour: Colour) -> Redis:
    """Reach the server as ``client`` does, a ``redis.Redis`` or ``redis.asyncio.Redis``."""
    return Redis(settings.from_client(client, colour))
